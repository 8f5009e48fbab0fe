"""An engine: a plain Python process with a namespace.

`fork_server` forks the processes of a host: the node, and `fork_service`, which forks engines and looks after them and
their `guests`. `__main__` is an engine in an interpreter of its own, and `rank` one in an MPI rank. All of them call
`run_engine` of `main`, whose tasks use `namespace`, `output`, `interactive` and `surroundings`. The client calls
`operations` by name. Nothing is imported here, because a fork server loads only the native module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broadleaf.extensions import old_attribute

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return old_attribute("broadleaf.engine", name)
