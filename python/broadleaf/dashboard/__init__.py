"""The dashboard: one page that shows what a cluster does, as it does it."""
