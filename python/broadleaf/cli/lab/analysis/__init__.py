"""Commands that say what the runs say."""
