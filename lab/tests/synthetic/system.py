"""Systems whose truth is known: what an analysis finds in their runs can be compared with it.

The truth is a sum of effects and pair interactions on one scale, at the baseline's corner (a factor counts 0 at its
default, and its effect at another level). `seedlike()` has the numbers of the published study this laboratory follows:
1182 us per task untreated, 61 us with everything, two logging treatments of which the second adds little, one that
turns from help to harm as the system gets faster, and a placebo.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from broadleaf_lab.spec.factors import Config, Factor, Level, column_value, config_id
from broadleaf_lab.spec.runs import COLUMNS
from broadleaf_lab.spec.study import DesignSpec
from broadleaf_lab.study import Study

if TYPE_CHECKING:
    import numpy as np
    from broadleaf_lab.designs.plan import Plan

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class SyntheticSystem:
    """A system that takes the time that its truth defines, with the given noise.

    `effects` has the effect of a factor being at its treated level, or a map of levels to effects; `pairs` what is
    added when two factors both have an effect (a factor with levels: in proportion to its effect over that of its last
    level). The sum is ln(us) on scale "log", microseconds on "us", tasks per second on "rate". `noise` is the standard
    deviation of a run, relative (on "us" and "rate" relative to the baseline); `tail` the mean of an exponential added
    to ln(us); `outliers` the fraction of runs that take `outlier_factor` times as long. `drift_linear` is the fraction
    by which time grows over `span_s`, `drift_daily` the amplitude of a daily sine.
    """

    factors: tuple[Factor, ...]
    base_us: float
    effects: Mapping[str, float | Mapping[Level, float]] = field(default_factory=dict)
    pairs: Mapping[tuple[str, str], float] = field(default_factory=dict)
    scale: Literal["log", "us", "rate"] = "log"
    noise: float = 0.05
    tail: float = 0.0
    outliers: float = 0.0
    outlier_factor: float = 3.0
    drift_linear: float = 0.0
    drift_daily: float = 0.0
    start_unix: float = 0.0
    span_s: float = 3600.0
    kinds: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """What the planted pairs are, in the words of the analysis."""
    constraints: Mapping[str, str] = field(default_factory=dict)

    def effect(self, factor: str, level: Level) -> float:
        """The effect of one factor at a level, all others at their default, on the truth's scale."""
        planted = self.effects.get(factor, 0.0)
        if isinstance(planted, Mapping):
            return planted.get(level, 0.0)
        return planted if level != self._factor(factor).default else 0.0

    def _factor(self, name: str) -> Factor:
        return next(factor for factor in self.factors if factor.name == name)

    def _weight(self, name: str, config: Config) -> float:
        factor = self._factor(name)
        if config[name] == factor.default:
            return 0.0
        planted = self.effects.get(name)
        if not isinstance(planted, Mapping):
            return 1.0
        full = planted.get(factor.on, 0.0)
        return planted.get(config[name], 0.0) / full if full else 1.0

    @property
    def base(self) -> float:
        """The baseline on the truth's scale."""
        return {"log": math.log(self.base_us), "us": self.base_us, "rate": 1e6 / self.base_us}[self.scale]

    def truth(self, config: Config) -> float:
        """The truth of a configuration on its scale."""
        total = self.base + sum(self.effect(f.name, config[f.name]) for f in self.factors)
        for (one, other), amount in self.pairs.items():
            weight = self._weight(one, config)
            if weight:
                total += amount * weight * self._weight(other, config)
        return total

    def mean_us(self, config: Config) -> float:
        """Microseconds per task without noise or drift (with noise on the log scale: the median)."""
        return self._us(self.truth(config))

    def _us(self, value: float) -> float:
        if self.scale == "log":
            return math.exp(value)
        return max(value, 1e-3) if self.scale == "us" else 1e6 / max(value, 1e-3)

    def contrast(self, factor: str, context: Config, level: Level | None = None) -> float:
        """The effect of a factor in a context, on the truth's scale."""
        treated = self._factor(factor)
        high = {**context, factor: treated.on if level is None else level}
        return self.truth(high) - self.truth({**context, factor: treated.default})

    def average_effect(self, factor: str) -> float:
        """The effect of an off/on factor averaged over the levels of all others, on the truth's scale."""
        rest = sum(amount / 2 for pair, amount in self.pairs.items() if factor in pair)
        return self.effect(factor, self._factor(factor).on) + rest

    def interaction(self, one: str, other: str) -> float:
        """What is added when both are applied, on the truth's scale."""
        return self.pairs.get((one, other), self.pairs.get((other, one), 0.0))

    def drift(self, unix_time: float) -> float:
        """The factor by which everything is slower at a time."""
        elapsed = unix_time - self.start_unix
        return (
            1 + self.drift_linear * elapsed / self.span_s + self.drift_daily * math.sin(math.tau * unix_time / _DAY_S)
        )

    def time_us(self, config: Config, rng: np.random.Generator, unix_time: float) -> float:
        """Microseconds per task of one run."""
        value = self.truth(config)
        spread = self.noise * (1.0 if self.scale == "log" else self.base)
        time = self._us(value + (float(rng.normal(0.0, spread)) if spread else 0.0))
        if self.tail:
            time *= math.exp(float(rng.exponential(self.tail)))
        if self.outliers and float(rng.random()) < self.outliers:
            time *= self.outlier_factor
        return time * self.drift(unix_time)

    def best(self) -> dict[str, Level]:
        """The fastest configuration, found by trying every one; for off/on factors without constraints, at most 20."""
        import numpy as np

        names = [f.name for f in self.factors]
        if len(names) > 20 or self.constraints or not all(f.is_bool for f in self.factors):
            raise ValueError("best() tries every configuration of at most 20 off/on factors without constraints")
        codes = np.arange(2 ** len(names))
        bits = {name: (codes >> i & 1).astype(bool) for i, name in enumerate(names)}
        total = np.zeros(len(codes))
        for factor in self.factors:
            total += np.where(bits[factor.name], self.effect(factor.name, factor.on), 0.0)
        for (one, other), amount in self.pairs.items():
            total += amount * (bits[one] & bits[other])
        index = int(np.argmax(total) if self.scale == "rate" else np.argmin(total))
        return {name: bool(bits[name][index]) for name in names}

    def study(self, directory: Path = Path(), name: str = "synthetic", **design: Any) -> Study:
        """A study of this system; `design` are fields of its DesignSpec."""
        return Study(
            name=name,
            callable="answers:run",
            score="wall/n",
            factors=self.factors,
            constraints=self.constraints,
            design=DesignSpec(noise_pct=100 * self.noise, **design),
            directory=directory,
        )


