"""Loading: using a trained team, to act, to be evaluated, or to start another run from."""
