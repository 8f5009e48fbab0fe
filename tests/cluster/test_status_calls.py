"""How often schedulers are asked about jobs, on the tests' clock."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import broadleaf as ipp
import pytest
from broadleaf.cluster.engine_sets.base import BlockRequest
from broadleaf.cluster.engine_sets.jobs import news
from broadleaf.cluster.engine_sets.jobs.submit_hosts import ThisHost

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
    monkeypatch.setattr(news, "time", SimpleNamespace(monotonic=scheduler.monotonic))
    engines = ipp.Slurm(nodes=1) if kind == "slurm" else ipp.SGE(slots=1, pe="mp")
    blocks = []
    for look in range(1600):
        if look % 16 == 0:  # a block every 4 s
            blocks += engines.submit(BlockRequest("lab", Path(tmp_path), 1, {"private_key": "SECRET"}, len(blocks)))
        engines.poll(blocks)
        scheduler.now_s += _LOOK_EVERY_S
    assert len(blocks) == 100
    assert all(block.state == "running" for block in blocks[:90])
    assert len(scheduler.asked_at) >= 10
    gaps = [later - earlier for earlier, later in zip(scheduler.asked_at, scheduler.asked_at[1:], strict=False)]
    assert min(gaps) >= 30
