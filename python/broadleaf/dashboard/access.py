"""Who may see the dashboard: whoever has the token, from a page of the dashboard's own address."""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_TOKEN_BYTES = 24


def new_token() -> str:
    """A token that nobody can guess."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


@dataclass(frozen=True)
class Asked:
    """What a request says about itself."""

    host: str
    origin: str | None
    token: str | None
    """The token in its address or in its cookie."""


@dataclass(frozen=True)
class Guard:
    """Judges requests to a dashboard on a port of this host.

    A page elsewhere can have a browser send requests here. It has no token, and the browser does not send it the
    cookie. If it did find the token, its `Origin` gives it away. An attacker's host name that suddenly points to this
    host (DNS rebinding) is not among the accepted names.
    """

    port: int
    token: str = field(default_factory=new_token, repr=False)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The accepted values of `Host`."""
        return (f"127.0.0.1:{self.port}", f"localhost:{self.port}")

    @property
    def cookie(self) -> str:
        """The name of the cookie; it has the port because browsers keep one set of cookies for all ports of a host."""
        return f"broadleaf-dashboard-{self.port}"

    def refusal(self, asked: Asked) -> str | None:
        """Why a request is refused; None if it is not."""
        if asked.host.lower() not in self.hosts:
            return f"the dashboard is not served under the name {asked.host!r}; open it as {self.hosts[0]}"
        if asked.origin is not None:
            origin = urlsplit(asked.origin)
            if origin.scheme != "http" or origin.netloc.lower() not in self.hosts:
                return f"the dashboard does not answer pages of {asked.origin!r}"
        if asked.token is None or not hmac.compare_digest(asked.token.encode(), self.token.encode()):
            return "wrong or missing token; open the address that `broadleaf dashboard` or `cluster.dashboard` shows"
        return None
