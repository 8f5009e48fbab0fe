"""Commands that write reports, settings and tables."""
