"""What a system requests from Slurm while it starts: its calls, its jobs, and when they began."""

import os
import re
import shutil
import stat
import subprocess
import time
from pathlib import Path

from benchmarks.sites.site import Site

COMMANDS = ("sbatch", "srun", "salloc", "squeue", "scancel", "sinfo", "sacct", "scontrol")
GONE_TIMEOUT_S = 120.0
# As `sdiag` shows it: questions about all jobs, those of a user, and one.
_STATUS_CALL = re.compile(r"REQUEST_JOB_(?:USER_)?INFO(?:_SINGLE)?\s*\(\s*\d+\)\s*count:(\d+)")

# Records the call, then becomes the command itself.
_COUNTED = """#!/bin/sh
echo "{name}${{SLURM_JOB_ID:+ in a job}}" >> {folder}/calls
exec {command} "$@"
"""
# The script comes as the last argument or on standard input. Its first line that is not a directive records when it
# ran.
_SBATCH = """#!/bin/sh
echo "sbatch${{SLURM_JOB_ID:+ in a job}}" >> {folder}/calls
script=$(mktemp {folder}/script.XXXXXX)
for last do :; done
if [ -f "$last" ]; then
  n=$# i=1
  for word do
    shift
    [ "$i" -lt "$n" ] && set -- "$@" "$word"
    i=$((i + 1))
  done
else
  last=/dev/stdin
fi
note="date +%s.%N >> {folder}/began"
awk -v note="$note" '!done && NR > 1 && !/^#/ && NF {{ print note; done = 1 }} {{ print }}' "$last" > "$script"
said=$({command} "$@" "$script") || exit
echo "$said"
echo "$said" | grep -o "[0-9][0-9]*" | head -1 >> {folder}/jobs
"""


class Jobs:
    """Programs that precede Slurm's own in PATH, until `finish`."""

    def __init__(self, site: Site) -> None:
        self.folder: Path = site.fresh_folder()
        programs = self.folder / "bin"
        programs.mkdir()
        for name in COMMANDS:
            command = shutil.which(name)
            if command is None:
                continue
            text = _SBATCH if name == "sbatch" else _COUNTED
            program = programs / name
            program.write_text(text.format(name=name, folder=self.folder, command=command))
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self._path_before = os.environ["PATH"]
        os.environ["PATH"] = f"{programs}{os.pathsep}{self._path_before}"

    def calls(self) -> list[str]:
        """Slurm commands run so far, on all hosts; those run in jobs are marked."""
        return self._lines("calls")

    def first_line_s(self) -> float:
        """When the first job began to run, in seconds since 1970."""
        return min(map(float, self._lines("began")))

    def began(self) -> int:
        """How many jobs have begun to run; one that was put back into the queue counts again."""
        return len(self._lines("began"))

    def _lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def finish(self) -> None:
        """Ends the remaining jobs, and waits until no node works for them."""
        os.environ["PATH"] = self._path_before
        if jobs := self._lines("jobs"):
            subprocess.run(["scancel", *jobs], capture_output=True, check=False)
            give_up_at = time.monotonic() + GONE_TIMEOUT_S
            while _known(jobs):
                if time.monotonic() > give_up_at:
                    raise TimeoutError(f"jobs {', '.join(jobs)} do not end")
                time.sleep(0.2)
        shutil.rmtree(self.folder)


def status_calls() -> int:
    """Questions about jobs that Slurm's controller has answered, by its own count, whoever asked."""
    said = subprocess.run(["sdiag"], capture_output=True, text=True, check=True).stdout
    return sum(map(int, _STATUS_CALL.findall(said)))


def _known(jobs: list[str]) -> str:
    """What the queue says about these jobs. A job that ended a while ago is unknown, which is not an error here."""
    asked = subprocess.run(
        ["squeue", "-h", "-j", ",".join(jobs), "-o", "%i"], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip()
