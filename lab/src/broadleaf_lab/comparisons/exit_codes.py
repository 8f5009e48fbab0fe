"""Exit codes of verdicts. 2 means a wrong option, as for every command, so no verdict uses it."""

from __future__ import annotations

NO_HARM = 0
HARM = 1
COULD_NOT_RUN = 3
"""There is nothing to judge: the workload could not be run, or a file not be read or written."""
UNDECIDED = 4
