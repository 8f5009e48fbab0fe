"""Runs beside each other: every X beside X + treatment, and intervals for their ratios."""
