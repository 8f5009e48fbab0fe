"""Results of tasks, and what is made of several."""
