"""Durations, sizes and numbers as people read them."""

import pytest
from broadleaf.text import count, duration, number, parse_size, readable_unit, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (5e-8, "50 ns"), (2.2e-4, "220 us"), (0.2256, "226 ms"), (0.99999, "1 s"), (2.0512, "2.05 s"),
        (59.96, "1 min"), (65, "1 min 5 s"), (300, "5 min"), (320.4, "5 min 20 s"), (3600, "1 h"), (3720, "1 h 2 min"),
        (3601, "1 h"), (86400 * 3 + 3600 * 4 + 5, "3 d 4 h"),
    ],
)  # fmt: skip
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 B"), (9.96, "10 B"), (999, "999 B"), (999.6, "1 kB"), (64_000_000, "64 MB"), (4.096e9, "4.1 GB")],
)
def test_sizes(n_bytes, text):
    assert size(n_bytes) == text


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [("64000000", 64_000_000), ("64MB", 64_000_000), ("64 MiB", 64 << 20), ("1.5G", 1_500_000_000), ("10 b", 10)],
)
def test_sizes_are_read(text, n_bytes):
    assert parse_size(text) == n_bytes


@pytest.mark.parametrize("text", ["", "x", "-1", "5iB", "64 MBit", "1e6"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="is not a size such as"):
        parse_size(text)


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (2847, "us", "2.85 ms"), (0.02, "ms", "20 us"), (12_345, "tasks/s", "12,345 tasks/s"),
        (0.5, "GB/s", "500 MB/s"), (4_096, "bytes", "4.1 kB"), (0, "us", "0 us"), (90_000, "s", "90,000 s"),
        (1.5, "ratio", "1.5 ratio"),
    ],
)  # fmt: skip
def test_figures_get_a_unit_with_few_digits(value, unit, shown):
    factor, found = readable_unit(value, unit)
    assert f"{number(value * factor)} {found}" == shown


def test_counts():
    assert [count(n, "engine") for n in (0, 1, 2, 12_000)] == [
        "0 engines", "1 engine", "2 engines", "12,000 engines"
    ]  # fmt: skip
