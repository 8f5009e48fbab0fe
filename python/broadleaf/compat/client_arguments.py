"""The arguments that IPython Parallel's `Client` takes, in terms of Broadleaf's."""

from __future__ import annotations

from typing import Any

from broadleaf.compat.profiles import profile_name
from broadleaf.text import warn_once

_TUNNEL = "does nothing: `sshserver` needs a key or an agent, and OpenSSH's program; a password cannot be given"
_NEEDLESS = {
    "context": "does nothing: there is no ZeroMQ here",
    "debug": "does nothing; `client.set_log('debug')` has the controller record everything",
    "extra_args": "does nothing",
    "ipython_dir": "does nothing: connection files are in $BROADLEAF_DIR, see `cluster.connection_file`",
    "paramiko": _TUNNEL,
    "password": _TUNNEL,
    "session": "does nothing: keys are in the connection file",
}


def translate(connection_info: Any, profile: str | None, old: dict[str, Any]) -> tuple[Any, str | None]:
    """`connection_info` and `profile` for `Client`, according to the `old` arguments.

    Raises `TypeError` for a name that neither has.
    """
    for name, value in old.items():
        if name == "url_file":
            warn_once("Client(url_file=...) is now the first argument, connection_info")
            connection_info = value if connection_info is None else connection_info
        elif name == "profile_dir":
            profile = profile_name(value) if value is not None else profile
        elif name not in _NEEDLESS:
            raise TypeError(f"Client() got an unexpected keyword argument {name!r}")
        elif value:
            warn_once(f"Client({name}=...) {_NEEDLESS[name]}")
    return connection_info, profile
