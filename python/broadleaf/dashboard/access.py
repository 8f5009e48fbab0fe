"""Who may see the dashboard: whoever has the token, from a page of the dashboard's own address."""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field

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
    """The token in its address."""
    page_key: str | None
    """What its cookie says."""


@dataclass(frozen=True)
class Guard:
    """Judges requests to a dashboard on a port of this host.

    A page elsewhere can have a browser send requests here. It has no token, and the browser does not send it the
    cookie. If it did find the token, its `Origin` gives it away. An attacker's host name that suddenly points to this
    host (DNS rebinding) is not among the accepted names.

    A browser sends a cookie to every port of a host, so to other users' servers too. So the cookie has a key that opens
    the page's own files, which everybody may know, and nothing about the cluster.
    """

    port: int
    token: str = field(default_factory=new_token, repr=False)
    page_key: str = field(default_factory=new_token, repr=False)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The accepted values of `Host`."""
        return (f"127.0.0.1:{self.port}", f"localhost:{self.port}")

    @property
    def cookie(self) -> str:
        """The name of the cookie; it has the port because browsers keep one set of cookies for all ports of a host."""
        return f"broadleaf-dashboard-{self.port}"

    def refusal(self, asked: Asked, is_for_page: bool) -> str | None:
        """Why a request is refused; None if it is not. For the page and its files, the key in the cookie is enough."""
        if asked.host.lower() not in self.hosts:
            return f"the dashboard is not served under the name {asked.host!r}; open it as {self.hosts[0]}"
        if asked.origin is not None and asked.origin.lower() not in (f"http://{host}" for host in self.hosts):
            return f"the dashboard does not accept requests from pages of {asked.origin!r}"
        if _is(asked.token, self.token) or (is_for_page and _is(asked.page_key, self.page_key)):
            return None
        return "wrong or missing token; open the address that `broadleaf dashboard` or `cluster.dashboard` shows"


def _is(given: str | None, secret: str) -> bool:
    return given is not None and hmac.compare_digest(given.encode(errors="surrogatepass"), secret.encode())
