"""What a task may be given: retries, a timeout, an abort, and the tasks and places that it depends on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from broadleaf.client.results.async_result import AsyncResult
from broadleaf.errors import InvalidDependency
from broadleaf.requests import target_set

if TYPE_CHECKING:
    from broadleaf.client.protocols import Client


# Dependencies between tasks (`after`, `follow`).


@dataclass(frozen=True, slots=True)
class Rule:
    """When a set of dependencies counts as met."""

    all: bool = True
    success: bool = True
    failure: bool = False

    def as_dict(self) -> dict[str, bool]:
        """The rule in the form of the control protocol."""
        return {"all": self.all, "success": self.success, "failure": self.failure}


DEFAULT_RULE = Rule()


class Dependency(set[str]):
    """A set of task ids with a rule: all of them or any, succeeded or failed.

    With the defaults (all, success only), a task that depends on one that fails is refused with `ImpossibleDependency`
    as soon as that one has failed.

    Args:
        dependencies: Results or task ids, one or several; or what `as_dict` returns.
        all: Whether all of them must be done; otherwise one is enough.
        success: Whether a task that returned counts.
        failure: Whether a task that did not return counts.

    Raises:
        ValueError: Neither `success` nor `failure` is set.
        TypeError: One of them is neither a result nor an id.

    Example:
        >>> view = rc.load_balanced_view()
        >>> started = [view.apply_async(abs, n) for n in (-1, -2)]
        >>> with view.temp_flags(after=ipp.Dependency(started, all=False, failure=True)):
        ...     view.apply_sync(abs, -3)
        3
    """

    def __init__(
        self,
        dependencies: Iterable[str | AsyncResult] | AsyncResult | str | dict[str, Any] = (),
        all: bool = True,
        success: bool = True,
        failure: bool = False,
    ) -> None:
        if isinstance(dependencies, dict):
            all = dependencies.get("all", all)
            success = dependencies.get("success", success)
            failure = dependencies.get("failure", failure)
            dependencies = dependencies.get("dependencies", [])
        if isinstance(dependencies, str | AsyncResult):
            dependencies = [dependencies]
        if not (success or failure):
            raise ValueError("Must depend on at least one of successes or failures!")
        self.all: bool = all
        self.success: bool = success
        self.failure: bool = failure
        self.results: list[AsyncResult] = []
        ids: list[str] = []
        for dependency in dependencies:
            if isinstance(dependency, str):
                ids.append(dependency)
            elif isinstance(dependency, AsyncResult):
                self.results.append(dependency)
                ids.extend(dependency.msg_ids)
            else:
                raise TypeError(f"invalid dependency type: {type(dependency)!r}")
        super().__init__(ids)

    __hash__ = None

    @property
    def rule(self) -> Rule:
        """The rule alone."""
        return Rule(self.all, self.success, self.failure)

    def check(self, completed: Iterable[str], failed: Iterable[str] | None = None) -> bool:
        """Whether it is met.

        Args:
            completed: Ids of the tasks that returned.
            failed: Ids of the tasks that did not return.

        Returns:
            True if these meet the rule.
        """
        if not self:
            return True
        against = set(completed) if self.success else set()
        if failed is not None and self.failure:
            against |= set(failed)
        return self <= against if self.all else not self.isdisjoint(against)

    def unreachable(self, completed: Iterable[str], failed: Iterable[str] | None = None) -> bool:
        """Whether it can no longer be met.

        Args:
            completed: Ids of the tasks that returned.
            failed: Ids of the tasks that did not return.

        Returns:
            True if the rule can no longer be met.
        """
        if not self:
            return False
        against = set() if self.success else set(completed)
        if failed is not None and not self.failure:
            against |= set(failed)
        return not self.isdisjoint(against) if self.all else self <= against

    def as_dict(self) -> dict[str, Any]:
        """The ids and the rule as a dict that `Dependency` takes.

        Returns:
            A dict of 'dependencies', 'all', 'success' and 'failure'.
        """
        return {"dependencies": list(self), **self.rule.as_dict()}


def is_dependency(value: Any) -> bool:
    """Whether `value` may be given as `after` or `follow`."""
    if value is None or isinstance(value, str | AsyncResult | Dependency):
        return True
    if isinstance(value, dict):
        return set(value) == {"dependencies", "all", "success", "failure"}
    return isinstance(value, list | set | tuple) and all(isinstance(d, str | AsyncResult) for d in value)


def resolve_dependency(value: Any, client: Client) -> tuple[tuple[int, ...], Rule]:
    """Numbers of the tasks it depends on, and the rule. Raises `InvalidDependency` for ids that are not this
    client's."""
    if not value:
        return (), DEFAULT_RULE
    rule = value.rule if isinstance(value, Dependency) else DEFAULT_RULE
    if isinstance(value, dict):
        value = Dependency(value)
        rule = value.rule
    if isinstance(value, str | AsyncResult):
        value = [value]
    seqs: list[int] = []
    for dependency in value:
        if isinstance(dependency, AsyncResult):
            if dependency.origin.client is not client:
                raise InvalidDependency("a task cannot depend on a task of another client")
            seqs.extend(owner._part_seq(part) for owner, part in dependency.parts())
        else:
            seq = client.tasks.seq_of(dependency)
            if seq is None:
                raise InvalidDependency(f"{dependency!r} is not the id of one of this client's tasks")
            seqs.append(seq)
    return tuple(dict.fromkeys(seqs)), rule


# Task options as the controller takes them.


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
    raise ValueError(f"unknown topology {name!r}; choose one of {', '.join(known)}, k-ary or k-ary:ARITY")
