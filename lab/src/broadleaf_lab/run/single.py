"""Makes single runs and records them: what `run`, `compare`, `gate`, `sweep`, `tune` and `history` have in common."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broadleaf_lab.run.command import Checkout, Command, command_of
from broadleaf_lab.run.environments import machine
from broadleaf_lab.run.environments.environment import HERE, BuildFailed, Environments, Incompatible, Variant
from broadleaf_lab.run.interpreters import Unavailable
from broadleaf_lab.run.outcome import iteration_times_us, marginal_us, measure
from broadleaf_lab.run.process import Finished, run_command, run_directory
from broadleaf_lab.run.tasks import TasksByConfig
from broadleaf_lab.spec.factors import Config, config_id
from broadleaf_lab.spec.runs import Run, RunsFile

if TYPE_CHECKING:
    from broadleaf_lab.spec.study import StudySpec

BUSY_LIMIT_CORES = 0.5
MAX_WAIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Quiet:
    """Before each run, wait until fewer than `limit_cores` are busy with other things, at most `max_wait_s`. A run that
    is made nevertheless is flagged `busy`, and the next one waits at most half as long, until the machine was quiet
    again.
    """

    limit_cores: float = BUSY_LIMIT_CORES
    max_wait_s: float = MAX_WAIT_S


class Runner:
    """Runs configurations of a study on this machine, one at a time, with `n_tasks` tasks or as `tasks` says."""

    def __init__(
        self,
        environments: Environments,
        *,
        n_tasks: int,
        iterations: int = 1,
        quiet: Quiet | None = None,
        tasks: TasksByConfig | None = None,
    ) -> None:
        self.environments = environments
        self.study: StudySpec = environments.study
        self.n_tasks = n_tasks
        self.tasks: TasksByConfig | None = tasks
        self.iterations = iterations
        self.session_id: str = new_session_id()
        self.quiet: Quiet = quiet or Quiet()
        self._patience_s = self.quiet.max_wait_s
        self._told_busy = False
        # The length of the padding must differ from session to session too.
        self._rng = random.Random()

    def run(self, config: Config, variant: Variant = HERE, *, n_tasks: int | None = None) -> Run:
        """Makes one run. If it fails, the row says how; RunError is raised only if no run can be made at all."""
        quiet = self._wait()
        failed = self.try_out(config, variant) if n_tasks is None else None
        return failed or self._run(config, variant, n_tasks, quiet=quiet)

    def tasks_of(self, config: Config) -> int:
        """How many tasks a run of a configuration has; the minimum if it has its own number and was not run yet."""
        if self.tasks is None:
            return self.n_tasks
        return self.tasks.of(config_id(config, self.study.factors)) or self.tasks.minimum

    def try_out(self, config: Config, variant: Variant, cpus: Collection[int] | None = None) -> Run | None:
        """If configurations have their own numbers of tasks, runs one that was not run yet until its number is known.
        These runs are not kept, because their duration decided which is the last. Returns the one that failed, if any
        did.
        """
        key = config_id(config, self.study.factors)
        if self.tasks is None or self.tasks.of(key) is not None:
            return None
        n = self.tasks.minimum
        while True:
            trial = self._run(config, variant, n, quiet=True, cpus=cpus)
            if trial["status"] != "ok":
                return trial
            following = self.tasks.learn(key, trial)
            if following == n or trial["n_tasks"] != n:
                return None
            n = following

    def run_side_by_side(self, versions: Sequence[tuple[Config, Variant]]) -> list[Run]:
        """Makes a run of each version, all at once on one processor. The kernel runs them alternately for a few
        milliseconds, so that anything else that slows the machine down affects all of them alike: "duet benchmarking"
        (Bulej et al., ICPE 2020), on one processor instead of several, because neighbours of a virtual machine disturb
        each of its processors at different times. Their scores must count processor time. Raises RunError as `run`
        does.
        """
        quiet = self._wait()
        cpus = {max(os.sched_getaffinity(0))}
        # Versions of one configuration have the number of tasks of the first.
        for version in versions:
            self.try_out(*version, cpus=cpus)
        with ThreadPoolExecutor(len(versions)) as pool:
            return list(pool.map(lambda version: self._run(*version, quiet=quiet, cpus=cpus), versions))

    def run_pair(self, versions: Sequence[tuple[Config, Variant]]) -> Iterable[Run]:
        """Both versions of a comparison, in this order: at once if the study says so, otherwise in turn."""
        if self.environments.settings.side_by_side:
            return self.run_side_by_side(versions)
        return (self.run(*version) for version in versions)

    def run_turn(self, configs: Sequence[Config]) -> list[Run]:
        """A run of each configuration: one, or two at once if the study says so. A run without a partner then runs
        beside a copy of itself, so that it too has half a processor.
        """
        if not self.environments.settings.side_by_side:
            return [self.run(config) for config in configs]
        return self.run_side_by_side([(config, HERE) for config in (*configs, *configs)[:2]])[: len(configs)]

    def _run(
        self,
        config: Config,
        variant: Variant,
        n_tasks: int | None = None,
        *,
        quiet: bool,
        cpus: Collection[int] | None = None,
    ) -> Run:
        study = self.study
        n = n_tasks or self.tasks_of(config)
        row: Run = {
            "study": study.name,
            "session_id": self.session_id,
            "machine_id": machine.machine_id(),
            "config_id": config_id(config, study.factors),
            **_now(),
            "load1_before": machine.load1(),
            "cpu_mhz": machine.cpu_mhz(),
            "temp_c": machine.temperature_c(),
            "n_tasks": n,
            "duration_s": 0.0,
            "flags": "",
        }
        before, energy = machine.cpu_times(), machine.Energy.now()
        try:
            finished, place_facts = self.attempt(config, variant, n, cpus)
        except Unavailable as error:
            return row | {"status": "skipped", "error": str(error)}
        except Incompatible as error:
            return row | {"status": "invalid", "error": str(error)}
        except BuildFailed as error:
            return row | {"status": "failed", "error": str(error)}
        _, steal = machine.cpu_times().since(before)
        used_uj = energy.used_uj(machine.Energy.now())
        row |= place_facts | measure(study, finished, n) | {"steal_pct": 100 * steal}
        # Runs that share the machine have no share of its energy.
        if row["status"] == "ok" and used_uj is not None and cpus is None:
            row["energy_uj_per_task"] = used_uj / (row["n_tasks"] * row["n_iter"])
        if self.environments.settings.marginal and n_tasks is None and n >= 4 and row["status"] == "ok":
            row["marginal_us"] = marginal_us(row, self._run(config, variant, n // 4, quiet=quiet, cpus=cpus))
        if not quiet:
            row["flags"] = " ".join(filter(None, (row["flags"], "busy")))
        return row

    def _wait(self) -> bool:
        """Waits until the machine is quiet; returns whether it became quiet. On a machine that is never quiet, the
        waits become short.
        """
        if self.quiet.max_wait_s <= 0:
            return True
        quiet = machine.wait_until_quiet(self.quiet.limit_cores, self._patience_s, on_busy=self._say_busy)
        self._patience_s = self.quiet.max_wait_s if quiet else self._patience_s / 2
        return quiet

    def _say_busy(self, cores: float) -> None:
        if self._told_busy:
            return
        self._told_busy = True
        self.environments.say(
            f"the machine is busy: other processes use {cores:.1f} cores; waiting up to {self._patience_s:.0f} s "
            "until it is quiet, and less each time; runs that are made anyway are flagged `busy` (--max-busy, "
            "--max-wait)"
        )

    def attempt(
        self,
        config: Config,
        variant: Variant = HERE,
        n_tasks: int | None = None,
        cpus: Collection[int] | None = None,
    ) -> tuple[Finished, Run]:
        """The bare run, and the columns that say where it was made."""
        checkout = self.environments.checkout(config, variant)
        with run_directory() as run_dir:
            what = self._command(config, checkout, n_tasks or self.tasks_of(config), run_dir)
            finished = run_command(
                what.command, cwd=what.cwd, env=what.env, timeout_s=self.study.timeout_s, run_dir=run_dir, cpus=cpus
            )
        return finished, {"python": checkout.python.text, "git_sha": checkout.git_sha, "dirty": int(checkout.dirty)}

    def _command(self, config: Config, checkout: Checkout, n_tasks: int, run_dir: Path) -> Command:
        return command_of(
            self.study,
            self.environments.settings,
            config,
            checkout,
            n_tasks=n_tasks,
            iterations=self.iterations,
            run_dir=run_dir,
            rng=self._rng,
        )

    def can_run(self, config: Config, variant: Variant = HERE) -> bool:
        """Whether this machine has what the configuration needs, without running it."""
        try:
            checkout = self.environments.checkout(config, variant)
            with run_directory() as run_dir:
                self._command(config, checkout, self.tasks_of(config), run_dir)
        except (Unavailable, Incompatible, BuildFailed):
            return False
        return True

    def iteration_times_us(self, config: Config, variant: Variant = HERE) -> tuple[list[float], Finished]:
        """The scores of one run's iterations."""
        n = self.tasks_of(config)
        finished, _ = self.attempt(config, variant, n)
        return iteration_times_us(self.study, finished, n), finished


