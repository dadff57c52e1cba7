"""Adapters over JaxMARL, one module per suite. `core` holds what they share and the rules that all of them follow."""
