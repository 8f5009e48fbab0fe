"""Runs a command that needs Rust; installs Rust into the checkout first if the machine has none that is recent enough.

    python .ci/rust.py [COMMAND ...]

Rust on the PATH is used if it is at least Cargo.toml's rust-version. Otherwise the version of .ci/rust-toolchain.toml
is installed into .toolchain/, with rustup's and cargo's files, and used from there. Nothing outside the checkout
changes. Without a command this only makes sure that Rust is there. RUSTUP_UPDATE_ROOT and RUSTUP_DIST_SERVER name
another server, as they do for rustup.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path
from urllib.error import URLError

ROOT = Path(__file__).resolve().parent.parent
OWN = ROOT / ".toolchain"
SERVER = "https://static.rust-lang.org"
# How long the server may take to answer.
ANSWER_TIMEOUT_S = 30

NO_LINKER = (
    "Broadleaf needs a C compiler, and there is no `cc` on the PATH. "
    "Install one, for example with `apt install gcc` or `dnf install gcc`, and run make again."
)
WHAT_TO_DO = "Install Rust from https://rustup.rs or from your distribution, and run make again."

Version = tuple[int, ...]


class CannotInstall(Exception):
    """Rust could not be installed; the text says why."""


def main(command: list[str]) -> int:
    if not has_linker():
        return refuse(NO_LINKER)
    # Cargo learns of make's jobs through a pipe that it does not inherit.
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS")}
    minimum, found = minimum_version(), rust_version(environment)
    if found is None or found < minimum:
        pinned = tomllib.loads((ROOT / ".ci" / "rust-toolchain.toml").read_text())["toolchain"]
        environment = own_environment(pinned["channel"])
        if rust_version(environment) != version(pinned["channel"]):
            has = dotted(found) if found else "none"
            needs = f"Broadleaf needs Rust {dotted(minimum)} or newer; this machine has {has}"
            print(f"{needs}. Installing Rust {pinned['channel']} into .toolchain/", flush=True)
            try:
                install(pinned, environment)
            except CannotInstall as error:
                return refuse(f"{needs}. Rust {pinned['channel']} cannot be downloaded: {error}. {WHAT_TO_DO}")
    if command:
        os.execvpe(command[0], command, environment)
    return 0


def refuse(message: str) -> int:
    print(message, file=sys.stderr)
    return 1


def has_linker() -> bool:
    """Whether rustc and the C code of dependencies find a compiler; one named by a variable is trusted."""
    named = "CC" in os.environ or any(re.fullmatch(r"CARGO_TARGET_\w+_LINKER", name) for name in os.environ)
    return named or shutil.which("cc") is not None


def minimum_version() -> Version:
    """The oldest Rust that builds Broadleaf."""
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text())
    return version(cargo["workspace"]["package"]["rust-version"])


def version(text: str) -> Version:
    """The numbers of "1.95.0"; "1.90" is 1.90.0."""
    numbers = [int(part) for part in text.split(".")]
    return tuple(numbers + [0] * (3 - len(numbers)))


def dotted(numbers: Version) -> str:
    """As Cargo.toml says it: 1.90 for 1.90.0."""
    return ".".join(map(str, numbers if numbers[2:] != (0,) else numbers[:2]))


def rust_version(environment: dict[str, str]) -> Version | None:
    """The version of the Rust that this environment leads to; None if rustc or cargo is missing or does not run."""
    # Asking must not make rustup install anything.
    asking = environment | {"RUSTUP_AUTO_INSTALL": "0"}
    versions = []
    for tool in ("rustc", "cargo"):
        path = shutil.which(tool, path=environment.get("PATH"))
        if path is None:
            return None
        done = subprocess.run([path, "--version"], cwd=ROOT, env=asking, capture_output=True, text=True, check=False)
        found = re.match(rf"{tool} (\d+\.\d+\.\d+)", done.stdout)
        if done.returncode != 0 or found is None:
            return None
        versions.append(version(found[1]))
    return min(versions)


def own_environment(channel: str) -> dict[str, str]:
    """The environment in which cargo, rustc and rustup are those of the checkout."""
    return os.environ | {
        "CARGO_HOME": str(OWN / "cargo"),
        "RUSTUP_HOME": str(OWN / "rustup"),
        "RUSTUP_TOOLCHAIN": channel,
        "PATH": f"{OWN / 'cargo' / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }


def install(pinned: dict, environment: dict[str, str]) -> None:
    """Installs the pinned Rust into the checkout, completely or not at all."""
    shutil.rmtree(OWN, ignore_errors=True)
    complete = False
    try:
        OWN.mkdir()
        installer = download_installer(OWN / "rustup-init")
        options = ["-y", "--quiet", "--no-modify-path", "--default-toolchain", pinned["channel"]]
        options += ["--profile", pinned["profile"], *(f"--component={name}" for name in pinned["components"])]
        # The toolchain that the variable names is not there yet.
        installing = {name: value for name, value in environment.items() if name != "RUSTUP_TOOLCHAIN"}
        installing["RUSTUP_INIT_SKIP_PATH_CHECK"] = "yes"
        done = subprocess.run([installer, *options], env=installing, capture_output=True, text=True, check=False)
        installer.unlink()
        if done.returncode != 0 or rust_version(environment) != version(pinned["channel"]):
            said = [line for line in done.stderr.splitlines() if line.startswith("error")] or done.stderr.splitlines()
            raise CannotInstall(
                said[0].removeprefix("error: ") if said else f"rustup-init exited with {done.returncode}"
            )
        complete = True
    except OSError as error:
        raise CannotInstall(str(error)) from error
    finally:
        if not complete:
            shutil.rmtree(OWN, ignore_errors=True)


def download_installer(path: Path) -> Path:
    """rustup's installer for this machine."""
    libc = "gnu" if platform.libc_ver()[0] == "glibc" else "musl"
    root = os.environ.get("RUSTUP_UPDATE_ROOT") or f"{os.environ.get('RUSTUP_DIST_SERVER') or SERVER}/rustup"
    address = f"{root}/dist/{platform.machine()}-unknown-linux-{libc}/rustup-init"
    try:
        with urllib.request.urlopen(address, timeout=ANSWER_TIMEOUT_S) as answer, path.open("wb") as file:
            shutil.copyfileobj(answer, file)
    except (URLError, OSError, ValueError) as error:
        raise CannotInstall(f"{address}: {getattr(error, 'reason', error)}") from error
    path.chmod(0o755)
    return path


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
