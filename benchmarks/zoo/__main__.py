"""The zoo's command line, which runs in the environment of any system that has Broadleaf as well."""

from __future__ import annotations

import argparse
import json
import platform
import sys

from benchmarks.zoo import score, systems, workloads


def main(arguments: list[str] | None = None) -> int:
    """Runs one workload on one system and prints its score; returns 1 if that is not possible."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    parser.add_argument(
        "--workload",
        choices=workloads.WORKLOADS,
        default="sleep",
        help="equal tasks of one body (sleep, cpu, memory, io), or a graph of tasks with --body",
    )
    parser.add_argument(
        "--body",
        choices=tuple(workloads.BODIES),
        default="sleep",
        help="what the tasks of a bag, a chain or a fan-in do",
    )
    parser.add_argument("--system", choices=systems.SYSTEMS, default="broadleaf")
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--tasks", type=int, default=200, help="tasks in one batch; leaves of a fan-in")
    parser.add_argument("--per-engine", action="store_true", help="--tasks is per engine, for weak scaling")
    parser.add_argument("--duration-ms", type=float, default=10.0, help="duration of a task that sleeps or computes")
    parser.add_argument("--bytes", type=int, default=1 << 20, help="size of a task that fills memory or a file")
    parser.add_argument("--width", type=int, default=4, help="number of parallel chains")
    parser.add_argument("--arity", type=int, default=4, help="number of tasks that each task of a fan-in waits for")
    parser.add_argument(
        "--spread", type=float, default=1.0, help="standard deviation of the logarithm of a bag's amounts"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="number of batches; the one with the median overhead is reported"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--list", action="store_true", help="list the systems that are installed here")
    given = parser.parse_args(arguments)
    if given.list:
        print("\n".join(systems.available()))
        return 0
    if given.engines < 1 or given.rounds < 1:
        parser.error("engines and rounds are at least 1")
    n_tasks = given.tasks * given.engines if given.per_engine else given.tasks
    size = workloads.Size(n_tasks, given.duration_ms / 1e3, given.bytes, given.width, given.arity, given.spread,
                          given.seed)  # fmt: skip
    try:
        workload = workloads.make(given.workload, size, given.body)
        system = systems.make_system(given.system)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    found = score.measure(system, workload, given.engines, given.rounds)
    if given.json:
        print(json.dumps(found.to_dict() | {"version": system.adapter.version(), "python": platform.python_version()}))
        return 0
    print(
        f"{workload.name} on {system.name} ({system.adapter.version()}), {found.engines} engines, {found.n_tasks} tasks"
    )
    print(f"overhead over the optimum {found.overhead_us:.1f} us a task, efficiency {found.efficiency:.3f}")
    print(f"total {found.total_s:.4f} s, optimum {found.ideal_s:.4f} s"
          f" (critical path {found.critical_path_s:.4f} s, work {found.work_s:.4f} s)")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
