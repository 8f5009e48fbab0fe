"""Who may see the dashboard: whoever has the token, from a page of the dashboard's own address."""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_TOKEN_BYTES = 24


def new_token() -> str:
    """A token that nobody guesses."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


@dataclass(frozen=True)
class Asked:
    """What a request says of itself."""

    host: str
    origin: str | None
    token: str | None
    """Of its address, or of its cookie."""


@dataclass(frozen=True)
class Guard:
    """Judges requests to a dashboard on a port of this host.

    A page elsewhere can have a browser send requests here. It has no token, and the cookie is not sent for it; should
    it have found the token, its `Origin` gives it away. A host name of an attacker's that suddenly means this host
    (DNS rebinding) is not among the names that are answered.
    """

    port: int
    token: str = field(default_factory=new_token, repr=False)

    @property
    def hosts(self) -> tuple[str, ...]:
        """What `Host` may say."""
        return (f"127.0.0.1:{self.port}", f"localhost:{self.port}")

    @property
    def cookie(self) -> str:
        """The name of the cookie: browsers keep one set of cookies for all ports of a host."""
        return f"broadleaf-dashboard-{self.port}"

    def refusal(self, asked: Asked) -> str | None:
        """Why a request is not answered; None if it is."""
        if asked.host.lower() not in self.hosts:
            return f"the dashboard is not served under the name {asked.host!r}; open it as {self.hosts[0]}"
        if asked.origin is not None:
            origin = urlsplit(asked.origin)
            if origin.scheme != "http" or origin.netloc.lower() not in self.hosts:
                return f"the dashboard does not answer pages of {asked.origin!r}"
        if asked.token is None or not hmac.compare_digest(asked.token.encode(), self.token.encode()):
            return "wrong or missing token; open the address that `broadleaf dashboard` or `cluster.dashboard` shows"
        return None