def simulate(
    plan: Plan,
    system: SyntheticSystem,
    seed: int,
    start_unix: float = 1_700_000_000.0,
    seconds_per_run: float = 4.0,
) -> list[dict[str, Any]]:
    """The rows of runs.csv that result from running `plan` on `system`; linear drift spans the whole session."""
    return list(_simulated(plan, system, seed, start_unix, seconds_per_run))


def _simulated(
    plan: Plan, system: SyntheticSystem, seed: int, start_unix: float, seconds_per_run: float
) -> Iterator[dict[str, Any]]:
    import numpy as np

    rng = np.random.default_rng(seed)
    system = replace(system, start_unix=start_unix, span_s=max(len(plan.rows) * seconds_per_run, 1.0))
    for index, row in enumerate(plan.rows):
        started = start_unix + index * seconds_per_run
        time_us = system.time_us(row.config, rng, started)
        n_tasks = 10_000
        total_s = time_us * n_tasks / 1e6
        yield dict.fromkeys(COLUMNS) | {
            "run_id": f"r{index + 1:06d}",
            "study": plan.study_name,
            "session_id": f"s{seed}",
            "machine_id": "synthetic",
            "block": row.block,
            "order_in_block": row.order_in_block,
            "plan_row": row.row,
            "purpose": row.purpose,
            "path_id": row.path_id,
            "path_step": row.path_step,
            "replicate": row.replicate,
            "config_id": config_id(row.config, system.factors),
            "started_at": datetime.fromtimestamp(started, UTC).isoformat(timespec="milliseconds"),
            "started_unix": started,
            "duration_s": min(total_s, seconds_per_run),
            "status": "ok",
            "exit_code": 0,
            "error": None,
            "time_per_task_us": time_us,
            "marginal_us": None,
            "tasks_per_s": 1e6 / time_us,
            "total_s": total_s,
            "submit_us": None,
            "latency_p50_us": None,
            "latency_p99_us": None,
            "n_tasks": n_tasks,
            "n_iter": 1,
            "iter_sd_us": None,
            "cpu_us_per_task": None,
            "max_rss_kb": None,
            "bytes_written": None,
            "ctx_switches": None,
            "python": None,
            "git_sha": None,
            "dirty": None,
            "load1_before": None,
            "cpu_mhz": None,
            "temp_c": None,
            "steal_pct": None,
            "flags": None,
            **{f.name: column_value(row.config[f.name]) for f in system.factors},
        }


def _keyword(name: str, tier: int = 1, loses: str = "") -> Factor:
    return Factor(name, "keyword", tier=tier, loses=loses, setting={"keyword": name})


def two_level(
    effects: Mapping[str, float],
    pairs: Mapping[tuple[str, str], float] | None = None,
    base_us: float = 1000.0,
    **options: Any,
) -> SyntheticSystem:
    """A system of off/on factors with these effects and pair interactions; `options` are fields of the system."""
    factors = tuple(Factor(name, "placebo") if name == _PLACEBO else _keyword(name) for name in effects)
    return SyntheticSystem(factors, base_us, dict(effects), dict(pairs or {}), **options)


_BASE_US, _ALL_ON_US = 1182.0, 61.0
_NO_LOG, _NO_LINES = "cfg_no_init_logging", "src_submit_biglogs_remove"
_PYTHON, _AFFINITY, _PLACEBO = "python313t_nogil_jit", "affinity", "placebo"
_SAVED_BY_NO_LOG_US, _SAVED_BY_NO_LINES_US, _LOST_TOGETHER_US = 577.0, 491.0, 358.0

