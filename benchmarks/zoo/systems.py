"""The systems a workload can run on, by the adapters of the benchmarks. Each is imported only when it is used, so only
Python and Broadleaf are needed.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import NamedTuple

from broadleaf.bench.record import OURS
from broadleaf.bench.turn import SYSTEMS as OWN
from broadleaf.bench.workload.adapter import Adapter

from benchmarks.environments import PEERS

# The module of each system's library.
_LIBRARIES = {
    OURS: "broadleaf", "ppe": "concurrent.futures", "threads": "concurrent.futures", "loky": "loky",
    "dask": "distributed", "ray": "ray", "parsl": "parsl", "ipyparallel": "ipyparallel",
}  # fmt: skip
SYSTEMS = tuple(_LIBRARIES)


class System(NamedTuple):
    """A system that can run here."""

    name: str
    adapter: Adapter

    def start(self, engines: int) -> None:
        """Returns once `engines` engines have run a task, with the first setting of the benchmarks."""
        self.adapter.start(engines, self.adapter.configs[""][0])


def available() -> list[str]:
    """Names of the systems that can be imported here."""
    return [name for name, library in _LIBRARIES.items() if importlib.util.find_spec(library)]


def make_system(name: str) -> System:
    """The system `name`; `ValueError` says which there are, or that its library is missing."""
    if name not in SYSTEMS:
        raise ValueError(f"no system is called {name!r}; there are {', '.join(SYSTEMS)}")
    if name not in available():
        raise ValueError(f"{name} is not installed here; run this in an environment that has {_LIBRARIES[name]!r}")
    known = {"threads": "benchmarks.peers.threads"} | {one.name: one.adapter for one in (OWN | PEERS).values()}
    return System(name, importlib.import_module(known[name]).Peer())
