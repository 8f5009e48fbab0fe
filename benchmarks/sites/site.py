"""A site: its hosts, and how to run a program on the host that engines are started from."""

import json
import os
import tempfile
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

#: Where an adapter finds the site to measure on.
VARIABLE = "BROADLEAF_BENCH_SITE"


@dataclass(frozen=True)
class Site:
    """Hosts with a scheduler whose nodes have the same names, which log in to each other by SSH without a password."""

    hosts: tuple[str, ...]
    #: A folder that all hosts see, as home directories are at most sites.
    shared: str
    #: Prefix that runs a command on the host that engines are started from; None for this host.
    login: tuple[str, ...] = ()
    #: Address of that host, for systems that do not find it by themselves.
    address: str = ""

    def text(self) -> str:
        return json.dumps(asdict(self))

    def fresh_folder(self) -> Path:
        """A new folder that all hosts see."""
        Path(self.shared).mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="bench-", dir=self.shared))

    @classmethod
    def here(cls) -> "Site":
        """The site of this process, according to its environment."""
        return cls.parse(json.loads(os.environ[VARIABLE]))

    @classmethod
    def read(cls, path: Path) -> "Site":
        """The site that a TOML file describes. Raises ValueError that says what is wrong with it."""
        return cls.parse(tomllib.loads(path.read_text()))

    @classmethod
    def parse(cls, found: dict[str, object]) -> "Site":
        hosts, shared = found.get("hosts"), found.get("shared")
        login, address = found.get("login", []), found.get("address", "")
        unknown = found.keys() - {"hosts", "shared", "login", "address"}
        if unknown:
            raise ValueError(f"a site has no {', '.join(sorted(unknown))}; it has hosts, shared, login and address")
        if not isinstance(hosts, list) or not hosts or not isinstance(shared, str) or not isinstance(login, list):
            raise ValueError(
                'a site has hosts = ["n1", ...], shared = "a folder that all of them see", and where engines are not '
                'started from this host, login = ["command", ...]'
            )
        return cls(tuple(map(str, hosts)), shared, tuple(map(str, login)), str(address))
