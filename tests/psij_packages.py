"""PSI/J from the package index, in a separate folder in the checkout, because it needs older versions of the tests'
packages.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
_REQUIREMENTS = CHECKOUT / ".ci" / "requirements" / "psij.txt"
_CACHE = CHECKOUT / ".psij-packages"
_INSTALL_TIMEOUT_S = 300


class PackagesUnavailable(Exception):
    """They are not available here; the text says why."""


def psij_packages() -> Path:
    """A folder for the module search path that contains PSI/J, made now if it does not exist.

    Raises `PackagesUnavailable`.
    """
    key = hashlib.sha256(_REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    _CACHE.mkdir(exist_ok=True)
    with open(_CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other test runs wait for the one that installs
        ready = _CACHE / key
        if not ready.exists():
            making = _CACHE / "making"
            shutil.rmtree(making, ignore_errors=True)
            lines = [line for line in _REQUIREMENTS.read_text().splitlines() if "==" in line]
            install = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet",
                       "--no-deps", "--target", str(making), *lines]  # fmt: skip
            done = subprocess.run(install, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False)
            if done.returncode:
                raise PackagesUnavailable(f"pip cannot install PSI/J: {done.stderr.strip()[-300:]}")
            making.rename(ready)
    return ready
