"""What the shell offers after Tab."""

import json
import os
import subprocess
import sys

import pytest
from broadleaf.cli import group
from broadleaf.state import files
from broadleaf.state.directories import write_json
from click.testing import CliRunner


@pytest.fixture(autouse=True)
def base(tmp_path, monkeypatch):
    monkeypatch.setenv("BROADLEAF_DIR", str(tmp_path / "base"))
    return tmp_path / "base"


def offered(line):
    """Completions of a line whose cursor is at its end, as the shell asks for them."""
    words = line.split(" ")
    variables = {
        "_BROADLEAF_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = CliRunner().invoke(group, [], prog_name="broadleaf", env=variables)
    assert done.exit_code == 0, done.output
    return [entry.partition(",")[2] for entry in done.stdout.splitlines() if entry]


def running_here(base, profile, cluster_id, pid):
    """Files of a cluster whose process has this id."""
    directory = base / "profiles" / profile / cluster_id
    directory.mkdir(parents=True)
    write_json(directory / files.CLIENT_FILE, {})
    write_json(directory / files.CLUSTER_FILE, {"controller": {"fork_server_pid": pid}})


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell(shell):
    if shell == "bash":
        from click.shell_completion import BashComplete

        try:
            BashComplete._check_version()
        except RuntimeError:
            pytest.skip("this bash is too old")
    done = CliRunner().invoke(group, [], prog_name="broadleaf", env={"_BROADLEAF_COMPLETE": f"{shell}_source"})
    assert done.exit_code == 0
    assert "_BROADLEAF_COMPLETE" in done.stdout


def test_commands_of_every_level():
    assert offered("broadleaf sta") == ["start", "status"]
    assert offered("broadleaf lab an") == ["analyse"]
    assert offered("broadleaf config ") == ["show"]
    assert offered("broadleaf bench la") == ["latency"]
    assert {"all", "raw"} <= set(offered("broadleaf bench "))


def test_options():
    assert offered("broadleaf status --pro") == ["--profile", "--prometheus"]
    assert "--quick" in offered("broadleaf bench latency --qu")


def test_clusters_that_run_and_profiles(base):
    child = subprocess.Popen(
        [sys.executable, "-c", "print(input('runs'))"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"BROADLEAF_CLUSTER_ID": "alive"},
    )
    assert child.stdout.read(4) == b"runs"
    try:
        running_here(base, "default", "alive", child.pid)
        running_here(base, "other", "alive", child.pid)
        running_here(base, "other", "dead", os.getpid())
        assert offered("broadleaf stop --cluster-id ") == ["alive"]
        assert offered("broadleaf stop --profile other --cluster-id ") == ["alive"]
        assert offered("broadleaf stop --cluster-id d") == []
        assert offered("broadleaf stop --profile ") == ["default", "other"]
    finally:
        child.communicate(b"\n")


def test_options_of_a_cluster_and_their_values():
    assert offered("broadleaf start -o ste") == ["steal=", "steal_after_us="]
    levels = ("off", "error", "info", "debug")
    assert offered("broadleaf start -o log_level=") == [f"log_level={level}" for level in levels]
    assert offered("broadleaf config show tre") == ["tree_arity", "tree_depth"]


def test_completing_imports_no_command():
    code = (
        "import sys\nfrom broadleaf.cli import main\ntry:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([m for m in sys.modules if m.startswith('broadleaf_lab.cli.') and m.count('.') > 2 or m == 'rich'],"
        " file=sys.stderr)"
    )
    variables = {"_BROADLEAF_COMPLETE": "bash_complete", "COMP_WORDS": "broadleaf lab ", "COMP_CWORD": "2"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50,
                          env=os.environ | variables, check=True)  # fmt: skip
    assert "plain,analyse" in done.stdout
    assert json.loads(done.stderr) == []
