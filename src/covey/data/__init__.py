"""Where batches come from besides the environments: replay buffers."""
