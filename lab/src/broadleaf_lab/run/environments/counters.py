"""Whether this machine counts what a study wants to adjust for."""

from __future__ import annotations

import sys

from broadleaf_lab.run.environments import machine
from broadleaf_lab.run.process import clean_environment, run_command, run_directory
from broadleaf_lab.run.supervisor import HARDWARE_COUNTERS
from broadleaf_lab.spec.study import StudySpec

_USERS_MAY_COUNT = 2
_LIMIT_S = 60.0


def lacking(study: StudySpec) -> str:
    """Why the study's covariate will be missing in runs of this machine, and what to do; empty if it will not be."""
    name = study.covariate or ""
    counter = name.removesuffix("_per_task")
    if name == "energy_uj_per_task":
        if machine.Energy.now().used_uj(machine.Energy.now()) is not None:
            return ""
        why, remedy = "its kernel shows no energy counter that you may read", ""
    elif counter not in HARDWARE_COUNTERS or counter in _counted():
        return ""
    else:
        limit = machine.read_text("/proc/sys/kernel/perf_event_paranoid")
        if limit.lstrip("-").isdigit() and int(limit) > _USERS_MAY_COUNT:
            why = f"its kernel lets no user count (perf_event_paranoid is {limit})"
            remedy = f"`sysctl kernel.perf_event_paranoid={_USERS_MAY_COUNT}`, or "
        else:
            why, remedy = "its processor shows no such counter, as in most virtual machines", ""
    return (
        f"covariate {name}: this machine does not have it: {why}. Runs are made, and analysed, without it. For times "
        f"adjusted for it: {remedy}run on a machine that has it, or name another column."
    )


def _counted() -> set[str]:
    with run_directory() as run_dir:
        finished = run_command(
            [sys.executable, "-I", "-S", "-c", "pass"],
            cwd=run_dir, env=clean_environment(), timeout_s=_LIMIT_S, run_dir=run_dir,
        )  # fmt: skip
    return set(finished.counters)