# Name, tier, what it loses, ln of its effect at the baseline. Python's follows from the rest and the end point.
_SEEDLIKE: tuple[tuple[str, int, str, float], ...] = (
    (_NO_LOG, 3, "no log file", math.log(1 - _SAVED_BY_NO_LOG_US / _BASE_US)),
    (_NO_LINES, 4, "17 log lines less", math.log(1 - _SAVED_BY_NO_LINES_US / _BASE_US)),
    (_PYTHON, 1, "", 0.0),
    (_AFFINITY, 1, "", -0.16),
    ("cfg_prefetch_100", 1, "", -0.30),
    ("cfg_poll_100", 1, "", -0.14),
    ("src_interchange_longer_poll", 2, "", -0.11),
    ("cfg_rundir_ramfs", 1, "", -0.28),
    ("src_lazy_logs", 2, "", -0.14),
    ("src_pool_logs_remove", 4, "no log lines of the workers", -0.06),
    ("cfg_worker_debug_off", 3, "no debug lines of the workers", -0.18),
    ("src_danger_no_dict_proxy", 4, "no check of results", -0.08),
    ("cfg_2_blocks", 1, "", -0.10),
    ("cfg_4_workers", 1, "", -0.18),
    ("src_no_eager_repr", 2, "", -0.22),
    ("app_big", 1, "", 0.0),
    ("env_sched_batch", 1, "", -0.05),
    (_PLACEBO, 1, "", 0.0),
)
_SEEDLIKE_PAIRS: dict[tuple[str, str], float] = {
    # Whichever of them comes first takes most of the cost of logging; so do the ways to make it cheaper.
    (_NO_LOG, "cfg_rundir_ramfs"): 0.16,
    (_NO_LOG, "src_lazy_logs"): 0.09,
    (_NO_LOG, "src_no_eager_repr"): 0.08,
    (_NO_LINES, "cfg_rundir_ramfs"): 0.08,
    (_NO_LINES, "src_lazy_logs"): 0.05,
    (_NO_LINES, "src_no_eager_repr"): 0.05,
    # One poll loop, slowed down twice.
    ("cfg_poll_100", "src_interchange_longer_poll"): 0.11,
    # Helps while the processes compete for cores, hinders once they are quick.
    (_NO_LOG, _AFFINITY): 0.18,
    (_PYTHON, _AFFINITY): 0.04,
    # Matters more the faster the rest is.
    (_NO_LOG, "cfg_prefetch_100"): -0.12,
    (_PYTHON, "cfg_prefetch_100"): -0.12,
    (_PYTHON, "cfg_worker_debug_off"): -0.06,
    ("cfg_2_blocks", "cfg_4_workers"): -0.05,
    # Makes things slower if the workers write little anyway.
    ("src_pool_logs_remove", "cfg_worker_debug_off"): 0.15,
    (_NO_LOG, "src_pool_logs_remove"): -0.10,
}
_SEEDLIKE_KINDS = {
    (_NO_LOG, _NO_LINES): "either-or",
    ("cfg_poll_100", "src_interchange_longer_poll"): "either-or",
    (_NO_LOG, _AFFINITY): "sign-flip",
    ("src_pool_logs_remove", "cfg_worker_debug_off"): "sign-flip",
    (_NO_LOG, "cfg_prefetch_100"): "synergistic",
    (_PYTHON, "cfg_prefetch_100"): "synergistic",
    ("cfg_2_blocks", "cfg_4_workers"): "synergistic",
    (_NO_LOG, "cfg_rundir_ramfs"): "antagonistic",
}


def seedlike(noise: float = 0.05, **options: Any) -> SyntheticSystem:
    """The published study as a system: 17 treatments and a placebo.

    At the baseline the two logging treatments save 577 and 491 us, and both 358 us less than their sum; everything
    applied takes 61 us. `options` are other fields of the system.
    """
    effects = {name: effect for name, _, _, effect in _SEEDLIKE}
    both_us = _BASE_US - _SAVED_BY_NO_LOG_US - _SAVED_BY_NO_LINES_US + _LOST_TOGETHER_US
    logging = math.log(both_us / _BASE_US) - effects[_NO_LOG] - effects[_NO_LINES]
    pairs = {(_NO_LOG, _NO_LINES): logging, **_SEEDLIKE_PAIRS}
    effects[_PYTHON] = math.log(_ALL_ON_US / _BASE_US) - sum(effects.values()) - sum(pairs.values())
    factors = tuple(
        Factor(name, "placebo", tier=tier) if name == _PLACEBO else _keyword(name, tier, loses)
        for name, tier, loses, _ in _SEEDLIKE
    )
    return SyntheticSystem(factors, _BASE_US, effects, pairs, noise=noise, kinds=dict(_SEEDLIKE_KINDS), **options)
