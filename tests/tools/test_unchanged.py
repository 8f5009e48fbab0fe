"""What succeeded is run again exactly when something that it depends on has changed."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "unchanged.py"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A git checkout with one tracked file, and a record outside what git sees."""
    root = tmp_path / "checkout"
    root.mkdir()
    subprocess.run(["git", "init", "--quiet", str(root)], check=True)
    (root / ".gitignore").write_text("ran\nrecord.json\n")
    (root / "source.txt").write_text("one")
    return root


def run(root: Path, *options: str, command: str = "echo x >> ran") -> int:
    """Runs the command under the tool; its exit code."""
    words = [sys.executable, str(TOOL), "--record", "record.json", *options, "--", "sh", "-c", command]
    return subprocess.run(words, cwd=root, check=False, stdout=subprocess.DEVNULL).returncode


def times(root: Path) -> int:
    return len((root / "ran").read_text().split())


def test_nothing_changed_means_no_second_run(checkout):
    assert run(checkout) == 0
    assert run(checkout) == 0
    assert times(checkout) == 1


@pytest.mark.parametrize("change", ["edited", "added", "deleted"])
def test_any_change_of_a_file_means_a_run(checkout, change):
    run(checkout)
    if change == "edited":
        (checkout / "source.txt").write_text("two")
    elif change == "added":
        (checkout / "more.txt").write_text("")
    else:
        (checkout / "source.txt").unlink()
    run(checkout)
    assert times(checkout) == 2


def test_files_outside_the_inputs_do_not_count(checkout):
    run(checkout, "--inputs", "source.txt")
    (checkout / "more.txt").write_text("")
    run(checkout, "--inputs", "source.txt")
    assert times(checkout) == 1


def test_a_variable_of_the_tests_means_a_run(checkout, monkeypatch):
    run(checkout)
    monkeypatch.setenv("BROADLEAF_SIM_SEEDS", "10000")
    run(checkout)
    assert times(checkout) == 2


def test_again_always_runs(checkout):
    run(checkout)
    run(checkout, "--again")
    assert times(checkout) == 2


def test_a_failure_is_passed_on_and_not_remembered(checkout):
    run(checkout)
    failing = "echo x >> ran; exit 3"
    assert run(checkout, command=failing) == 3
    assert run(checkout, command=failing) == 3
    assert run(checkout) == 0
    assert times(checkout) == 4


def test_a_file_edited_during_the_run_was_not_tested(checkout):
    run(checkout, command="echo x >> ran; echo two > source.txt")
    run(checkout, command="echo x >> ran; echo two > source.txt")
    assert times(checkout) == 2


def test_without_git_every_run_runs(tmp_path):
    run(tmp_path)
    run(tmp_path)
    assert times(tmp_path) == 2
