"""Figures of a study: functions from tables to a chart and the table behind it, and the registry that numbers them."""
