"""Where batches come from, other than the environments: replay buffers and fixed sets of transitions."""
