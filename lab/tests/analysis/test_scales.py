"""Numbers that can be: no time falls by more than 100 %, whatever the scale, and none is not a number."""

import io
import re

import numpy as np
import pytest

pytest.importorskip("scipy")

from broadleaf_lab.analysis import frame as frames
from broadleaf_lab.analysis.summary import summarise
from broadleaf_lab.cli.analysis.analyse import _effects, _remarks
from broadleaf_lab.spec.factors import Factor


def multiplied(seed, n=120):
    """Flags that multiply: on a scale of sums their predictions fall below zero somewhere."""
    rng = np.random.default_rng([21, seed])
    on = rng.integers(0, 2, (n, 6))
    us = (
        1000
        * np.prod(np.where(on, [0.15, 0.3, 0.5, 1.0, 2.5, 1.0], 1.0), axis=1)
        * np.exp(0.05 * rng.standard_normal(n))
    )
    factors = [Factor(f"f{i}", "flag") for i in range(6)]
    rows = [
        {"status": "ok", "time_per_task_us": float(t), "started_unix": 4.0 * i, "block": i // 16,
         **{f.name: int(v) for f, v in zip(factors, row, strict=True)}}
        for i, (t, row) in enumerate(zip(us, on, strict=True))
    ]  # fmt: skip
    return factors, frames.load(rows, factors)


@pytest.mark.parametrize("scale", ["us", "rate", "log"])
@pytest.mark.parametrize("seed", range(3))
def test_no_number_is_impossible(scale, seed):
    from rich.console import Console

    factors, frame = multiplied(seed)
    found = summarise(factors, frame, scale)
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(_effects(found, "us", str))
    text = "\n".join([console.export_text(), *(v.sentence for v in found.verdicts), *_remarks(found)])
    assert "nan" not in text
    assert not [x for x in re.findall(r"[-\u2212](\d+(?:\.\d+)?)(?: %| to [^%\n]*%)", text) if float(x) > 100]
    for listed in found.effects.values():
        assert all(e.ratio_low >= 0 and not e.ratio <= 0 for e in listed)
