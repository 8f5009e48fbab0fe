"""Runs a case: every system in turn in each repeat, each turn in a process of its own."""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from . import sizes, table
from .cases import Case, Session, Step
from .record import OURS, RAW, Record, ratio_interval, skipped
from .turn import Place, System, Turn, TurnFailed

# A step that takes longer than this is repeated at most that many times.
REPEAT_LIMITS = ((60.0, 1), (20.0, 3))
#: What a step measured: one or more figures per metric.
Values = dict[str, float | list[float]]
#: System, case, its parameters as JSON, metric.
Key = tuple[str, str, str, str]


def frozen(params: dict[str, Any]) -> str:
    return json.dumps(params)


def _shown(params: dict[str, Any]) -> str:
    own = table.settings(params, own=True)
    return ", ".join(filter(None, (table.settings(params), own)))


class Run:
    """One case over several systems, which alternate in this order. The bare machine, if it is among them, takes its
    turn only where the case asks for it.
    """

    def __init__(
        self,
        case: Case,
        systems: Mapping[str, System],
        workers: int,
        repeats: int,
        quick: bool,
        say: Callable[[str], None],
        place: Place | None = None,
    ) -> None:
        self.case: Case = case
        self.place: Place | None = place
        self.systems: Mapping[str, System] = systems
        self.quick: bool = quick
        self.say: Callable[[str], None] = say
        self.sessions: list[Session] = case.sessions(workers, repeats, quick)
        self.repeats = repeats
        self.versions: dict[str, str] = {}
        self.configs: dict[str, list[str]] = {}
        self.values: defaultdict[Key, list[float]] = defaultdict(list)
        self.failures: dict[tuple[str, str, str], Record] = {}
        #: How often a step may be run in all, if it turned out to be slow.
        self.limits: dict[tuple[str, str, str], int] = {}

    def records(self) -> Iterator[Record]:
        """Runs everything, then returns the figures in the order in which they were first taken."""
        self._describe()
        raw_steps = self.case.raw(self.quick)
        if not self.sessions:
            self._rounds(raw_steps, None, self.repeats)
        for index, session in enumerate(self.sessions):
            self._rounds(raw_steps if index == 0 else [], session, session.repeats)
        if self.case.name == "sleep-map":
            self._against_plain_sleep()
        if self.case.floor is not None:
            self._beyond_raw(*self.case.floor)
        found = [
            Record(system, self.versions[system], name, json.loads(params), metric, values)
            for (system, name, params, metric), values in self.values.items()
        ]
        yield from found
        if self.case.name == "sizes":
            yield from sizes.ratios(found)
        if self.case.name == "overhead":
            yield from self._overheads()
        yield from self.failures.values()

    def _child(self, name: str, workers: int) -> Turn:
        return Turn(self.systems[name], workers, self.place)

    def _describe(self) -> None:
        """Versions and settings; an unavailable system is left out, with a record that says why."""
        for name in self.systems:
            try:
                with self._child(name, 1) as turn:
                    known = turn.ask({"do": "describe"})
            except TurnFailed as error:
                self._fail(name, self.case.name, {}, str(error))
                continue
            self.versions[name] = known["version"]
            self.configs[name] = known["configs"].get(self.case.name, known["configs"][""])

    def _rounds(self, raw_steps: list[Step], session: Session | None, repeats: int) -> None:
        excluded = set(self.systems) - {OURS} if session and session.only_ours else {RAW}
        takers = [(name, c) for name in self.systems if name not in excluded for c in self.configs.get(name, ())]
        for repeat in range(repeats):
            if raw_steps and RAW in self.versions:
                self._turn(RAW, "", Session(0, raw_steps, repeats), repeat)
            if session is not None:
                # A failed step is not tried again: it may have taken minutes.
                takers = [(name, config) for name, config in takers if self._turn(name, config, session, repeat)]

    def _turn(self, name: str, config: str, session: Session, repeat: int) -> bool:
        """One repeat of one system; returns whether it could be started and finished."""
        shown: dict[str, Any] = {"workers": session.workers, "config": config} if session.workers else {}
        done: set[tuple[str, str, str]] = set()
        while True:
            settled_before = len(self.failures) + len(done)
            try:
                with self._child(name, max(1, session.workers)) as turn:
                    ready_s = turn.start(session.workers, config)
                    if self.case.times_start and session.workers:
                        self._add(name, self.case.name, shown, {"ready": ready_s}, repeat)
                    for step in session.steps:
                        self._step(turn, name, shown, step, repeat, done)
            except TurnFailed as error:
                # A step that killed its process is not tried again, and neither are steps that ended before it; the
                # others continue in a new process.
                if len(self.failures) + len(done) > settled_before:
                    continue
                self._fail(name, self.case.name, shown, str(error))
                return False
            return True

    def _step(
        self,
        turn: Turn,
        name: str,
        shown: dict[str, Any],
        step: Step,
        repeat: int,
        done: set[tuple[str, str, str]],
    ) -> None:
        route = {"route": step.params["route"]} if "route" in step.params else {}
        modes = turn.ask({"do": "modes", "case": step.case} | route)["modes"]
        if not modes:
            self._fail(name, step.name, shown | step.params, "the system has no way of doing this")
        for mode in modes[:1] if step.first_mode_only else modes:
            chosen = {"mode": mode} if mode else {}
            params = shown | chosen | step.params
            which = (name, step.case, frozen(params))
            has_failed = (name, step.name, frozen(params)) in self.failures
            if has_failed or which in done or repeat >= self.limits.get(which, repeat + 1):
                continue
            begin = time.monotonic()
            try:
                values = turn.run(step.case, step.params | step.arguments | chosen, step.timeout_s)
            except TurnFailed as error:
                self._fail(name, step.name, params, str(error))
                if not turn.usable:
                    raise
                continue
            spent = time.monotonic() - begin
            for limit_s, times in REPEAT_LIMITS:
                if spent > limit_s:
                    self.limits.setdefault(which, times)
                    break
            self._add(name, step.name, params, values, repeat)
            done.add(which)

    def _add(self, name: str, case: str, params: dict[str, Any], values: Values, repeat: int) -> None:
        figures = []
        for metric, found in values.items():
            several = found if isinstance(found, list) else [found]
            self.values[name, case, frozen(params), metric].extend(several)
            figures.append(table.figure(Record(name, "", case, params, metric, list(several))))
        self.say(f"{repeat + 1}  {name:<12} {case:<10} {_shown(params):<60} {', '.join(figures)}")

    def _fail(self, name: str, case: str, params: dict[str, Any], why: str) -> None:
        if (
            self.failures.setdefault((name, case, frozen(params)), skipped(name, "", case, params, why)).note
            == why[:400]
        ):
            self.say(f"-  {name:<12} {case:<10} {_shown(params):<60} skipped: {why}")

    def _against_plain_sleep(self) -> None:
        """Efficiency against the same sleeps in one plain process, round by round."""
        plain = {
            json.loads(params)["ms"]: values
            for (name, _, params, metric), values in self.values.items()
            if name == RAW and metric == "sleep"
        }
        for (name, case, params, metric), values in list(self.values.items()):
            known = json.loads(params)
            if case == "sleep-map" and metric == "elapsed" and known["ms"] in plain:
                self.values[name, case, params, "efficiency_of_plain"] = [
                    known["n"] * sleep_ms / 1e3 / known["workers"] / elapsed
                    for elapsed, sleep_ms in zip(values, plain[known["ms"]], strict=False)
                ]

    def _beyond_raw(self, metric: str, raw_step: str, raw_metric: str) -> None:
        """What a figure of every system has beyond that of the bare one, round by round."""
        raw = [
            (json.loads(params), values)
            for (name, case, params, taken), values in self.values.items()
            if (name, case, taken) == (RAW, raw_step, raw_metric)
        ]
        for (name, case, params, taken), values in list(self.values.items()):
            if taken != metric or case != self.case.name or name == RAW:
                continue
            known = json.loads(params)
            for of_raw, floor in raw:
                if table.same_settings(of_raw, known):
                    self.values[name, case, params, "beyond_raw"] = [a - b for a, b in zip(values, floor, strict=False)]

    def _overheads(self) -> Iterator[Record]:
        """Ratios of throughput with a setting to throughput without it, with a 95 % interval as min and max."""
        for (name, case, params, metric), with_it in list(self.values.items()):
            if metric != "rate_with":
                continue
            without = self.values[name, case, params, "rate_without"]
            yield Record(
                name,
                self.versions[name],
                case,
                json.loads(params),
                "rate_ratio",
                list(ratio_interval(with_it, without)),
                f"median of the ratios of {len(with_it)} pairs; min and max are its 95 % bootstrap interval",
            )
