"""The environments in which the pages run have what the pages name, and nothing else."""

import subprocess
from importlib.metadata import PackageNotFoundError

import pytest
from page_environments import declared, python_with, requirements_of

MODULES = ("click", "numpy", "matplotlib", "IPython", "ipywidgets", "tqdm", "pandas", "joblib", "distributed", "pytest")
FOUND = f"from importlib.util import find_spec as f; print(*(name for name in {MODULES} if f(name)))"


def found(*requirements):
    """Those modules that an environment has."""
    done = subprocess.run(
        [python_with(requirements), "-c", FOUND], capture_output=True, text=True, timeout=50, check=True
    )
    return set(done.stdout.split())


def test_they_have_what_is_named_and_what_that_requires():
    assert found() == {"click"}
    assert found("numpy") == {"click", "numpy"}
    assert found("pandas") == {"click", "numpy", "pandas"}
    assert found("broadleaf[notebook]") == {"click", "numpy", "matplotlib", "IPython", "ipywidgets", "tqdm"}
    assert found("broadleaf[plan]", "joblib") == {"click", "numpy", "matplotlib", "joblib"}


def test_they_have_broadleaf_and_its_command():
    python = python_with(())
    version = "import importlib.metadata as m, broadleaf; assert m.version('broadleaf') == broadleaf.__version__"
    subprocess.run([python, "-c", version], timeout=50, check=True)
    done = subprocess.run(
        [python.parent / "broadleaf", "--help"], capture_output=True, text=True, timeout=50, check=True
    )
    assert "Usage: broadleaf" in done.stdout


def test_equal_ones_are_made_once():
    assert python_with(("numpy",)) == python_with(("numpy", "broadleaf"))
    assert python_with(("numpy",)) != python_with(())


def test_what_is_not_locked_has_no_environment():
    with pytest.raises(PackageNotFoundError, match="no-such-package"):
        python_with(("no-such-package",))


def test_what_a_page_names():
    assert declared("It says `pip install elsewhere`.") == ()
    assert declared("# T\n\nThis page needs `pip install 'broadleaf[lab,notebook]' scipy`.\n") == (
        "broadleaf[lab,notebook]",
        "scipy",
    )
    assert declared("text. This step needs\nNumPy, not installed yet: `pip install numpy`.") == ("numpy",)
    assert {"numpy", "click", "pandas"} <= requirements_of(["broadleaf", "pandas"])
