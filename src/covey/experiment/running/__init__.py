"""Running: from a configuration to parts, compiled programs and the training that drives them."""
