"""The `broadleaf` command.

Each command is the module of its name, imported only when it runs. `commands` has what they are made of: groups, errors
of one line, and what to install if something is missing. `console` has what they share: which cluster is meant, tables,
and completion. `ipcluster`, `ipcontroller` and `ipengine` are commands of IPython Parallel.
"""

from __future__ import annotations

from typing import Any

import click

from broadleaf.cli.commands import EntryGroup

_COMMANDS = {
    "start": "Start a cluster on this host.",
    "relay": "Add this host's engines to a cluster on another host.",
    "manifest": "Write a Kubernetes manifest for a cluster.",
    "run": "Run a program with a cluster on all hosts of an allocation.",
    "doctor": "Find out why engines do not connect.",
    "scale": "Set a cluster's number of engines, or let it follow its tasks.",
    "drain": "Release engines, a host or a job: they finish their tasks and take no new ones.",
    "stop": "Stop a cluster and wait until it has ended.",
    "list": "List your running clusters on this host.",
    "status": "Show the engines of a cluster and what they have done.",
    "top": "Watch a cluster at work.",
    "dashboard": "Serve a page that shows what a cluster is doing.",
    "logs": "Show the log of the controller or of an engine.",
    "trace": "Write what happened in a cluster to a file.",
    "config": "Show every option, its value and where the value comes from.",
    "plan": "Estimate what it costs to send the same data to many engines.",
    "bench": "Measure Broadleaf on this machine.",
    "lab": "Find the settings that make a workload fast, and how sure you can be.",
}


@click.group(
    cls=EntryGroup,
    texts=_COMMANDS,
    package="broadleaf.cli",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="broadleaf", prog_name="broadleaf")
def group() -> None:
    """Run Python on many engines at once.

    `broadleaf COMMAND --help` explains a command. Exit codes: 0 for success, 1 for a failure (the message says why), 2
    for a wrong option or argument.
    """


def main(arguments: list[str] | None = None) -> Any:
    """Entry point of the console script."""
    return group.main(arguments, prog_name="broadleaf")
