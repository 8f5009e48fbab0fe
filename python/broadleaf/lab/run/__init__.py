"""One word for running a command: a configuration becomes a command, its run a row of runs.csv."""
