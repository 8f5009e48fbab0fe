"""How figures are written."""

import pytest
from broadleaf_lab.text import duration, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (3e-7, "300 ns"), (0.2264, "226 ms"), (59.9, "59.9 s"), (59.96, "1 min"), (336, "5 min 36 s"),
     (3600, "1 h"), (273_600, "3 d 4 h")],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("n_bytes", "text"), [(0, "0 B"), (999, "999 B"), (64e6, "64 MB"), (1.12e6, "1.12 MB")])
def test_sizes(n_bytes: float, text: str) -> None:
    assert size(n_bytes) == text
