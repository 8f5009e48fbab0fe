"""Figures of the controller's decisions."""

from broadleaf.bench.record import OURS

from benchmarks.core import FIGURES, records_of

LINE = (
    '{"case": "core", "tasks": "short", "engines": 4, "kept_results_bytes": 0, "ns_per_task": [300, 280], '
    '"engine_visits_per_task": [1.5, 1.5]}'
)


def test_each_figure_of_a_line_is_a_record_with_all_its_runs():
    time, visits = records_of([LINE])
    assert [time.metric, visits.metric] == list(FIGURES)
    assert (time.peer, time.case, time.values, time.unit) == (OURS, "core", [300, 280], "ns")
    assert time.params == visits.params == {"tasks": "short", "engines": 4, "kept_results_bytes": 0}
    assert visits.median == 1.5
