"""Adapters over Jumanji, one module per environment; `core` holds what they share."""
