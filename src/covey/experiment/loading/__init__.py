"""Loading: what is done with a trained team: loading it, evaluating it, starting another run from it."""
