"""Arguments and attributes of IPython Parallel's `Client` and views."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broadleaf.compat.profiles import profile_name
from broadleaf.text import warn_once

if TYPE_CHECKING:
    from broadleaf.client.client import Client
    from broadleaf.client.views.base import View


# The arguments that IPython Parallel's `Client` takes, in terms of Broadleaf's.


_TUNNEL = "does nothing: `sshserver` needs a key or an agent, and OpenSSH's program; a password cannot be given"
_NEEDLESS = {
    "context": "does nothing: Broadleaf does not use ZeroMQ",
    "debug": "does nothing; `client.set_log('debug')` has the controller record everything",
    "extra_args": "does nothing",
    "ipython_dir": "does nothing: connection files are in $BROADLEAF_DIR, see `cluster.connection_file`",
    "paramiko": _TUNNEL,
    "password": _TUNNEL,
    "session": "does nothing: keys are in the connection file",
}


def translate_arguments(connection_info: Any, profile: str | None, old: dict[str, Any]) -> tuple[Any, str | None]:
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


# Attributes that IPython Parallel's clients and views have and Broadleaf's do not.


_READS_BY_ITSELF = "does nothing: a client receives messages by itself"


def client_attribute(client: Client, name: str) -> Any:
    """The attribute `name` that IPython Parallel's clients have. Raises `AttributeError`."""
    get = _ATTRIBUTES.get(name)
    if get is None:
        raise AttributeError(f"{type(client).__name__!r} object has no attribute {name!r}")
    return get(client)


def view_attribute(view: View, name: str) -> Any:
    """The attribute `name` that IPython Parallel's views have. Raises `AttributeError`."""
    if name == "spin":
        return _needless(name)(view)
    raise AttributeError(f"{type(view).__name__!r} object has no attribute {name!r}")


def _needless(name: str) -> Callable[[Client | View], Callable[..., None]]:
    def method(*_arguments: Any, **_keywords: Any) -> None:
        warn_once(f"{name}() {_READS_BY_ITSELF}")

    return lambda owner: method


def _send_apply_request(client: Client) -> Callable[..., Any]:
    def send_apply_request(
        socket: Any, f: Any, args: Any = None, kwargs: Any = None, metadata: Any = None, track: bool = False,
        ident: Any = None, message_future_hook: Any = None,
    ) -> Any:  # fmt: skip
        """`view.apply_async` on the engine `ident`, or on any; `socket` and the other arguments are ignored."""
        view: Any = client.load_balanced_view() if ident is None else client.direct_view(ident)
        return view.apply_async(f, *(args or ()), **(kwargs or {}))

    return send_apply_request


def _send_execute_request(client: Client) -> Callable[..., Any]:
    def send_execute_request(
        socket: Any, code: str, silent: bool = True, metadata: Any = None, ident: Any = None,
        message_future_hook: Any = None,
    ) -> Any:  # fmt: skip
        """`view.execute` on the engine `ident`; `socket` and the other arguments are ignored."""
        return client.direct_view(ident).execute(code, silent=silent, block=False)

    return send_execute_request


_ATTRIBUTES: dict[str, Callable[[Client], Any]] = {
    "become_distributed": lambda client: client.become_dask,
    "debug": lambda client: False,
    "send_apply_request": _send_apply_request,
    "send_execute_request": _send_execute_request,
    "spin": _needless("spin"),
    "spin_thread": _needless("spin_thread"),
    "stop_distributed": lambda client: client.stop_dask,
    "stop_spin_thread": _needless("stop_spin_thread"),
}
