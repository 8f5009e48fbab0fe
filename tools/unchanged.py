"""Runs a command unless it has succeeded before on the same files.

    python tools/unchanged.py --record .venv/.stamps/tests.json [--again] [--inputs PATH ...] -- COMMAND ...

The files are those that git tracks or would add, under the given paths; the interpreter, the kernel, the command, and
the variables that tests and their runners look at count as well. Without git the command always runs. The exit code is
the command's.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

VARIABLES = ("BROADLEAF_", "PYTEST_", "RUST")
# This variable only names a run.
MARK = "BROADLEAF_CI_RUN"


def digest(root: Path, inputs: list[str], command: list[str]) -> str | None:
    """A digest of everything that the command's outcome may depend on; None if git cannot list the files."""
    listing = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *inputs]
    try:
        names = subprocess.run(listing, capture_output=True, check=True).stdout.split(b"\0")
    except (OSError, subprocess.CalledProcessError):
        return None
    variables = sorted(
        (name, value) for name, value in os.environ.items() if name.startswith(VARIABLES) and name != MARK
    )
    total = hashlib.sha256(json.dumps([sys.version, platform.release(), command, variables]).encode())
    for name in sorted(set(filter(None, names))):
        path = root / name.decode()
        content = hashlib.sha256(path.read_bytes()).digest() if path.is_file() else b"gone"
        total.update(name + b"\0" + content)
    return total.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a command unless it has succeeded before on the same files.")
    parser.add_argument("--record", type=Path, required=True, help="file that records the last success")
    parser.add_argument("--again", action="store_true", help="run whether or not anything has changed")
    parser.add_argument("--inputs", nargs="*", default=["."], help="what the command depends on")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()

    root = Path.cwd()
    before = digest(root, options.inputs, options.command)
    known = json.loads(options.record.read_text()) if options.record.exists() else {}
    if before is not None and known.get("digest") == before and not options.again:
        print(
            f"passed on {known['on']} in {known['seconds']:.0f} s, nothing changed since: {' '.join(options.command)}"
        )
        return 0
    options.record.unlink(missing_ok=True)
    began = time.monotonic()
    status = subprocess.run(options.command, check=False).returncode
    # A file edited in the meantime may have been tested in neither state.
    if status == 0 and before is not None and before == digest(root, options.inputs, options.command):
        on = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
        options.record.write_text(json.dumps({"digest": before, "on": on, "seconds": time.monotonic() - began}))
    return status


if __name__ == "__main__":
    sys.exit(main())
