"""`make` uses a recent Rust of the machine unchanged, and otherwise installs one into the checkout and nowhere else."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PINNED = tomllib.loads((ROOT / ".ci" / "rust-toolchain.toml").read_text())["toolchain"]["channel"]
# What the tool may find on the PATH besides Rust and a compiler.
NEEDED = ("sh", "cat", "chmod", "mkdir", "dirname", "ldd", "uname")


class Machine:
    """A checkout with the tool in it, and a PATH that contains what a test puts there."""

    def __init__(self, root: Path) -> None:
        self.checkout = root / "a clone, größer"
        self.bin = root / "bin"
        self.home = root / "home"
        self.server = root / "server"
        for folder in (self.checkout / ".ci", self.bin, self.home, self.server):
            folder.mkdir(parents=True)
        for name in (".ci/rust.py", ".ci/rust-toolchain.toml", "Cargo.toml"):
            shutil.copy(ROOT / name, self.checkout / name)
        for name in NEEDED:
            if found := shutil.which(name):
                (self.bin / name).symlink_to(found)
        self.put("cc", "exit 0")

    def put(self, name: str, script: str) -> None:
        """A program on the PATH."""
        write_program(self.bin / name, script)

    def put_rust(self, version: str) -> None:
        for tool in ("rustc", "cargo"):
            self.put(tool, f"echo '{tool} {version}'")

    def serve_installer(self, script: str) -> None:
        """What the tool downloads as rustup's installer on any machine."""
        for machine in ("x86_64", "aarch64"):
            for libc in ("gnu", "musl"):
                write_program(self.server / "dist" / f"{machine}-unknown-linux-{libc}" / "rustup-init", script)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.bin), "HOME": str(self.home), "RUSTUP_UPDATE_ROOT": self.server.as_uri()}
        words = [sys.executable, str(self.checkout / ".ci" / "rust.py"), *command]
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=30, check=False)

    def outside(self) -> list[Path]:
        return list(self.home.rglob("*"))


def write_program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


INSTALLER = f"""
set -e
[ -z "$RUSTUP_TOOLCHAIN" ]
mkdir -p "$CARGO_HOME/bin" "$RUSTUP_HOME"
for tool in rustc cargo; do
  printf '#!/bin/sh\\necho %s {PINNED}\\n' "$tool" > "$CARGO_HOME/bin/$tool"
  chmod +x "$CARGO_HOME/bin/$tool"
done
for word in "$@"; do echo "$word" >> "$RUSTUP_HOME/words"; done
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_recent_rust_is_used_as_it_is(machine):
    machine.put_rust("1.90.0 (abc 2025-09-14)")
    done = machine.run("sh", "-c", 'cargo --version; echo "${CARGO_HOME-none}"; exit 7')
    assert (done.returncode, done.stdout, done.stderr) == (7, "cargo 1.90.0 (abc 2025-09-14)\nnone\n", "")
    assert not (machine.checkout / ".toolchain").exists()


@pytest.mark.parametrize("has", ["", "1.63.0", "1.89.0-nightly"])
def test_missing_or_old_rust_is_installed_into_the_checkout(machine, has):
    if has:
        machine.put_rust(has)
    machine.serve_installer(INSTALLER)
    done = machine.run("sh", "-c", 'cargo --version; rustc --version; echo "$CARGO_HOME"')
    own = machine.checkout / ".toolchain"
    first, *rest = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    shown = has.removesuffix("-nightly").removesuffix(".0") or "none"
    assert first == (
        f"Broadleaf needs Rust 1.90 or newer; this machine has {shown}. Installing Rust {PINNED} into .toolchain/"
    )
    assert rest == [f"cargo {PINNED}", f"rustc {PINNED}", str(own / "cargo")]
    words = (own / "rustup" / "words").read_text().splitlines()
    assert "--no-modify-path" in words
    assert words[words.index("--default-toolchain") + 1] == PINNED
    assert {"--component=clippy", "--component=rustfmt"} <= set(words)
    assert machine.outside() == []
    # The second time it exists already.
    machine.serve_installer("exit 9")
    assert machine.run("cargo", "--version").stdout == f"cargo {PINNED}\n"


def test_rustup_without_a_toolchain_is_no_rust_and_installs_none_when_asked(machine):
    for tool in ("rustc", "cargo"):
        machine.put(tool, '[ "$RUSTUP_AUTO_INSTALL" = 0 ] || touch "$HOME/installed"; exit 1')
    machine.serve_installer(INSTALLER)
    assert machine.run("cargo", "--version").stdout.endswith(f"\ncargo {PINNED}\n")
    assert machine.outside() == []


@pytest.mark.parametrize(
    ("installer", "why"),
    [
        (None, "rustup-init: [Errno 2] No such file or directory"),
        (
            "echo 'info: x' >&2; echo 'error: could not download file' >&2; exit 1",
            "downloaded: could not download file",
        ),
        ("exit 3", "rustup-init exited with 3"),
        ("exit 0", "rustup-init exited with 0"),
    ],
)
def test_rust_that_cannot_be_fetched_is_one_line_that_says_what_to_do(machine, installer, why):
    if installer is not None:
        machine.serve_installer(installer)
    done = machine.run("sh", "-c", "echo ran")
    assert done.returncode == 1
    assert "ran" not in done.stdout.splitlines()
    (line,) = done.stderr.splitlines()
    assert f"Rust {PINNED} cannot be downloaded: " in line
    assert why in line
    assert line.endswith("Install Rust from https://rustup.rs or from your distribution, and run make again.")
    assert not (machine.checkout / ".toolchain").exists()
    assert machine.outside() == []


def test_a_broken_toolchain_of_the_checkout_is_installed_again(machine):
    write_program(machine.checkout / ".toolchain" / "cargo" / "bin" / "cargo", "exit 1")
    machine.serve_installer(INSTALLER)
    assert machine.run("cargo", "--version").stdout.endswith(f"\ncargo {PINNED}\n")


def test_a_missing_c_compiler_is_said_before_anything_is_fetched(machine):
    (machine.bin / "cc").unlink()
    machine.serve_installer(INSTALLER)
    done = machine.run("sh", "-c", "echo ran")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "there is no `cc` on the PATH" in line
    assert not (machine.checkout / ".toolchain").exists()


def test_the_pinned_rust_is_recent_enough():
    minimum = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["rust-version"]
    assert [int(n) for n in PINNED.split(".")[:2]] >= [int(n) for n in minimum.split(".")]
