"""Views: ways to address engines."""
