"""The text that Prometheus reads."""

import json
import re

import pytest
from broadleaf.cli.prometheus import CLUSTER, ENGINE, HOST, exposition
from broadleaf.cluster import Cluster

_HELP = re.compile(r"# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) (\S.*)")
_TYPE = re.compile(r"# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram|summary|untyped)")
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*"'
_SAMPLE = re.compile(rf"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{({_LABEL}(?:,{_LABEL})*)\}})? (\S+)")
# Figures that identify the process, instead of counting something.
_NO_FIGURES = {"pid", "engine", "host"}


def parsed(text):
    """Samples by name and labels; fails on anything that the format does not allow."""
    assert text.endswith("\n")
    assert not text.startswith("\n")
    samples, kinds, helped, current = {}, {}, set(), None
    for line in text.splitlines():
        if found := _HELP.fullmatch(line):
            assert found[1] not in helped, f"{found[1]} has two HELP lines"
            helped.add(found[1])
            current = None
        elif found := _TYPE.fullmatch(line):
            assert found[1] not in kinds, f"the samples of {found[1]} are not together"
            assert found[1] in helped
            kinds[found[1]], current = found[2], found[1]
        else:
            found = _SAMPLE.fullmatch(line)
            assert found is not None, line
            assert found[1] == current, f"{found[1]} stands under {current}"
            labels = re.findall(_LABEL, found[2] or "")
            names = [label.partition("=")[0] for label in labels]
            assert len(set(names)) == len(names)
            key = (found[1], frozenset(labels))
            assert key not in samples, f"{line} comes twice"
            samples[key] = float(found[3])
            if kinds[current] == "counter":
                assert current.endswith("_total")
                assert samples[key] >= 0
            else:
                assert not current.endswith("_total")
            assert not re.search(r"_(ns|us|ms|s|mb|kb|percent)(_total)?$", current), f"{current} is not in base units"
    assert helped == set(kinds)
    return samples


def figures(status, prefix=""):
    """Keys of all numbers of a status."""
    for name, value in status.items():
        if isinstance(value, dict):
            yield from figures(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and name not in _NO_FIGURES:
            yield prefix + name


HOST_STATUS = {
    "host": 1, "name": 'a "b" \\c', "listen": "10.0.0.2:1", "round_trip_ns": 120_000, "bytes_per_s": 1e8,
    "draining": False, "ends_in_s": 60.0,
    "fetched": {"objects": 2, "wire_bytes": 10, "resumptions": 0, "resumed_at_bytes": 0, "corrupt_chunks": 0,
                "last_ns": 5_000_000},
}  # fmt: skip


@pytest.fixture(scope="module")
def status():
    """The status of a cluster that has done something, and that has another host."""
    cluster = Cluster(n=2)
    with cluster as rc:
        rc[:].apply_sync(int)
        found = cluster.status_sync()
    return found | {"hosts": [HOST_STATUS]}


def test_a_strict_reader_takes_it(status):
    samples = parsed(exposition(status))
    cluster = f'cluster="{status["cluster_id"]}"'
    assert samples["broadleaf_clients", frozenset({cluster})] == 1
    assert samples["broadleaf_tasks_resolved_total", frozenset({cluster, 'outcome="ok"'})] == 2
    assert samples["broadleaf_engine_up", frozenset({cluster, 'engine="0"'})] == 1
    seconds = samples["broadleaf_engine_busy_seconds_total", frozenset({cluster, 'engine="1"'})]
    assert seconds == pytest.approx(status["engines"][1]["busy_ns"] / 1e9)
    host = frozenset({cluster, r'host="a \"b\" \\c"'})
    assert samples["broadleaf_host_round_trip_seconds", host] == pytest.approx(120e-6)


def test_every_figure_of_a_status_is_there(status):
    whole = {name: value for name, value in status.items() if name not in ("engines", "hosts")}
    for metrics, subject in ((CLUSTER, whole), (ENGINE, status["engines"][0]), (HOST, HOST_STATUS)):
        assert {metric.key for metric in metrics} == set(figures(subject))


def test_one_name_has_one_meaning():
    for metrics in (CLUSTER, ENGINE, HOST):
        for metric in metrics:
            assert {(other.kind, other.help) for other in metrics if other.name == metric.name} == {
                (metric.kind, metric.help)
            }


def test_a_status_of_another_version_loses_only_what_it_lacks(status):
    older = json.loads(json.dumps(status))
    del older["controller"]["steals"], older["hosts"]
    names = {name for name, _ in parsed(exposition(older))}
    assert "broadleaf_steals_total" not in names
    assert "broadleaf_tasks_submitted_total" in names
