"""The effects of single factors, and of two together."""
