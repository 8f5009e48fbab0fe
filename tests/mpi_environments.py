"""The MPIs of the package index, each in a separate environment inside the checkout, because their programs share
names.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
MPIS = ("mpich", "openmpi")
_CACHE = CHECKOUT / ".mpi-venvs"
_INSTALL_TIMEOUT_S = 600


class EnvironmentUnavailable(Exception):
    """It cannot be made here; the text says why."""


def mpi_python(name: str) -> Path:
    """Python of the environment with this MPI, which is made now if it does not exist; its `mpiexec` is beside it.

    Raises `EnvironmentUnavailable`.
    """
    requirements = CHECKOUT / ".ci" / "requirements" / f"{name}.txt"
    key = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:12]
    _CACHE.mkdir(exist_ok=True)
    with open(_CACHE / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ready = _CACHE / name
        python = ready / "bin" / "python"
        if not (ready / key).exists():
            shutil.rmtree(ready, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(ready)], check=True, timeout=120)
            install = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet",
                       "--requirement", str(requirements)]  # fmt: skip
            done = subprocess.run(install, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False)
            if done.returncode:
                raise EnvironmentUnavailable(f"pip cannot install {name}: {done.stderr.strip()[-300:]}")
            site = next((ready / "lib").glob("python3*")) / "site-packages"
            (site / "checkout.pth").write_text(f"{CHECKOUT / 'python'}\n")
            (ready / key).touch()
    return python


def mpi_arguments(name: str) -> list[str]:
    """Arguments of its `mpiexec`: Open MPI has to be told that root may run it, and more ranks than there are cores."""
    return ["--allow-run-as-root", "--oversubscribe"] if name == "openmpi" else []
