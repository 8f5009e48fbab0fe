"""Builds what a release consists of into dist/, and checks it: wheels and source archives, of the laboratory too.

    python tools/wheels.py [--target TRIPLE] [--profile release] [--out dist]

Zig links the core, so that the wheel runs on every Linux since glibc 2.17, of 2012, whatever this machine has. With
`--target`, only the wheel of the core for that target is built.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The oldest C library that wheels run with, for each of the two that Linux has.
GLIBC = (2, 17)
MUSL = "musllinux_1_2"
_SYMBOL = re.compile(r"\bGLIBC_(\d+)\.(\d+)(?:\.\d+)?\b")
_NATIVE = "broadleaf/_native.abi3.so"


class NotPortable(Exception):
    """A wheel needs more than it may; the text says what."""


def is_musl(target: str) -> bool:
    return target.endswith("-musl")


def build_core(out: Path, target: str, profile: str) -> Path:
    """Builds the wheel of Broadleaf with the interpreter that runs this."""
    platform = MUSL if is_musl(target) else "manylinux_{}_{}".format(*GLIBC)
    options = ["--target", target] if target else []
    # Maturin looks for Zig among the modules of the first Python on the path.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    with tempfile.TemporaryDirectory() as made:
        subprocess.run(
            [
                "maturin", "build", "--profile", profile, "--locked", "--zig", "--compatibility", platform,
                "--interpreter", sys.executable, "--out", made, *options,
            ],
            cwd=ROOT, env={**os.environ, "PATH": path}, check=True,
        )  # fmt: skip
        (wheel,) = Path(made).glob("*.whl")
        return Path(shutil.move(wheel, out / wheel.name))


def build_core_sources(out: Path) -> Path:
    """Packs the sources of Broadleaf."""
    with tempfile.TemporaryDirectory() as made:
        command = [str(Path(sys.executable).with_name("maturin")), "sdist", "--out", made]
        subprocess.run(command, cwd=ROOT, check=True)
        (archive,) = Path(made).glob("*.tar.gz")
        return Path(shutil.move(archive, out / archive.name))


def build_laboratory(out: Path) -> list[Path]:
    """Builds the wheel of the laboratory, and packs its sources."""
    program = (
        "from flit_core import buildapi as b; import sys; print(b.build_wheel(sys.argv[1]), b.build_sdist(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(out)], cwd=ROOT / "lab", check=True, stdout=subprocess.PIPE, text=True
    )
    return [out / name for name in done.stdout.split()]


def highest_glibc(library: Path) -> tuple[int, int]:
    """The newest version of glibc that a library asks for; (0, 0) for none."""
    done = subprocess.run(
        ["readelf", "--version-info", "--wide", str(library)], check=True, stdout=subprocess.PIPE, text=True
    )
    return max(((int(major), int(minor)) for major, minor in _SYMBOL.findall(done.stdout)), default=(0, 0))


def check(wheel: Path, target: str) -> str:
    """What a wheel of the core needs, in words. Raises `NotPortable` if that is more than it may."""
    with tempfile.TemporaryDirectory() as unpacked, zipfile.ZipFile(wheel) as contents:
        library = Path(contents.extract(_NATIVE, unpacked))
        needed = highest_glibc(library)
    if is_musl(target):
        if needed != (0, 0):
            raise NotPortable(f"{wheel.name} asks for glibc {needed[0]}.{needed[1]}")
        return MUSL
    if needed > GLIBC:
        raise NotPortable(f"{wheel.name} asks for glibc {needed[0]}.{needed[1]}, newer than {GLIBC[0]}.{GLIBC[1]}")
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", str(wheel)], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    tag = re.search(r'platform tag:\s+"([^"]+)"', " ".join(shown.split()))
    oldest = re.match(r"manylinux_(\d+)_(\d+)_", tag[1]) if tag else None
    if oldest is None or (int(oldest[1]), int(oldest[2])) > GLIBC:
        raise NotPortable(f"{wheel.name}: auditwheel finds it not portable:\n{shown}")
    return f"newest symbol of glibc {needed[0]}.{needed[1]}; auditwheel: {oldest.string}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Build and check the wheels and source archives of a release.")
    parser.add_argument("--target", default="", help="build only the wheel of the core, for this target of Rust")
    parser.add_argument("--profile", default="release", help="Cargo's profile for the core")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the files")
    options = parser.parse_args()

    out = options.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    try:
        wheel = build_core(out, options.target, options.profile)
        words = check(wheel, options.target)
    except NotPortable as error:
        print(error, file=sys.stderr)
        return 1
    files = [wheel] if options.target else [wheel, build_core_sources(out), *build_laboratory(out)]
    for file in files:
        print(f"{file.stat().st_size / 1e6:8.2f} MB  {file.name}" + (f"  ({words})" if file == wheel else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
