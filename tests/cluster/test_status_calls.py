"""How often schedulers are asked about jobs, on the tests' clock."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import broadleaf as ipp
import pytest
from broadleaf.cluster.engine_sets import batch
from broadleaf.cluster.engine_sets.base import BlockRequest
from broadleaf.cluster.engine_sets.batch import ThisHost

_LOOK_EVERY_S = 0.25
_QSTAT = "<job_info><queue_info>{}</queue_info></job_info>"
_OF_QSTAT = "<job_list><JB_job_number>{}</JB_job_number><state>r</state></job_list>"


class Scheduler:
    """All jobs run. It records when that is requested."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.asked_at: list[float] = []
        self.jobs: list[int] = []

    def monotonic(self) -> float:
        return self.now_s

    def run(self, command: list[str], *, text: str = "") -> str:
        if command[0] in ("sbatch", "qsub"):
            self.jobs.append(len(self.jobs) + 1)
            return f"{self.jobs[-1]}\n"
        self.asked_at.append(self.now_s)
        if command[0] == "squeue":
            return "".join(f"{job}|RUNNING|None\n" for job in self.jobs)
        return _QSTAT.format("".join(map(_OF_QSTAT.format, self.jobs)))


@pytest.mark.parametrize("kind", ["slurm", "sge"])
def test_the_scheduler_is_asked_once_in_30_s_for_any_number_of_blocks(kind, tmp_path, monkeypatch):
    scheduler = Scheduler()
    monkeypatch.setattr(ThisHost, "run", lambda _self, command, *, text="": scheduler.run(command, text=text))
    monkeypatch.setattr(batch, "time", SimpleNamespace(monotonic=scheduler.monotonic))
    engines = ipp.Slurm(nodes=1) if kind == "slurm" else ipp.SGE(slots=1, pe="mp")
    blocks = []
    for look in range(1600):
        if look % 16 == 0:  # a block every 4 s
            blocks += engines.submit(BlockRequest("lab", Path(tmp_path), 1, {"private_key": "SECRET"}, len(blocks)))
        engines.poll(blocks)
        scheduler.now_s += _LOOK_EVERY_S
    assert len(blocks) == 100
    assert all(block.state == "running" for block in blocks[:90])
    asked_after_s = [at_s - 1000.0 for at_s in scheduler.asked_at]
    assert asked_after_s[0] == 3
    # The early call postpones the second.
    assert asked_after_s[1:] == [60.0 + 30 * i for i in range(12)]


def test_ends_of_jobs_postpone_the_regular_calls(monkeypatch):
    clock = SimpleNamespace(now_s=1000.0)
    monkeypatch.setattr(batch, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    due = batch.News()
    due.expect_first()
    asked_after_s = []
    for look in range(4 * 600):
        clock.now_s = 1000.0 + look / 4
        # A job ends every 10 s for five minutes.
        ended = [str(i) for i in range(1, 31) if look >= 40 * i]
        if due.are_due(ended):
            asked_after_s.append(look / 4)
    # What can be borrowed is soon used up. Then ends wait, and a call tells of several.
    assert asked_after_s[:6] == [3, 10, 20, 30, 40, 60]
    for at_s in range(60, 600, 30):
        assert len([one for one in asked_after_s if one <= at_s]) <= (at_s + 150) / 30
    # Without ends, it is one call in 30 s again.
    assert len(asked_after_s) <= 600 / 30


def test_an_end_that_the_scheduler_does_not_know_yet_is_asked_for_until_it_does(monkeypatch):
    clock = SimpleNamespace(now_s=1000.0)
    monkeypatch.setattr(batch, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    due = batch.News()
    due.expect_first()
    asked_after_s = []
    for look in range(4 * 400):
        clock.now_s = 1000.0 + look / 4
        if due.are_due(["a job"] if look >= 20 else []):
            asked_after_s.append(look / 4)
            if 5 <= asked_after_s[-1] < 14:
                due.want_ends()
    # It is asked less and less often, and the regular calls make up for that.
    assert asked_after_s[:9] == [3, 5, 5.5, 6.25, 7.5, 9.25, 12, 16, 166]
    assert len(asked_after_s) == 16


def test_whoever_asks_for_news_gets_them(monkeypatch):
    monkeypatch.setattr(batch, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    due = batch.News()
    due.expect_first()
    for _ in range(20):
        assert not due.are_due([])
        due.want_now()
        assert due.are_due([])
    # The regular calls are not postponed further and further.
    monkeypatch.setattr(batch, "time", SimpleNamespace(monotonic=lambda: 1150.0))
    assert due.are_due([])


ENDS = {
    "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-24T10:00:00 DUE TO TIME LIMIT ***\n": (
        "failed",
        "its walltime has run out (TIMEOUT)",
    ),
    "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-24T10:00:00 ***\n": (
        "failed",
        "it was cancelled (CANCELLED)",
    ),
    # It may come back: only Slurm knows.
    "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-24T10:00:00 DUE TO JOB REQUEUE ***\n": ("running", ""),
    "slurmstepd-n1: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-24T10:00:00 ***\n": ("running", ""),
}


def test_slurm_is_not_asked_how_jobs_ended_whose_logs_tell_it(tmp_path, monkeypatch):
    scheduler = Scheduler()
    logs: dict[str, str] = {}
    monkeypatch.setattr(ThisHost, "run", lambda _self, command, *, text="": scheduler.run(command, text=text))
    monkeypatch.setattr(ThisHost, "logs", lambda _self, paths: {path: logs.get(path, "") for path in paths})
    monkeypatch.setattr(batch, "time", SimpleNamespace(monotonic=scheduler.monotonic))
    engines = ipp.Slurm(nodes=1)
    request = BlockRequest("lab", Path(tmp_path), 1, {"private_key": "SECRET"}, 0)
    blocks = [block for _ in ENDS for block in engines.submit(request)]
    scheduler.now_s += 30
    engines.poll(blocks)
    assert [block.state for block in blocks] == ["running"] * len(ENDS)
    n_asked = len(scheduler.asked_at)
    logs.update({block.facts["log"]: log for block, log in zip(blocks, ENDS, strict=True)})
    for _ in range(20):
        scheduler.now_s += 1
        engines.poll(blocks)
    assert len(scheduler.asked_at) == n_asked
    for block, (state, reason) in zip(blocks, ENDS.values(), strict=True):
        assert block.state == state
        assert reason in block.reason


@pytest.mark.parametrize(
    ("options", "end"),
    [
        ({"walltime": "90s"}, "@$(($(date +%s) + 120))"),  # Slurm counts whole minutes
        ({"walltime": "1:00:00"}, "@$(($(date +%s) + 3600))"),
        ({}, "squeue"),
        ({"walltime": "1:00:00", "sbatch": ["--time-min=10"]}, "squeue"),
        ({"walltime": "1:00:00", "sbatch": ["-t 10"]}, "squeue"),
    ],
)
def test_a_job_asks_for_its_end_only_if_no_option_tells_it(tmp_path, options, end):
    script = ipp.Slurm(nodes=1, **options).script(BlockRequest("lab", Path(tmp_path), 1, {"private_key": "SECRET"}, 0))
    assert end in script
    assert ("squeue" in script) == (end == "squeue")
