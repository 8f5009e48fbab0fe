"""How long the analysis and the report of large studies take, and how much memory.

    python studies/size/size.py 15000x12 --report

Runs of flags are made with numpy alone (a third do something, three pairs interact, 5 % noise, blocks of 16) and
written as runs.csv. `broadleaf-lab analyse` and `broadleaf-lab report` then run as commands: wall time, processor time
of all threads, and peak memory. `--csv FILE` adds lines to a table; size.csv is what was recorded.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

_CHUNK = 100_000


def write_study(directory: Path, runs: int, factors: int, seed: int) -> None:
    """A study and its runs."""
    names = [f"f{number}" for number in range(factors)]
    (directory / "study.toml").write_text(
        '[study]\nname = "size"\ncommand = ["true"]\n'
        + "".join(f'[factors.{name}]\nset.env = {{ {name.upper()} = "1" }}\n' for name in names),
        encoding="utf-8",
    )
    rng = np.random.default_rng(seed)
    effects = np.where(np.arange(factors) < factors // 3, rng.uniform(-0.3, 0.1, factors), 0.0)
    pairs = [(rng.choice(factors, 2, replace=False), rng.choice((-0.12, 0.12))) for _ in range(3)]
    head = ["run_id", "status", "block", "order_in_block", "started_unix", "time_per_task_us", *names]
    with (directory / "runs.csv").open("w", encoding="utf-8") as file:
        file.write(",".join(head) + "\n")
        for start in range(0, runs, _CHUNK):
            number = np.arange(start, min(start + _CHUNK, runs))
            on = rng.integers(0, 2, (len(number), factors))
            y = np.log(500) + (on - 0.5) @ effects + 0.05 * rng.standard_normal(len(number))
            for (a, b), size in pairs:
                y += size * (on[:, a] - 0.5) * (on[:, b] - 0.5)
            y += 0.02 * np.random.default_rng([seed, 1]).standard_normal(runs // 16 + 1)[number // 16]
            lines = (
                f"r{i:07d},ok,{i // 16},{i % 16},{1.7e9 + 4 * i:.3f},{us:.6f},{','.join(map(str, row))}\n"
                for i, us, row in zip(number.tolist(), np.exp(y).tolist(), on.tolist(), strict=True)
            )
            file.writelines(lines)


def measured(command: list[str]) -> dict[str, object]:
    """Wall and processor seconds and the peak memory of a command."""
    begun = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status):
        sys.exit(said.decode()[-2000:])
    return {
        "wall_s": round(time.monotonic() - begun, 1),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_mb": round(usage.ru_maxrss / 1024),
    }


def main() -> None:
    """Measures each requested size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="+", metavar="RUNSxFACTORS")
    parser.add_argument("--report", action="store_true", help="the report too")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--csv", type=Path)
    asked = parser.parse_args()
    for size in asked.sizes:
        runs, factors = map(int, size.split("x"))
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            write_study(directory, runs, factors, asked.seed)
            lab = [sys.executable, "-m", "broadleaf", "lab"]
            commands = {"analyse": [*lab, "analyse", str(directory)]}
            if asked.report:
                commands["report"] = [*lab, "report", str(directory), "--to", str(directory / "report")]
            for what, command in commands.items():
                load = os.getloadavg()[0]
                row = {"size": size, "command": what, **measured(command), "load_before": round(load, 1),
                       "cores": os.cpu_count(), "date": datetime.now(UTC).date().isoformat()}  # fmt: skip
                print(row, flush=True)
                if asked.csv:
                    keep(asked.csv, row)


def keep(file: Path, row: dict[str, object]) -> None:
    """Puts a line into a table, replacing the one with the same size and command."""
    rows: list[dict[str, object]] = []
    if file.exists():
        with file.open(newline="") as old:
            rows = [dict(line) for line in csv.DictReader(old)]
    rows = [line for line in rows if (line["size"], line["command"]) != (row["size"], row["command"])]
    with file.open("w", newline="") as new:
        writer = csv.DictWriter(new, row)
        writer.writeheader()
        writer.writerows([*rows, row])


if __name__ == "__main__":
    main()
