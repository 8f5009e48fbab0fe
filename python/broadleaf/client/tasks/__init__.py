"""What goes to engines with a task: its options, its function, its share of the data."""
