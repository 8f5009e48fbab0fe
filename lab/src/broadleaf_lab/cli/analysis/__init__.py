"""Commands that analyse the runs."""
