"""Acceptance 11, the gate: it finds a planted 5 % slow-down and passes an unchanged branch, 10 of 10 each.

Run it with `python lab/tests/acceptance/gate.py`. It makes a small git repository with a benchmark that computes and
reports its processor time, one branch on which each task does 5 % more work and one that only changes a comment, and
judges both ten times with the command line. Exit code 0 if all twenty verdicts are right.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STUDY = """
[study]
name = "planted"
command = ["{python}", "bench.py", "{n_tasks}"]
score = "json:time_per_task_us"
rope_pct = 2.0
source = ".."
timeout_s = 60
# Processor time, so both commits can share a processor and what disturbs it. The sum of one long iteration counts: the
# median of many would jump between the speeds that a disturbed machine has.
side_by_side = true
[study.calibrate]
min_s = 0.3
"""
BENCH = '''
"""So many tasks, each of which computes."""
import json
import sys
import time

STEPS = 2000


def task():
    x = 1
    for _ in range(STEPS):
        x = (x * 69069 + 1) & 0xFFFFFFFF
    return x


n = int(sys.argv[1])
begin = time.process_time()
for _ in range(n):
    task()
spent = time.process_time() - begin
print(json.dumps({"time_per_task_us": spent / n * 1e6, "total_s": spent}))
'''


def git(root: Path, *arguments: str) -> None:
    settings = ["-c", "user.name=Gate", "-c", "user.email=gate@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(root), *settings, *arguments], check=True, capture_output=True)


def make_repository(root: Path) -> None:
    """main, and the branches `slower` and `same`."""
    git(root, "init", "--quiet", "--initial-branch", "main")
    bench = root / "bench.py"
    bench.write_text(BENCH)
    (root / "lab").mkdir()
    (root / "lab" / "study.toml").write_text(STUDY)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "A benchmark")
    for branch, text in (
        ("slower", BENCH.replace("STEPS = 2000", "STEPS = 2100")),
        ("same", BENCH.replace("which computes.", "which only computes.")),
    ):
        git(root, "switch", "--quiet", "--create", branch, "main")
        bench.write_text(text)
        git(root, "commit", "--quiet", "--all", "--message", branch)
    git(root, "switch", "--quiet", "main")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--repeats", type=int, default=10)
    options.add_argument("--budget", default="10m", help="of each gate")
    chosen = options.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="gate-") as directory:
        root = Path(directory)
        make_repository(root)
        for branch, expected in (("slower", 1), ("same", 0)):
            right, pairs = 0, []
            for repeat in range(chosen.repeats):
                begin = time.monotonic()
                done = subprocess.run(
                    [sys.executable, "-c", "from broadleaf_lab.cli import main; main()", "gate", "--study",
                     str(root / "lab"), "--base", "main", "--head", branch, "--budget", chosen.budget],
                    capture_output=True, text=True, check=False,
                )  # fmt: skip
                verdict = next((line for line in done.stdout.splitlines() if " against " in line), done.stderr)
                right += done.returncode == expected
                pairs.append(int(match[1]) if (match := re.search(r"in (\d+) pairs", verdict)) else 0)
                spent = time.monotonic() - begin
                print(f"{branch} {repeat + 1}: exit {done.returncode} (expected {expected}), {spent:.0f} s: {verdict}",
                      flush=True)  # fmt: skip
            print(f"{branch}: {right} of {chosen.repeats} right; pairs {min(pairs)} to {max(pairs)}", flush=True)
            wrong += chosen.repeats - right
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
