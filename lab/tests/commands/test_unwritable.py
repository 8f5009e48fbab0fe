"""Full disks and read-only folders: results are still shown, stored data stays intact, and a line says what to do. The
folders are file systems of a few hundred kilobytes in a mount namespace of their own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("scipy")
from broadleaf_lab.spec.runs import read_runs
from synthetic.study import write

pytestmark = pytest.mark.timeout(300)
PROGRAM = "import sys\nfrom broadleaf_lab.cli import main\nsys.argv[0] = 'broadleaf-lab'\nmain()\n"
NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]


def may_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    command = [*NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0


@pytest.fixture(autouse=True, scope="module")
def _allowed() -> None:
    if not may_mount():
        pytest.skip("mounting a file system in a namespace is not allowed here")


def inside(folder: Path, size_kb: int, prepare: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of the laboratory on a copy of `folder` in a file system of `size_kb`, after the shell's `prepare`. The
    copy is put back into `folder` afterwards."""
    script = (
        f"set -e; mkdir -p {folder}/../small; mount -t tmpfs -o size={size_kb}k tmpfs {folder}/../small; "
        f"cd {folder}/../small; cp -r {folder} study; cd study; {prepare}; set +e; "
        f'"$@"; code=$?; cp -f * {folder}/; exit $code'
    )
    command = [*NAMESPACE, "sh", "-c", script, "sh", sys.executable, "-c", PROGRAM, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)


FILL = "dd if=/dev/zero of=../filling bs=1k 2>/dev/null || true"
READ_ONLY = "mount -o remount,ro .."


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A study with runs and a plan, and nothing made from them."""
    write(tmp_path / "study", "eight", design={"paths": 4})
    return tmp_path / "study"


@pytest.mark.parametrize("state", [FILL, READ_ONLY])
@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["analyse", "."], "effects on time per task"),
        (["deltas", "."], "mean change per task"),
        (["path", "greedy"], "baseline"),
        (["plan", ".", "--force"], "what it will tell"),
    ],
)
def test_what_was_found_is_shown_although_it_cannot_be_written(measured, state, words, shown):
    done = inside(measured, 1200, state, *words)
    assert shown in done.stdout
    assert "Traceback" not in done.stderr
    assert "cannot be written: " in done.stderr
    assert done.returncode == 1
    assert not [path.name for path in measured.iterdir() if path.name.startswith(".") or path.suffix == ".part"]


def test_a_report_that_cannot_be_written_says_where(measured):
    done = inside(measured, 1200, FILL, "report", ".", "--no-images")
    assert "Traceback" not in done.stderr
    assert "report.html cannot be written: No space left on device" in done.stderr


STUDY = """
[study]
command = ["{python}", "-c", "print(5)"]
score = "regex:(.+)"
[study.calibrate]
n_tasks = 1
[factors.a]
set.env = "A"
levels = ["x", "y"]
[design]
kind = "full"
replicates = 40
"""


def test_runs_end_whole_where_the_disk_is_full_and_go_on_where_there_is_room(tmp_path):
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "study.toml").write_text(STUDY)
    words = ["run", ".", "--max-wait", "0", "--runs", "60"]
    # Room for the plan and some runs, not for all.
    first = inside(folder, 24, "true", *words)
    assert first.returncode == 1, first.stdout
    assert "Traceback" not in first.stderr
    assert "runs.csv cannot be written: No space left on device." in first.stderr
    assert "then run the same command again" in first.stderr
    kept = read_runs(folder / "runs.csv")
    assert 0 < len(kept) < 60
    assert f"the {len(kept)} before it are kept" in first.stderr
    (folder / "runs.lock").unlink(missing_ok=True)
    again = inside(folder, 4000, "true", *words)
    assert again.returncode == 0, again.stderr
    rows = read_runs(folder / "runs.csv")
    assert [row["run_id"] for row in rows] == [f"r{number:06d}" for number in range(1, len(rows) + 1)]
    assert len(rows) == min(90, len(kept) + 60)


def test_a_study_that_may_only_be_read_is_not_run(tmp_path):
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "study.toml").write_text(STUDY)
    done = inside(folder, 400, READ_ONLY, "run", ".", "--max-wait", "0")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "cannot be written: Read-only file system" in done.stderr
