"""One file per family of algorithms, each read from top to bottom: equations, configuration, loss, update."""
