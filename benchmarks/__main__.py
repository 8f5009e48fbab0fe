"""`python -m benchmarks`."""

from benchmarks.commands import group

if __name__ == "__main__":
    group(prog_name="python -m benchmarks")
