"""Showing what tasks write, display, return and raise, and their progress."""
