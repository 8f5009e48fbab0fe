"""Runs the fuzz targets, as many at a time as there are cores: each for some seconds, starting with its committed
corpus.

Fails with the input of a finding.

New inputs go to target/found beside it; with --keep the few that reach something new go into the committed corpus.
"""

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FUZZ = Path(__file__).resolve().parent
HOST = "x86_64-unknown-linux-gnu" if os.uname().machine == "x86_64" else f"{os.uname().machine}-unknown-linux-gnu"
# What `cargo fuzz` passes without a sanitizer: the stable compiler supports it, and the decoders have no unsafe code.
FLAGS = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg=fuzzing",
]
# One allocation of a target, and its total memory: far above what its messages justify.
LIMITS = ["-malloc_limit_mb=128", "-rss_limit_mb=1024", "-timeout=10", "-max_len=4096"]


def targets() -> list[str]:
    return sorted(path.stem for path in (FUZZ / "fuzz_targets").glob("*.rs"))


def build() -> Path:
    """The folder with the targets' programs."""
    command = ["cargo", "build", "--release", "--locked", "--features", "libfuzzer", "--target", HOST]
    for name in targets():
        command += ["--bin", name]
    subprocess.run(command, cwd=FUZZ, env={**os.environ, "RUSTFLAGS": " ".join(FLAGS)}, check=True)
    return FUZZ / "target" / HOST / "release"


def run(program: Path, seconds: int) -> bool:
    """Whether a target ran for this long without a finding."""
    found = FUZZ / "target" / "found" / program.name
    found.mkdir(parents=True, exist_ok=True)
    artifacts = f"-artifact_prefix={found.parent}/{program.name}-"
    corpus = FUZZ / "corpus" / program.name
    arguments = [str(found), str(corpus), f"-max_total_time={seconds}", artifacts, *LIMITS]
    done = subprocess.run([program, *arguments, "-print_final_stats=1"], capture_output=True, text=True)
    runs = next((line.split()[-1] for line in done.stderr.splitlines() if "number_of_executed_units" in line), "0")
    print(f"{program.name}: {runs} inputs in {seconds} s", "without a finding" if done.returncode == 0 else "")
    if done.returncode != 0:
        print(done.stderr[-4000:], file=sys.stderr)
    return done.returncode == 0


def keep(program: Path) -> None:
    """Adds the inputs that reach something new to the committed corpus, the smallest of them."""
    found = FUZZ / "target" / "found" / program.name
    corpus = FUZZ / "corpus" / program.name
    subprocess.run([program, "-merge=1", corpus, found, *LIMITS], check=True, capture_output=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="seconds for each target")
    parser.add_argument("--keep", action="store_true", help="add inputs that reach something new to the corpora")
    parser.add_argument("targets", nargs="*", help="all of them by default")
    arguments = parser.parse_args()
    folder = build()
    programs = [folder / name for name in arguments.targets or targets()]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        clean = list(pool.map(lambda program: run(program, arguments.seconds), programs))
    if arguments.keep:
        for program in programs:
            keep(program)
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())
