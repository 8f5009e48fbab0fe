"""The time of day that tasks are stamped with."""

import time

from broadleaf import _native


def test_it_is_the_time_of_day_and_never_goes_back():
    times = [_native.wall_ns() for _ in range(10_000)]
    assert times == sorted(times)
    begin_ns, now_ns, end_ns = time.time_ns(), _native.wall_ns(), time.time_ns()
    # Less than what is taken for a step of the system's clock.
    assert begin_ns - 5_000_000 < now_ns < end_ns + 5_000_000
