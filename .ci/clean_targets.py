"""Runs each target of the Makefile alone, in a clean clone of its own of what is committed here.

    python .ci/clean_targets.py [--keep] [--compiled] [TARGET ...]

A target that works in a developer's checkout may need what another target has installed there. Each clone starts with
nothing: no environment, no compiled core. Without TARGETs all are run, with parameters that keep each short; `--list`
shows them. It takes the network and, as each clone compiles the core, about five minutes a target. With `--compiled`
the clones start with a copy of what Cargo has compiled here. A failed target's clone is kept, with its output in
`clean-target.log`; `--keep` keeps all.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Target -> what keeps its run short. `lock` would change the versions, and the others are made of these.
TARGETS = {
    "help": [],
    "build": [],
    "demo": [],
    "docs": [],
    "figures": [],
    "lint": [],
    "fuzz": ["FUZZ_S=1"],
    "bench": ["BENCH_ARGS=latency --quick --against ppe"],
    "soak": ["MINUTES=1"],
    # A comparison of a commit with itself is rarely decided, so here it is not begun.
    "wheels": [],
    "gate": ["GATE_ARGS=--help", "GATE_WORKLOADS=latency"],
    "test-rust": [],
    "test-loom": [],
    "test-python": ["TEST_ARGS=--collect-only -qq"],
    "test-sites": ["TEST_ARGS=--collect-only -qq"],
    "test-lab": ["TEST_ARGS=--collect-only -qq"],
    "test-statistics": ["TEST_ARGS=--collect-only -qq"],
    "peer-tests": [],
    "clean": [],
}
_LIMIT_S = 3600.0


def clone(parent: Path, compiled: bool) -> Path:
    """A clone with nothing that is not committed."""
    root = Path(tempfile.mkdtemp(prefix="clean-", dir=parent)) / "broadleaf"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(root)], check=True)
    if compiled and (ROOT / "target").is_dir():
        subprocess.run(["cp", "--archive", "--reflink=auto", str(ROOT / "target"), str(root / "target")], check=True)
    return root


def run(target: str, parent: Path, compiled: bool, keep: bool) -> bool:
    """Runs one target in a clone of its own, and says in a line how that went."""
    root = clone(parent, compiled)
    log = root.parent / "clean-target.log"
    # Neither an environment that is active here, nor a make that runs this, has a say there.
    hidden = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "CARGO_TARGET_DIR", "MAKEFLAGS", "MFLAGS", "MAKELEVEL")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    began = time.monotonic()
    with open(log, "w") as output:
        try:
            status = subprocess.run(
                ["make", target, *TARGETS[target]],
                cwd=root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_LIMIT_S,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            status = -1
    took_s = time.monotonic() - began
    if status:
        print(f"{target}: failed with {status} after {took_s:.0f} s; see {log}", flush=True)
        print(
            "".join(f"  | {line}\n" for line in log.read_text(errors="replace").splitlines()[-15:]), end="", flush=True
        )
        return False
    print(f"{target}: {took_s:.0f} s", flush=True)
    if not keep:
        shutil.rmtree(root.parent)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description="Run each target of the Makefile alone, in a clean clone.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="the targets; all of --list by default")
    parser.add_argument("--list", action="store_true", help="show the targets, with what they are run with")
    parser.add_argument("--keep", action="store_true", help="keep the clones of targets that did not fail")
    parser.add_argument("--compiled", action="store_true", help="start with what Cargo has compiled here")
    parser.add_argument("--parent", type=Path, help="where to make the clones; a temporary folder by default")
    options = parser.parse_args()
    if options.list:
        for target, parameters in TARGETS.items():
            print(" ".join(["make", target, *map(repr, parameters)]))
        return 0
    if unknown := set(options.targets) - TARGETS.keys():
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    parent = options.parent or Path(tempfile.mkdtemp(prefix="broadleaf-clean-targets-"))
    parent.mkdir(parents=True, exist_ok=True)
    results = [run(target, parent, options.compiled, options.keep) for target in options.targets or TARGETS]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
