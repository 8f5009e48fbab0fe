"""Wheels and source archives: what they hold and ask of a machine, and that they install and run by themselves."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
# The first that uses the release waits until it is built.
pytestmark = [pytest.mark.sites, pytest.mark.timeout(1500)]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")


def interpreter(version: str) -> str | None:
    """A Python of this version: on the path, or among those that pyenv has."""
    pyenv = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    found = [shutil.which(f"python{version}"), *sorted(glob.glob(f"{pyenv}/versions/{version}.*/bin/python"))]
    for python in filter(None, found):
        command = [python, "-c", "import sys; print('{}.{}'.format(*sys.version_info), sys.abiflags)"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        if done.returncode == 0 and done.stdout.split() == [version]:
            return python
    return None


def empty_environment(folder: Path, python: str) -> Path:
    """The interpreter of an environment without any packages but pip."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True, timeout=120)
    return folder / "bin/python"


def run(*command: str | Path, cwd: Path, timeout_s: float = 300) -> str:
    """What a command prints. It sees nothing of this checkout."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=timeout_s, cwd=cwd, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(python: Path, *requirements: str | Path, cwd: Path, timeout_s: float = 300) -> None:
    run(
        python,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        *requirements,
        cwd=cwd,
        timeout_s=timeout_s,
    )


def names_in(sources: Path) -> list[str]:
    with tarfile.open(sources) as archive:
        return archive.getnames()


def test_the_wheel_asks_for_no_newer_glibc_than_2_17(release):
    assert release.wheel.name.endswith("-cp311-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl")
    assert "newest symbol of glibc 2.1" in release.report


def test_the_wheel_holds_the_package_and_nothing_else(release):
    names = zipfile.ZipFile(release.wheel).namelist()
    assert "broadleaf/_native.abi3.so" in names
    assert "broadleaf/py.typed" in names
    roots = {name.split("/")[0] for name in names}
    version = release.wheel.name.split("-")[1]
    assert roots == {"broadleaf", f"broadleaf-{version}.dist-info"}
    assert not [name for name in names if name.endswith((".pyc", ".orig"))]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_wheel_runs_in_an_empty_environment(release, version, tmp_path):
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version}")
    python = empty_environment(tmp_path / "venv", python)
    install(python, release.wheel, cwd=tmp_path)
    shutil.copy(CHECKOUT / "examples/demo.py", tmp_path)
    assert "primes below 200,000: 17,984" in run(python, "demo.py", cwd=tmp_path)
    where = run(python, "-c", "import broadleaf; print(broadleaf.__file__, broadleaf.__version__)", cwd=tmp_path)
    assert where.startswith(str(tmp_path))
    assert where.split()[1] == release.wheel.name.split("-")[1]
    assert "Usage: broadleaf" in run(python.with_name("broadleaf"), "--help", cwd=tmp_path)


def test_the_laboratory_runs_from_its_wheel(release, tmp_path):
    python = empty_environment(tmp_path / "venv", sys.executable)
    install(python, "--no-deps", release.lab_wheel, cwd=tmp_path)
    # What it needs is large, and installed here.
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])", cwd=tmp_path).strip())
    (site / "needed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    where = run(python, "-c", "import broadleaf_lab; print(broadleaf_lab.__file__)", cwd=tmp_path)
    assert where.startswith(str(tmp_path))
    assert "Usage: broadleaf-lab" in run(python.with_name("broadleaf-lab"), "--help", cwd=tmp_path)


def test_the_sources_build_in_an_empty_environment(release, tmp_path, monkeypatch):
    names = names_in(release.sources)
    root = release.sources.name.removesuffix(".tar.gz")
    for name in ("Cargo.lock", "Cargo.toml", "LICENSE", "README.md", "pyproject.toml", "python/broadleaf/__init__.py"):
        assert f"{root}/{name}" in names
    python = empty_environment(tmp_path / "venv", sys.executable)
    # What the core depends on has been compiled.
    monkeypatch.setenv("CARGO_TARGET_DIR", os.environ.get("CARGO_TARGET_DIR", str(CHECKOUT / "target")))
    monkeypatch.setenv("MATURIN_PEP517_ARGS", "--profile tests")
    install(python, release.sources, cwd=tmp_path, timeout_s=1200)
    program = (
        "import broadleaf as ipp; rc = ipp.Cluster(n=2).start_and_connect_sync(); print(rc[:].apply_sync(abs, -1))"
    )
    assert run(python, "-c", program, cwd=tmp_path) == "[1, 1]\n"


def test_the_laboratorys_sources_build(release, tmp_path):
    names = names_in(release.lab_sources)
    root = release.lab_sources.name.removesuffix(".tar.gz")
    assert f"{root}/pyproject.toml" in names
    assert f"{root}/src/broadleaf_lab/__init__.py" in names
