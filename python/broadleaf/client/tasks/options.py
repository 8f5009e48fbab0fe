"""Task options as the controller takes them."""

from __future__ import annotations

import json
from dataclasses import dataclass

from broadleaf.client.tasks.dependency import DEFAULT_RULE, Rule
from broadleaf.requests import target_set


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """How to run a task; see the protocol type of the same name."""

    mode: str = "Balanced"
    """'Balanced': one task on whichever target is free; 'Each': one task per target."""
    targets: tuple[int, ...] | None = None
    """Engine ids in order, or None for every engine there is."""
    label: str = ""
    priority: int = 0
    retries: int = 0
    timeout_s: float | None = None
    """Maximum number of seconds that a task may run, and that its dependencies may take."""
    after: Rule = DEFAULT_RULE
    follow: Rule = DEFAULT_RULE
    coalesce: bool = False
    """All results of mode 'Each' arrive together."""
    topology: str = "auto"
    """How large arguments reach several hosts: 'auto', 'flat', 'binomial', 'chain', 'k-ary', or 'k-ary:3'."""

    def to_json(self) -> str:
        """The options in the form of the control protocol."""
        timeout_ns = None if self.timeout_s is None else int(self.timeout_s * 1e9)
        return json.dumps(
            {
                "mode": self.mode,
                "targets": target_set(self.targets),
                "label": self.label,
                "priority": self.priority,
                "retries": self.retries,
                "timeout_ns": timeout_ns,
                "dependency_timeout_ns": timeout_ns,
                "after": self.after.as_dict(),
                "follow": self.follow.as_dict(),
                "coalesce": self.coalesce,
                "topology": _topology(self.topology),
            }
        )


def _topology(name: str) -> str | dict[str, int]:
    known = {"auto": "Auto", "flat": "Flat", "binomial": "Binomial", "chain": "Chain"}
    if name in known:
        return known[name]
    kind, _, arity = name.partition(":")
    if kind == "k-ary" and (not arity or arity.isdigit()):
        return {"Kary": int(arity or 0)}
    raise ValueError(f"no topology is called {name!r}; there are {', '.join(known)}, k-ary and k-ary:ARITY")
