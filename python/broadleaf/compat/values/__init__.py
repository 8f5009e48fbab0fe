"""Objects and texts in the forms that IPython Parallel's programs use."""