def record(
    runner: Runner,
    runs: RunsFile | None,
    config: Config,
    variant: Variant = HERE,
    *,
    on_run: Callable[[Run], None] | None = None,
    **columns: Any,
) -> Run:
    """Makes a run and appends it to `runs` with these additional columns (purpose, block, plan_row, ...)."""
    return keep(runner.run(config, variant), runs, config, on_run=on_run, **columns)


def keep(
    run: Run,
    runs: RunsFile | None,
    config: Config,
    *,
    on_run: Callable[[Run], None] | None = None,
    **columns: Any,
) -> Run:
    """Appends a completed run to `runs` with these additional columns."""
    row = {**columns, **run}
    if flags := " ".join(filter(None, (columns.get("flags"), row.get("flags")))):
        row["flags"] = flags
    if runs is not None:
        # The file may have one more factor than the study: the change that is being compared.
        row["config_id"] = config_id(config, runs.factors)
    kept = runs.append(row, config) if runs is not None else row
    if on_run is not None:
        on_run(kept)
    return kept


def new_session_id() -> str:
    """`s` and the time in hexadecimal: sessions sort by it."""
    return f"s{time.time_ns() // 1_000_000:x}"


def _now() -> Run:
    now = time.time()
    return {"started_at": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"), "started_unix": now}
