"""Lays out the tests of the installed IPython Parallel for a run on Broadleaf. They are not stored here.

The modules are used as installed, except for what stands between them and a cluster: the package's own `__init__` and
fixtures, which are ours, and the two lines that are changed below.
"""

import importlib.util
import shutil
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGE = "ipp_tests"
_CHANGES = {
    "clienttest.py": (
        # The tests' package has another name here.
        ("from ipyparallel.tests import add_engines, launchers", "from . import add_engines, launchers"),
        # A ZMQ context is of no use to a client without ZMQ; passed by the fixture only.
        ("Client(profile='iptest', context=self.context)", "Client(profile='iptest')"),
    ),
}
_SETTINGS = """[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
addopts = --tb=short
"""


def installed_tests() -> Path:
    """The tests of the installed IPython Parallel."""
    tests = Path(sysconfig.get_paths()["purelib"], "ipyparallel", "tests")
    if not tests.is_dir():
        raise SystemExit("IPython Parallel is not installed here: run `make peer-tests`")
    return tests


def lay_out(work: Path) -> Path:
    """Copies the tests into `work` and changes them; returns their directory."""
    tests = work / PACKAGE
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(installed_tests(), tests, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(HERE / "suite_package.py", tests / "__init__.py")
    shutil.copy(HERE / "suite_fixtures.py", tests / "conftest.py")
    for name, changes in _CHANGES.items():
        path = tests / name
        text = path.read_text()
        for old, new in changes:
            if text.count(old) != 1:
                raise SystemExit(f"{name} is not what this was written for: {old!r}")
            text = text.replace(old, new)
        path.write_text(text)
    (tests / "pytest.ini").write_text(_SETTINGS)
    return tests


def link_package() -> None:
    """Has this environment import Broadleaf from this checkout, as its own environment does."""
    if importlib.util.find_spec("broadleaf") is not None:
        return
    site = Path(sysconfig.get_paths()["purelib"])
    for entry in (ROOT / ".venv").glob("lib/python*/site-packages/broadleaf*"):
        (site / entry.name).symlink_to(entry)
