"""Running a command: a configuration becomes a command, and its run a row of runs.csv."""
