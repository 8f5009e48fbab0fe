"""Options that these commands share, and what happens to those that Broadleaf does not need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from broadleaf.cli.terminal.entry import EntryCommand
from broadleaf.compat.profiles import profile_name

_Command = TypeVar("_Command", bound=Callable[..., Any])

# Options of IPython Parallel that take a value, so that the value is not read as a separate argument.
_WITH_VALUE = frozenset(
    ("--ping", "--location", "--ssh", "--enginessh", "--transport", "--scheme", "--hwm", "--url", "--ident", "--packer",
     "--keyfile", "--session", "--work-dir", "--mpi", "--ports", "--controller", "--config", "--ipython-dir",
     "--timeout", "--delay", "--signal", "-c", "-s", "--cwd")
)  # fmt: skip
SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help", "--help-all"],
    "max_content_width": 100,
    "show_default": True,
}


def cluster_options(command: _Command) -> _Command:
    """The options that name a cluster and set its log level."""
    for option in (
        click.option("--quiet", is_flag=True, help="Log only errors."),
        click.option("--debug", is_flag=True, help="Log everything."),
        click.option("--log-level", metavar="LEVEL", help="A level of Python's logging, by name or number."),
        click.option("--cluster-id", default="", metavar="ID", help="Name of the cluster in its profile."),
        click.option("--profile-dir", metavar="PATH", help="Profile directory; the profile is named after it."),
        click.option("--profile", default="default", metavar="NAME", help="Profile of the cluster."),
    ):
        command = option(command)
    return command


def tolerant(name: str, help_text: str | None = None) -> Callable[[Callable[..., Any]], click.Command]:
    """A command that collects unknown options in the argument `rest`."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        command = click.argument("rest", nargs=-1, type=click.UNPROCESSED)(function)
        settings: dict[str, Any] = {**SETTINGS, "ignore_unknown_options": True}
        return click.command(name, cls=EntryCommand, context_settings=settings, help=help_text)(command)

    return decorate


def say_ignored(rest: tuple[str, ...]) -> None:
    """Reports each option in `rest` that has no effect. Raises `UsageError` for anything that is not an option."""
    arguments = iter(rest)
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if not name.startswith("-"):
            raise click.UsageError(f"unexpected argument {argument!r}", click.get_current_context())
        if name in _WITH_VALUE and not equals:
            next(arguments, None)
        click.echo(f"{name} does nothing; `broadleaf config show` lists what can be set", err=True)


def profile_of(profile: str, profile_dir: str | None) -> str:
    """The profile that the two options name."""
    return profile_name(profile_dir) if profile_dir else profile


def chosen_log_level(log_level: str | None, debug: bool, quiet: bool) -> str | None:
    """The value of the option `log_level`, or None for its default."""
    from broadleaf.compat.cluster import option_log_level

    if log_level is not None:
        return option_log_level(log_level)
    return "debug" if debug else "error" if quiet else None
