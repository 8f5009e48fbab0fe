"""Runs of systems whose truth is known, made with numpy alone, without the laboratory.

A system is a sum on the scale of ln(time): an effect for each level of each factor and, for pairs, a table of what two
levels do together beyond that. Tables are centred over the levels, so that the effect of a level over the default,
averaged over all other factors, is the difference of two entries of the factor's own table.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

SHAPES = ("plateau", "step", "peak", "monotone")


@dataclass(frozen=True)
class Truth:
    """`levels` are those of each factor, the default first; `effects` a value for each of them, `pairs` a table of the
    levels of two factors. Factors of more than two levels are numbers on a log2 scale."""

    levels: dict[str, tuple]
    effects: dict[str, np.ndarray]
    pairs: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)
    through: dict[str, np.ndarray] = field(default_factory=dict)
    """The part of `effects` that a factor has because it changes the work of a run."""
    triples: dict[tuple[str, str, str], np.ndarray] = field(default_factory=dict)

    def mean(self, config: dict[str, object]) -> float:
        """The logarithm of the time of a configuration, less a constant."""
        at = {name: levels.index(config[name]) for name, levels in self.levels.items()}
        tables = {**{(name,): table for name, table in self.effects.items()}, **self.pairs, **self.triples}
        return float(sum(table[tuple(at[name] for name in names)] for names, table in tables.items()))

    def effect_at(self, name: str, level: object, config: dict[str, object]) -> float:
        """The effect of a level over the default in one configuration of the other factors."""
        return self.mean({**config, name: level}) - self.mean({**config, name: self.levels[name][0]})

    @property
    def baseline(self) -> dict[str, object]:
        """All defaults."""
        return {name: levels[0] for name, levels in self.levels.items()}

    def effect(self, name: str, level: object) -> float:
        """The average effect of a level over the default."""
        table = self.effects[name]
        return float(table[self.levels[name].index(level)] - table[0])

    def interaction(self, a: str, b: str, a_level: object, b_level: object) -> float:
        """The difference of differences of two levels over their defaults."""
        if (b, a) in self.pairs:
            a, b, a_level, b_level = b, a, b_level, a_level
        table = self.pairs.get((a, b))
        if table is None:
            return 0.0
        i, j = self.levels[a].index(a_level), self.levels[b].index(b_level)
        return float(table[i, j] - table[i, 0] - table[0, j] + table[0, 0])


@dataclass(frozen=True)
class Noise:
    """`sd` of a run on the scale of ln(time); `tail` the mean of an exponential added to it; `outliers` the share of
    runs that take `outlier_factor` times as long; `unequal` how much more the runs of a treated first flag spread;
    `block_sd` of the blocks of `block` runs; `drift` the change over the session; `wander` the size of a disturbance
    that changes slowly, over tens of runs, and moves only the runs with the first flag on; `doubled` the share of these
    that take twice as long. Missing runs: `missing` of all,
    `missing_treated` of those with the first flag on, `missing_slow` of the slower half. `work` is by how much the work
    of runs varies by itself, with their time; the column `work` is then in the rows."""

    sd: float = 0.05
    tail: float = 0.0
    outliers: float = 0.0
    outlier_factor: float = 3.0
    unequal: float = 1.0
    block: int = 16
    block_sd: float = 0.02
    drift: float = 0.0
    missing: float = 0.0
    missing_treated: float = 0.0
    missing_slow: float = 0.0
    work: float = 0.0
    wander: float = 0.0
    doubled: float = 0.0


def curve(shape: str, n: int, height: float = 0.2) -> np.ndarray:
    """The effects of the levels of a number: a fall at the first step and then nothing, a fall half way, the best in
    the middle, or ever less."""
    at = np.arange(n) / (n - 1)
    shapes = {
        "plateau": -(at > 0).astype(float),
        "step": -(at >= 0.5).astype(float),
        "peak": -np.exp(-(((at - at[n // 2]) / 0.2) ** 2)),
        "monotone": -np.sqrt(at),
    }
    return height * shapes[shape]


def flags(rng: np.random.Generator, count: int, pairs: int = 3, size: float = 0.12) -> Truth:
    """`count` flags of which a third have an effect, and `pairs` pairs among them that interact by `size`."""
    names = [f"f{number}" for number in range(count)]
    effects = {}
    for place, name in enumerate(names):
        effect = rng.choice((-1.0, 1.0)) * rng.uniform(0.05, 0.3) if place < max(2, count // 3) else 0.0
        effects[name] = np.array([-0.5, 0.5]) * effect
    every = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    chosen = rng.permutation(len(every))[:pairs]
    tables = {every[int(i)]: rng.choice((-1.0, 1.0)) * size * np.outer([-0.5, 0.5], [-0.5, 0.5]) for i in chosen}
    return Truth(dict.fromkeys(names, (False, True)), effects, tables)


def threeway(rng: np.random.Generator, count: int, pairs: int = 2, size: float = 0.2) -> Truth:
    """Flags with pairs, and three of them that together do `size` more or less than their pairs say."""
    known = flags(rng, count, pairs)
    names = tuple(known.levels)[:3]
    half = np.array([-0.5, 0.5])
    table = rng.choice((-1.0, 1.0)) * size * half[:, None, None] * half[:, None] * half
    return replace(known, triples={names: table})


def numbers(shape: str, count: int, others: int = 4, pair: float = 0.1) -> Truth:
    """A number of `count` levels with a curve of `shape`, beside flags; the curve is less steep where the first flag is
    on, by `pair` at its deepest, and no other two factors interact."""
    levels = (0, *(4**power for power in range(1, count)))
    table = curve(shape, count)
    effects = {"number": table, **{f"f{i}": np.array([-0.5, 0.5]) * (-0.1 if i % 2 else 0.05) for i in range(others)}}
    known = {"number": levels, **{f"f{i}": (False, True) for i in range(others)}}
    if not pair:
        return Truth(known, effects)
    bent = np.outer(table / -0.2 * pair, [-0.5, 0.5])
    return Truth(known, effects, {("number", "f0"): bent - bent.mean(axis=0)})


def along_paths(truth: Truth, count: int, rng: np.random.Generator, share: float = 2 / 3) -> dict[str, np.ndarray]:
    """The levels of the first `count` runs of a plan of flags in which `share` of the blocks are paths: all factors
    turned on one after the other, in random order. The other blocks are random. All have a run with every flag off and
    one with every flag on.
    """
    k = len(truth.levels)
    made: list[np.ndarray] = []
    while sum(map(len, made)) < count:
        if rng.random() < share:
            position = rng.permutation(k)
            block = (position[None, :] < np.arange(k + 1)[:, None]).astype(int)
        else:
            block = np.vstack([rng.integers(0, 2, (k - 1, k)), np.zeros((1, k), int), np.ones((1, k), int)])
        made.append(rng.permutation(block))
    return dict(zip(truth.levels, np.vstack(made)[:count].T, strict=True))


def runs(
    truth: Truth, count: int, noise: Noise, rng: np.random.Generator, design: str = "random"
) -> list[dict[str, object]]:
    """Rows as runs.csv has them, in blocks: each factor's levels equally often and in random order, or with `design`
    "paths" those of `along_paths`; missing runs are not there."""
    if design == "paths":
        columns = along_paths(truth, count, rng)
        noise = replace(noise, block=len(truth.levels) + 1)
    else:
        columns = {name: rng.permutation(np.arange(count) % len(levels)) for name, levels in truth.levels.items()}
    y = np.full(count, np.log(500.0))
    for name, index in columns.items():
        y += truth.effects[name][index]
    for (a, b), table in truth.pairs.items():
        y += table[columns[a], columns[b]]
    for (a, b, c), table in truth.triples.items():
        y += table[columns[a], columns[b], columns[c]]
    clean = y.copy()
    block = np.arange(count) // noise.block
    y += noise.block_sd * rng.standard_normal(block[-1] + 1)[block]
    at = np.arange(count) / max(count - 1, 1)
    y += noise.drift * (at + 0.5 * np.sin(2 * np.pi * at))
    flag = next(name for name, levels in truth.levels.items() if len(levels) == 2)
    treated = columns[flag] == 1
    y += noise.sd * np.where(treated, noise.unequal, 1.0) * rng.standard_normal(count)
    y += rng.exponential(noise.tail, count) if noise.tail else 0.0
    y += np.where(rng.random(count) < noise.outliers, np.log(noise.outlier_factor), 0.0)
    if noise.wander:
        steps = noise.wander * rng.standard_normal(count)
        for i in range(1, count):
            steps[i] = 0.95 * steps[i - 1] + np.sqrt(1 - 0.95**2) * steps[i]
        y += np.where(treated, steps, 0.0)
    y += np.where(treated & (rng.random(count) < noise.doubled), np.log(2.0), 0.0)
    work = np.zeros(count)
    if noise.work:
        work = noise.work * rng.standard_normal(count)
        y += work
        for name, table in truth.through.items():
            work += table[columns[name]]
    lost = noise.missing + noise.missing_treated * treated + noise.missing_slow * (clean > np.median(clean))
    there = rng.random(count) >= lost
    return [
        {
            "status": "ok",
            "time_per_task_us": float(np.exp(y[i])),
            "started_unix": 4.0 * i,
            "block": int(block[i]),
            **({"work": float(1e6 * np.exp(work[i]))} if noise.work else {}),
            **{name: _cell(truth.levels[name][index[i]]) for name, index in columns.items()},
        }
        for i in np.flatnonzero(there).tolist()
    ]


def _cell(level: object) -> object:
    return int(level) if isinstance(level, bool) else level


def scenarios() -> dict[str, tuple[object, int, Noise, str]]:
    """By name: the truth (or a function of a random generator that gives one), the number of runs, the noise, and the
    design of `runs`."""
    found: dict[str, tuple[object, int, Noise, str]] = {}
    plain = Noise()
    for count in (4, 6):
        for shape in SHAPES:
            found[f"{shape}-{count}"] = (numbers(shape, count), 160, plain, "random")
    found["plateau-4-alone"] = (numbers("plateau", 4, pair=0.0), 160, plain, "random")
    for factors in (6, 12, 20):
        for size in (60, 100, 150, 300):
            found[f"few-{factors}x{size}"] = (_few(factors), size, plain, "random")
    kinds = {
        "tail": Noise(sd=0.03, tail=0.05),
        "outliers": Noise(outliers=0.03),
        "unequal": Noise(unequal=3.0),
        "drift": Noise(drift=0.2),
        "missing": Noise(missing=0.2),
        "missing-treated": Noise(missing_treated=0.4),
        "missing-slow": Noise(missing_slow=0.4),
    }
    for name, noise in kinds.items():
        found[f"{name}-8x160"] = (_few(8), 160, noise, "random")
        found[f"{name}-12x100"] = (_few(12), 100, noise, "random")
        found[f"{name}-plateau-4"] = (numbers("plateau", 4), 160, replace(noise), "random")
    found["dense-12x100"] = (lambda rng: flags(rng, 12, pairs=12), 100, plain, "random")
    found["dense-8x160"] = (lambda rng: flags(rng, 8, pairs=12), 160, plain, "random")
    found["threeway-12x100"] = (lambda rng: threeway(rng, 12), 100, plain, "random")
    found["threeway-8x160"] = (lambda rng: threeway(rng, 8), 160, plain, "random")
    for size in (60, 100, 150, 250):
        found[f"paths-12x{size}"] = (_few(12), size, plain, "paths")
    found["wander-8x160"] = (_few(8), 160, Noise(wander=0.1), "random")
    found["doubled-8x160"] = (_few(8), 160, Noise(doubled=0.1), "random")
    return found


def _few(factors: int) -> object:
    return lambda rng: flags(rng, factors)
