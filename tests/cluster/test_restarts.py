"""When a controller that has ended is started again, and when not any more."""

from __future__ import annotations

from itertools import pairwise

import pytest
from broadleaf.cluster.restarts import Restarts


def starts(restarts: Restarts, lives_s: list[float | None], now: float = 1000.0) -> list[float]:
    """When a controller is started that then is up for these times, or does not start where that is None."""
    times = []
    restarts.ended(now, "the first end")
    for life_s in lives_s:
        if restarts.why_given_up:
            break
        now += restarts.pause_s(now)
        times.append(now)
        if life_s is not None:
            restarts.came_up(now)
            now += life_s
        restarts.ended(now, f"end {len(times)}")
    return times


def test_the_first_start_is_at_once_and_each_next_one_waits_longer():
    times = starts(Restarts(), [0.0] * 4)
    assert times[0] == 1000.0
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert all(0 < first < second for first, second in pairwise(pauses)), pauses


@pytest.mark.parametrize("life_s", [0.0, 5.0, 59.0, None])
def test_a_controller_that_always_ends_is_given_up_with_the_last_reason(life_s):
    restarts = Restarts()
    assert len(starts(restarts, [life_s] * 20)) == 5
    assert restarts.why_given_up.startswith("it was started 5 times")
    assert restarts.why_given_up.endswith("end 5")


def test_one_that_was_up_for_a_minute_has_all_its_starts_again():
    restarts = Restarts()
    lives = [0.0, 0.0, 0.0, 0.0, 60.0]
    times = starts(restarts, lives * 6)
    assert len(times) == 30
    assert not restarts.why_given_up
    assert times[5] - times[4] == 60.0, "at once, since it had lasted"


@pytest.mark.parametrize("life_s", [0.0, 0.1, 11.0, 59.0, 60.0, 61.0])
def test_there_are_at_most_five_starts_in_any_minute(life_s):
    times = starts(Restarts(), [life_s, 0.0, life_s, 0.0] * 10)
    assert len(times) >= 5
    assert all(sum(one <= other < one + 60 for other in times) <= 5 for one in times), times


def test_what_cannot_be_is_given_up_at_once():
    restarts = Restarts()
    restarts.ended(0.0, "it was killed")
    assert not restarts.why_given_up
    restarts.give_up("there is no journal")
    assert restarts.why_given_up == "there is no journal"
