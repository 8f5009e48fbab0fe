"""Versions: each is written in one place, and the interpreters that are refused are named."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import broadleaf
import pytest
from packaging.requirements import Requirement

CHECKOUT = Path(__file__).resolve().parents[2]


def read(name: str) -> dict:
    return tomllib.loads((CHECKOUT / name).read_text())


def test_the_version_is_that_of_the_workspace():
    version = read("Cargo.toml")["workspace"]["package"]["version"]
    assert broadleaf.__version__ == version
    assert broadleaf.version_info[:3] == tuple(map(int, version.split(".")[:3]))
    assert "version" in read("pyproject.toml")["project"]["dynamic"]
    for manifest in CHECKOUT.glob("crates/*/Cargo.toml"):
        if manifest.parent.name != "fuzz":  # never released
            assert tomllib.loads(manifest.read_text())["package"]["version"] == {"workspace": True}
    locked = {package["name"]: package["version"] for package in read("Cargo.lock")["package"]}
    assert {v for name, v in locked.items() if name.startswith("broadleaf-")} == {version}


def test_the_extras_ask_for_this_laboratory():
    version = read("lab/pyproject.toml")["project"]["version"]
    extras = read("pyproject.toml")["project"]["optional-dependencies"]
    wanted = [Requirement(text) for texts in extras.values() for text in texts if text.startswith("broadleaf-lab")]
    assert wanted
    assert all(requirement.specifier.contains(version) for requirement in wanted)


@pytest.mark.parametrize("page", ["README.md", "docs/install.md"])
def test_commands_for_a_checkout_install_the_laboratory_from_it(page):
    """The package index has no laboratory before the first release."""
    extras = read("pyproject.toml")["project"]["optional-dependencies"]
    with_laboratory = {"all", *(name for name, texts in extras.items() if any("broadleaf-lab" in t for t in texts))}
    commands = [shlex.split(words) for words in re.findall(r"pip install ([^`\n]+)", (CHECKOUT / page).read_text())]
    asked = [words for words in commands if with_laboratory & set(re.findall(r"[a-z]+", " ".join(words)))]
    assert asked
    assert all("./lab" in words for words in asked), asked


def test_the_interpreters_of_the_classifiers_are_those_that_releases_are_tested_with():
    workflow = (CHECKOUT / ".github/workflows/release.yml").read_text()
    project = read("pyproject.toml")["project"]
    prefix = "Programming Language :: Python :: 3."
    minors = [text.removeprefix(prefix) for text in project["classifiers"] if text.startswith(prefix)]
    assert minors == ["11", "12", "13", "14"]
    listed = ", ".join(f'"3.{minor}"' for minor in minors)
    assert f"python: [{listed}]" in workflow
    assert project["requires-python"] == f">=3.{minors[0]}"


def test_a_free_threaded_python_is_refused_by_name():
    program = "import sys; sys.abiflags = 't'; import broadleaf"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    assert done.returncode == 1
    name = "python{}.{}".format(*sys.version_info)
    assert done.stderr.strip().splitlines()[-1] == (
        f"ImportError: Broadleaf does not run on {name}t, a free-threaded build of Python: use {name}"
    )


@pytest.mark.skipif("t" in sys.abiflags, reason="this is a free-threaded build")
def test_others_are_not():
    assert metadata.version("broadleaf") == broadleaf.__version__
