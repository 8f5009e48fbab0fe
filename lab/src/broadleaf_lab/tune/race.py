"""Decides between few configurations on fresh runs: a race, a confirmation, and the removal of what does not help."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from broadleaf_lab.analysis.multiplicity import holm
from broadleaf_lab.analysis.pairs.paired import Ratio, ratio, slower_p
from broadleaf_lab.spec.factors import Config, Level, changed
from broadleaf_lab.tune.meter import Meter
from broadleaf_lab.tune.surrogate import PairModel

_FIRST_DECISION = 4
_MIN_PAIRS = 3
_MODEL_PAIRS = 4
_ALPHA = 0.05
_LEAVE_OUT_SHARE = 0.6


@dataclass
class Blocks:
    """Configurations run side by side: each block runs all of them once, in random order."""

    meter: Meter
    purpose: str
    rng: np.random.Generator
    logs: dict[str, dict[int, float]] = field(default_factory=dict)
    failed: Counter[str] = field(default_factory=Counter)

    def run(self, configs: Sequence[Config]) -> None:
        """One block. A run that fails leaves a gap."""
        block = self.meter.new_block()
        for index in self.rng.permutation(len(configs)):
            trial = self.meter.measure(configs[index], self.purpose)
            if trial.time_us is None:
                self.failed[trial.config_id] += 1
            else:
                self.logs.setdefault(trial.config_id, {})[block] = trial.log

    def differences(self, one: Config, other: Config) -> list[float]:
        """Log time of `one` minus that of `other`, for every block that has both."""
        mine, its = (self.logs.get(self.meter.id_of(config), {}) for config in (one, other))
        return [mine[block] - its[block] for block in mine if block in its]

    def fails_more(self, config: Config, default: Config) -> bool:
        """Whether more runs of `config` failed than of the default."""
        return self.failed[self.meter.id_of(config)] > self.failed[self.meter.id_of(default)]

    def mean(self, config: Config) -> float:
        """Mean log time; infinite without a run."""
        logs = self.logs.get(self.meter.id_of(config), {})
        return math.fsum(logs.values()) / len(logs) if logs else math.inf


def race(
    meter: Meter, candidates: Sequence[Config], default: Config, n_runs: int, rng: np.random.Generator
) -> tuple[Config, int]:
    """The fastest of `candidates`, and the number of blocks run. After each block, those proven slower than the leader
    (paired t, Holm) leave, and so do those that failed more often than the default; the default stays to the end, and
    wins if it leads.
    """
    blocks = Blocks(meter, "race", rng)
    field_ = [config for config in candidates if meter.id_of(config) != meter.id_of(default)]
    spent = n_blocks = 0
    while field_ and spent + len(field_) + 1 <= n_runs:
        blocks.run([*field_, default])
        spent += len(field_) + 1
        n_blocks += 1
        field_ = [config for config in field_ if not blocks.fails_more(config, default)]
        if n_blocks < _FIRST_DECISION:
            continue
        leader = min([*field_, default], key=blocks.mean)
        rivals = [config for config in field_ if config is not leader]
        beaten = holm([slower_p(blocks.differences(rival, leader)) for rival in rivals])
        out = [rival for rival, p in zip(rivals, beaten, strict=True) if p <= _ALPHA]
        field_ = [config for config in field_ if all(config is not gone for gone in out)]
        if len(field_) <= 1:
            break
    return min([*field_, default], key=blocks.mean), n_blocks


def confirm(meter: Meter, winner: Config, default: Config, n_pairs: int, rng: np.random.Generator) -> Ratio:
    """The winner's time over the default's, on fresh pairs of runs."""
    blocks = Blocks(meter, "confirm", rng)
    for _ in range(max(2, n_pairs)):
        blocks.run([winner, default])
    return ratio(blocks.differences(winner, default))


@dataclass(frozen=True, slots=True)
class Kept:
    """One setting of the winner: its time without the setting over its time with it (None: the budget was used up
    before), and whether the setting stays.
    """

    factor: str
    level: Level
    benefit: Ratio | None
    kept: bool


@dataclass(frozen=True, slots=True)
class Ablation:
    """What is left of a winner, and what was found out about each of its settings."""

    config: dict[str, Level]
    settings: tuple[Kept, ...]


def simplified(meter: Meter, winner: Config, model: PairModel, rope: float) -> Config:
    """The winner without placebos, and without settings that the model predicts to do nothing beside the others: where
    two do the same, the nicer one stays. Fresh runs are to confirm what is left.
    """
    settings = changed(winner, meter.factors)
    idle = [factor.name for factor in meter.factors if factor.kind == "placebo" and factor.name in settings]
    here = (_reset(meter, winner, idle) if idle else None) or winner
    for name in sorted((name for name in settings if name not in idle), key=lambda name: -_tier(meter, name)):
        fewer = _reset(meter, winner, [*idle, name])
        if fewer is not None and model.cost(fewer) - model.cost(here) < rope / 2:
            idle.append(name)
            here = fewer
    return here


def ablate(
    meter: Meter, winner: Config, model: PairModel, rope: float, n_runs: int, rng: np.random.Generator
) -> Ablation:
    """Resets every setting without a proven benefit of at least `rope` (a log ratio), in at most `n_runs` runs.

    Each setting is left out in turn beside the winner, in common blocks. Settings that are not proven are first reset
    together; if that turns out to lose more than `rope`, because some can replace each other, they are reset one at a
    time. If there are too few runs for all, those with the smallest predicted benefit are judged.
    """
    default: dict[str, Level] = {factor.name: factor.default for factor in meter.factors}
    settings = changed(winner, meter.factors)
    without = {name: config for name in settings if (config := _reset(meter, winner, [name])) is not None}
    loss = {name: model.cost(config) - model.cost(winner) for name, config in without.items()}
    # If losses are equal, the setting that costs features is removed first.
    order = sorted(without, key=lambda name: (round(loss[name] / rope), -_tier(meter, name)))
    for_blocks = round(_LEAVE_OUT_SHARE * n_runs)
    order = order[: max(0, for_blocks // _MIN_PAIRS - 1)]
    if not order:
        return Ablation(dict(winner), tuple(Kept(name, level, None, True) for name, level in settings.items()))
    n_blocks = for_blocks // (len(order) + 1)
    blocks = Blocks(meter, "ablate", rng)
    for _ in range(n_blocks):
        blocks.run([winner, *(without[name] for name in order)])
    benefit = {name: ratio(blocks.differences(without[name], winner)) for name in order}
    unproven = [name for name in order if not _proven(benefit[name], rope)]
    dropped = _drop(meter, winner, unproven, rope, n_runs - n_blocks * (len(order) + 1), rng)
    final = (_reset(meter, winner, dropped) if dropped else None) or dict(winner)
    kept = tuple(Kept(name, settings[name], benefit.get(name), final[name] != default[name]) for name in settings)
    return Ablation(final, kept)


def _tier(meter: Meter, name: str) -> int:
    """The tier of a factor."""
    return next(factor.tier for factor in meter.factors if factor.name == name)


def _drop(
    meter: Meter, winner: Config, unproven: list[str], rope: float, n_runs: int, rng: np.random.Generator
) -> list[str]:
    """Which of `unproven` can be removed together."""
    together = _reset(meter, winner, unproven) if unproven else None
    if together is None:
        return []
    # The runs beside the winner have taught the model most about it.
    model = PairModel(meter.factors, meter.explored())
    n_pairs = min(12, n_runs // 4)
    if _loss(meter, model, together, winner, n_pairs, rng) < rope:
        return unproven
    n_pairs = min(8, (n_runs - 2 * n_pairs) // (2 * len(unproven)))
    dropped: list[str] = []
    here: Config = winner
    for name in unproven:
        fewer = _reset(meter, winner, [*dropped, name])
        if fewer is not None and _loss(meter, model, fewer, here, n_pairs, rng) < rope:
            dropped.append(name)
            here = fewer
    return dropped


def _loss(meter: Meter, model: PairModel, fewer: Config, more: Config, n_pairs: int, rng: np.random.Generator) -> float:
    """What `fewer` settings lose, as a log ratio: from `n_pairs` fresh pairs and the model, which counts as a few
    pairs.
    """
    blocks = Blocks(meter, "ablate", rng)
    for _ in range(n_pairs):
        blocks.run([fewer, more])
    found = blocks.differences(fewer, more)
    expected = model.cost(fewer) - model.cost(more)
    return (math.fsum(found) + _MODEL_PAIRS * expected) / (len(found) + _MODEL_PAIRS)


def _proven(benefit: Ratio, rope: float) -> bool:
    return benefit.n >= 2 and benefit.low > 1 and math.log(benefit.estimate) >= rope


def _reset(meter: Meter, config: Config, names: Sequence[str]) -> dict[str, Level] | None:
    """`config` with these factors at their defaults; None if that is not possible."""
    defaults: Mapping[str, Level] = {f.name: f.default for f in meter.factors if f.name in names}
    found = meter.constraints.settle({**config, **defaults})
    return found if meter.constraints.allows(found) else None
