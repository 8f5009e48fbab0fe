"""What engines on every host take over from the session that starts their cluster: a part of their environment.

The rest of the environment is that of the process that starts a host. `docs/concepts/session-state.md` lists what else
programs might expect to be equal.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping

_HASH_SEED = "PYTHONHASHSEED"
_HASH_SEEDS = 1 << 32
# None of them is secret, so they may be in the scripts of jobs, and in command lines.
_TAKEN_OVER = (_HASH_SEED, "PYTHONUTF8", "PYTHONWARNINGS", "TZ")


def session_environment(drawn: bytes | None = None) -> dict[str, str]:
    """The variables that engines take over, as an interpreter reads them when it starts.

    The seed of hashes is the session's, if it was given one; else `drawn`, four bytes that are random by default. What
    Python drew for the session itself cannot be found out.
    """
    found = {_HASH_SEED: _given_hash_seed() or str(int.from_bytes(drawn or os.urandom(4)))}
    if sys.flags.utf8_mode:
        found["PYTHONUTF8"] = "1"
    # Those of the command line too. A comma would divide an option, and its parts would say something else.
    if options := [option for option in sys.warnoptions if "," not in option]:
        found["PYTHONWARNINGS"] = ",".join(options)
    if "TZ" in os.environ:
        found["TZ"] = os.environ["TZ"]
    return found


def _given_hash_seed() -> str:
    given = os.environ.get(_HASH_SEED, "")
    return given if given.isascii() and given.isdigit() and int(given) < _HASH_SEEDS else ""


def taken_over(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of engines' environment that may be seen by others."""
    return {name: environment[name] for name in _TAKEN_OVER if name in environment}


def export_command(environment: Mapping[str, str]) -> list[str]:
    """A line for the shell that sets `taken_over`, or none if there is nothing to set."""
    words = [f"{name}={shlex.quote(value)}" for name, value in taken_over(environment).items()]
    return [f"export {' '.join(words)}"] if words else []
