"""Broadleaf clusters that grow, shrink, and continue while their jobs end."""

import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import broadleaf as ipp

from benchmarks.sites.jobs import Jobs, status_calls
from benchmarks.sites.site import Site

START_TIMEOUT_S = 120.0
# How much longer than expected to wait for results: a lost task may never give one.
LATE_S = 240.0
RELEASED_TIMEOUT_S = 60.0


def note(folder: str, i: int, task_s: float) -> int:
    """On an engine: records that the task began here, and takes its time."""
    with open(os.path.join(folder, f"{os.uname().nodename}-{os.getpid()}"), "a") as file:
        print(i, file=file)
    time.sleep(task_s)
    return i


@contextmanager
def elastic(per_block: int, walltime: str) -> Iterator[tuple[Any, Any, Jobs]]:
    """A cluster without engines, a client, and what is requested from the scheduler."""
    jobs = Jobs(Site.here())
    cluster: Any = ipp.Cluster(engines=ipp.Slurm(nodes=1, engines_per_host=per_block, walltime=walltime))
    try:
        cluster.start_controller_sync()
        client = cluster.connect_client_sync()
        yield cluster, client, jobs
        client.close()
    finally:
        cluster.stop_cluster_sync()
        jobs.finish()


def turnover(peer: Any, workers: int, n: int, task_s: float, per_block: int, walltime: str) -> dict[str, float]:
    """n tasks on engines whose jobs end again and again, and a quarter as many on engines that stay."""
    static = rate(n // 4, task_s, workers, per_block, "60m")
    moving = rate(n, task_s, workers, per_block, walltime)
    return {
        "rate": moving["rate"],
        "static_rate": static["rate"],
        "of_static_rate": moving["rate"] / static["rate"],
        "submissions": moving["submissions"],
        "turnovers": moving["began"] * per_block / workers - 1,
        "lost": moving["lost"],
        "ran_twice": moving["ran_twice"],
        "status_calls": moving["status_calls"],
        "status_calls_in_30_s": moving["status_calls"] * 30 / moving["lifetime"],
        "elapsed": moving["elapsed"],
    }


def rate(n: int, task_s: float, workers: int, per_block: int, walltime: str) -> dict[str, float]:
    folder = str(Site.here().fresh_folder())
    started, asked_before = time.monotonic(), status_calls()
    with elastic(per_block, walltime) as (cluster, client, jobs):
        cluster.scale_sync(workers)
        client.wait_for_engines(workers, timeout=START_TIMEOUT_S)
        view = client.load_balanced_view()
        begin = time.monotonic()
        pending = [view.apply_async(note, folder, i, task_s) for i in range(n)]
        give_up_at = begin + n * task_s / workers * 1.5 + LATE_S
        returned = {outcome(one, give_up_at) for one in pending} - {None}
        elapsed_s = time.monotonic() - begin
        began = Counter(int(line) for path in Path(folder).iterdir() for line in path.read_text().split())
        found = {
            "rate": n / elapsed_s,
            "elapsed": elapsed_s,
            "lifetime": time.monotonic() - started,
            "submissions": jobs.calls().count("sbatch"),
            "began": jobs.began(),
            "lost": n - len(returned & set(range(n))),
            "ran_twice": sum(times - 1 for times in began.values()),
            "status_calls": status_calls() - asked_before,
        }
    shutil.rmtree(folder)
    return found


def outcome(result: Any, give_up_at: float) -> int | None:
    """What a task returned; None if it was lost or never ended."""
    try:
        value: int = result.get(max(1.0, give_up_at - time.monotonic()))
    except (ipp.EngineError, ipp.TimeoutError):
        return None
    return value


def on_demand(peer: Any, per_block: int, idle_s: float) -> dict[str, float]:
    """The time of the first result on a cluster without engines, and when the engines started for it were released."""
    with elastic(per_block, "10m") as (cluster, client, jobs):
        cluster.adapt_sync(0, per_block, idle_s=idle_s)
        begin = time.monotonic()
        client.load_balanced_view().apply_sync(abs, -1)
        first_s, first_at_s = time.monotonic() - begin, time.time()
        while client.ids:
            if time.monotonic() - begin > first_s + idle_s + RELEASED_TIMEOUT_S:
                raise TimeoutError("idle engines were not released")
            time.sleep(0.02)
        return {
            "first_result": first_s,
            "after_first_line": first_at_s - jobs.first_line_s(),
            "released_after": time.monotonic() - begin - first_s,
            "submissions": jobs.calls().count("sbatch"),
        }
