"""An experiment: its configuration, running it, what it records, and loading what it learned."""
