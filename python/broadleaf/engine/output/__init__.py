"""What a task writes, displays and publishes, on its way to the task's client."""
