"""From a run's output and resource usage to the figures of its row."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

from broadleaf_lab.errors import StudyFileError
from broadleaf_lab.run.process import Finished, last_words
from broadleaf_lab.spec.runs import Run
from broadleaf_lab.spec.study import StudySpec

_US = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6, "nanoseconds": 1e-3, "microseconds": 1.0, "milliseconds": 1e3,
       "sec": 1e6, "secs": 1e6, "second": 1e6, "seconds": 1e6}  # fmt: skip
_COPIED = ("marginal_us", "submit_us", "latency_p50_us", "latency_p99_us")


class Invalid(Exception):
    """A run that ended well but gave no usable score."""


def measure(study: StudySpec, finished: Finished, n_tasks: int) -> Run:
    """The columns that say how a run ended, its score and what it used. A failure is in `status` and `error`."""
    row: Run = {
        "duration_s": finished.duration_s,
        "exit_code": finished.exit_code,
        "n_tasks": n_tasks,
        "max_rss_kb": finished.max_rss_kb,
        "bytes_written": finished.bytes_written,
        "ctx_switches": finished.ctx_switches,
        "page_faults": finished.page_faults,
        "flags": "stragglers" if finished.stragglers else "",
    }
    if finished.error:
        return row | {"status": "failed", "error": finished.error}
    if finished.timed_out:
        return row | {"status": "timeout", "error": f"killed after {study.timeout_s:g} s. {last_words(finished)}"}
    if finished.exit_code != 0:
        return row | {"status": "failed", "error": last_words(finished) or f"exit code {finished.exit_code}"}
    document = last_json(finished.stdout)
    n = _whole(document.get("n_tasks")) or n_tasks
    try:
        times, total_s = _times(study, finished, document, n)
    except Invalid as error:
        return row | {"status": "invalid", "error": str(error)}
    # The first iteration warms up caches and connections.
    kept = times[1:] if len(times) > 1 else times
    us = statistics.median(kept)
    row |= {
        "status": "ok",
        "error": "",
        "time_per_task_us": us,
        "tasks_per_s": 1e6 / us,
        "total_s": total_s,
        "n_tasks": n,
        "n_iter": len(times),
        "iter_sd_us": statistics.stdev(kept) if len(kept) > 1 else None,
        "cpu_us_per_task": finished.cpu_s * 1e6 / (n * len(times)),
    }
    row |= {f"{name}_per_task": count / (n * len(times)) for name, count in finished.counters.items()}
    for name in (*_COPIED, *study.responses):
        if isinstance(value := document.get(name), int | float) and not isinstance(value, bool):
            row[name] = float(value)
    return row


def iteration_times_us(study: StudySpec, finished: Finished, n_tasks: int) -> list[float]:
    """The score of each iteration of a run, for the variance pilot."""
    document = last_json(finished.stdout)
    return _times(study, finished, document, _whole(document.get("n_tasks")) or n_tasks)[0]


def marginal_us(whole: Mapping[str, Any], quarter: Mapping[str, Any]) -> float | None:
    """The cost of one more task: the slope between a run and one with a quarter of its tasks, free of start-up."""
    if whole.get("status") != "ok" or quarter.get("status") != "ok":
        return None
    more = whole["n_tasks"] - quarter["n_tasks"]
    return (whole["total_s"] - quarter["total_s"]) * 1e6 / more if more > 0 else None


def last_json(text: str) -> dict[str, Any]:
    """The last line that is a JSON object, or the whole text if that is one; empty if neither is."""
    for candidate in (*reversed(text.splitlines()), text):
        if candidate.strip().startswith("{"):
            try:
                found = json.loads(candidate)
            except ValueError:
                continue
            if isinstance(found, dict):
                return found
    return {}


def _times(study: StudySpec, finished: Finished, document: Mapping[str, Any], n: int) -> tuple[list[float], float]:
    """Microseconds per task of each iteration, and the seconds they took together."""
    parts = document.get("iterations")
    if isinstance(parts, list) and parts and all(isinstance(part, dict) for part in parts):
        times = [_score(study, finished, part, n) for part in parts]
        spans = [part["total_s"] for part in parts if isinstance(part.get("total_s"), int | float)]
        return times, float(sum(spans)) if len(spans) == len(parts) else finished.duration_s
    total = document.get("total_s")
    return [_score(study, finished, document, n)], float(total) if isinstance(
        total, int | float
    ) else finished.duration_s


def _score(study: StudySpec, finished: Finished, document: Mapping[str, Any], n: int) -> float:
    kind, _, what = study.score.partition(":")
    if study.score == "wall/n":
        if study.command is None and _is_number(document.get("time_per_task_us")):
            return _checked(document["time_per_task_us"], "what the function returned")
        total_s = document.get("total_s")
        wall_s = float(total_s) if isinstance(total_s, int | float) else finished.duration_s
        return _checked(wall_s * 1e6 / n, "the duration")
    if kind == "json":
        if what not in document:
            names = ", ".join(document) or "no JSON object was printed"
            raise Invalid(f"the output has no JSON key {what!r} ({names})")
        return _in_us(study, document[what], what)
    if kind == "regex":
        # The last match, like the last line of JSON: earlier output may be progress.
        match = deque(re.finditer(what, finished.stdout, re.MULTILINE), maxlen=1)
        if not match:
            raise Invalid(f"nothing in the output matches {what!r}: {last_words(finished)}")
        return _in_us(study, match[0][1] if match[0].re.groups else match[0][0], what)
    raise StudyFileError(
        f"study {study.name!r}", f"score {study.score!r} is not valid.", "Use json:KEY, regex:... or wall/n."
    )


def _in_us(study: StudySpec, value: object, name: str) -> float:
    """A score in microseconds per task. A rate, of which more is better, is replaced by its reciprocal, so that less is
    better in every table.
    """
    number = _checked(value, repr(name))
    if study.direction == "max":
        return 1e6 / number
    # A name whose last word is not a unit is assumed to be in microseconds.
    return number * _US.get(re.split(r"[_\W]+", name.lower())[-1], 1.0)


def _checked(value: object, name: str) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise Invalid(f"{name} is not a number: {value!r}") from None
    if not 0 < number < math.inf:
        raise Invalid(f"{name} is {number:g}; a score must be above 0 and finite")
    return number


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
