"""Running a scheduler's commands."""

from __future__ import annotations

from collections.abc import Sequence

from broadleaf.errors import BroadleafError

# A busy scheduler answers late; one that is down does not answer.
_TIMEOUT_S = 60.0


class CommandError(BroadleafError):
    """A command failed; the text is what it wrote."""


def run(command: Sequence[str], *, text: str = "") -> str:
    """Runs a command with `text` as its input; returns its output. Raises `CommandError`."""
    import subprocess

    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, errors="replace"
        )
    except FileNotFoundError:
        raise CommandError(
            f"there is no program {command[0]!r} here; start the cluster on a host that submits jobs"
        ) from None
    except subprocess.TimeoutExpired:
        raise CommandError(f"{command[0]} did not answer within {_TIMEOUT_S:g} s") from None
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip()  # Grid Engine complains on standard output
        raise CommandError(said or f"{command[0]} ended with code {done.returncode}")
    return done.stdout
