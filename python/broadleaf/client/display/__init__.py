"""Showing what tasks write, display, return and raise, and how far they are."""
