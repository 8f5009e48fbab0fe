"""Results of tasks, and results combined from several."""
