"""Commands that write a study and plan its runs."""
