"""Echo tasks through an IPython Parallel cluster on this machine, under one setting: time per task.

Runs in an environment that has IPython Parallel (see README.md). The clock runs from the first submission to the last
result; the start of the cluster is not counted, and one batch has run before. Round trips of single calls are reported
beside it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from typing import Any

import ipyparallel as ipp

_ROUND_TRIPS = 50


def on(text: str) -> bool:
    return text == "on"


def settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--arg-bytes", type=int, default=0)
    parser.add_argument("--scheme", default="leastload", help="TaskScheduler.scheme_name")
    parser.add_argument("--hwm", type=int, default=1, help="TaskScheduler.hwm: tasks sent ahead, 0 for no limit")
    parser.add_argument("--signed", type=on, default=True, help="messages carry an HMAC of Session.key")
    parser.add_argument("--curve", type=on, default=False, help="connections are encrypted")
    parser.add_argument("--packer", choices=("json", "pickle", "msgpack"), default="json")
    parser.add_argument("--database", choices=("NoDB", "DictDB", "SQLiteDB"), default="NoDB")
    parser.add_argument("--threads", type=on, default=False, help="schedulers are threads instead of processes")
    parser.add_argument("--debug-log", type=on, default=False, help="events of level debug are written")
    parser.add_argument("--collector", type=on, default=True, help="the cyclic garbage collector of the client")
    parser.add_argument("--run-dir", default="", help="a directory in memory, such as /dev/shm, for the profile")
    return parser.parse_args()


def echo(x: bytes) -> bytes:
    return x


def write_profile(given: argparse.Namespace, folder: str) -> str:
    """A profile whose controller and engines have these settings."""
    profile = os.path.join(folder, "profile_study")
    os.makedirs(profile)
    level = 10 if given.debug_log else 20
    session = [f"c.Session.packer = {given.packer!r}"]
    if not given.signed:
        session.append("c.Session.key = b''")
    database = {"NoDB": "dictdb.NoDB", "DictDB": "dictdb.DictDB", "SQLiteDB": "sqlitedb.SQLiteDB"}[given.database]
    controller = [
        f"c.TaskScheduler.scheme_name = {given.scheme!r}",
        f"c.TaskScheduler.hwm = {given.hwm}",
        f"c.IPController.enable_curve = {given.curve}",
        f"c.IPController.use_threads = {given.threads}",
        f"c.IPController.db_class = 'ipyparallel.controller.{database}'",
        f"c.IPController.log_level = {level}",
    ]
    for name, lines in ("ipcontroller", [*controller, *session]), ("ipengine", [f"c.IPEngine.log_level = {level}"]):
        with open(os.path.join(profile, f"{name}_config.py"), "w") as file:
            file.write("\n".join(["c = get_config()", *lines, ""]))
    return profile


def batch(view: Any, tasks: int, payload: bytes) -> dict[str, float]:
    begin = time.perf_counter()
    pending = [view.apply_async(echo, payload) for _ in range(tasks)]
    submitted = time.perf_counter()
    for result in pending:
        result.get()
    total_s = time.perf_counter() - begin
    return {
        "total_s": total_s,
        "time_per_task_us": total_s / tasks * 1e6,
        "submit_us": (submitted - begin) / tasks * 1e6,
    }


def run(given: argparse.Namespace, folder: str) -> dict[str, Any]:
    cluster = ipp.Cluster(n=given.engines, profile_dir=write_profile(given, folder), log_level=40)
    try:
        client = cluster.start_and_connect_sync(n=given.engines, activate=False)
        try:
            view = client.load_balanced_view()
            payload = os.urandom(given.arg_bytes)
            batch(view, 200, payload)
            if not given.collector:
                gc.disable()
            iterations = [batch(view, given.tasks, payload) for _ in range(3)]
            trips = []
            for _ in range(_ROUND_TRIPS):
                begin = time.perf_counter()
                view.apply_sync(echo, payload)
                trips.append((time.perf_counter() - begin) * 1e6)
        finally:
            client.close()
    finally:
        cluster.stop_cluster_sync()
    return {
        "n_tasks": given.tasks,
        "iterations": iterations,
        "submit_us": statistics.median(i["submit_us"] for i in iterations),
        "latency_p50_us": statistics.median(trips),
        "ipyparallel": ipp.__version__,
    }


def main() -> int:
    given = settings()
    folder = tempfile.mkdtemp(prefix="ipp-study-", dir=given.run_dir or None)
    os.environ["IPYTHONDIR"] = folder
    # The cluster starts its own programs by name.
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    try:
        found = run(given, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
