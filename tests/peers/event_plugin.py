"""pytest plugin: one line of JSON to PEER_EVENTS as each test starts and as each of its phases ends."""

import json
import os

_file = open(os.environ["PEER_EVENTS"], "a", buffering=1)  # noqa: SIM115


def _write(**event):
    _file.write(json.dumps(event) + "\n")


def _text(report):
    """Why a phase did not pass."""
    if isinstance(report.longrepr, tuple):  # of a skipped test: path, line, reason
        return report.longrepr[2]
    return report.longreprtext if report.longrepr else ""


def pytest_runtest_logstart(nodeid, location):
    _write(event="start", id=nodeid)


def pytest_runtest_logreport(report):
    _write(
        event="phase",
        id=report.nodeid,
        phase=report.when,
        outcome=report.outcome,
        xfail=getattr(report, "wasxfail", None),
        seconds=round(report.duration, 3),
        text=_text(report),
        stderr=report.capstderr[-1500:] if report.failed else "",
    )


def pytest_runtest_logfinish(nodeid, location):
    _write(event="finish", id=nodeid)


def pytest_collectreport(report):
    if report.failed:
        _write(event="collect", id=report.nodeid, text=report.longreprtext)
    elif report.skipped:
        _write(event="collect-skip", id=report.nodeid, text=str(report.longrepr))
