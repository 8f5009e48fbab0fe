"""The outcome of a user's mistakes: one line on standard error, the closest command or option, and an exit code."""

import pytest
from broadleaf.cli import group
from click.testing import CliRunner


@pytest.fixture(autouse=True)
def base(tmp_path, monkeypatch):
    monkeypatch.setenv("BROADLEAF_DIR", str(tmp_path / "base"))
    return tmp_path / "base"


def said(*arguments, code):
    """The one line that reports a mistake."""
    done = CliRunner().invoke(group, arguments, prog_name="broadleaf")
    assert done.exit_code == code, done.output
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["staus"], "'status'"),
        (["config", "sho"], "'show'"),
        (["lab", "analize"], "'analyse'"),
        (["bench", "latncy"], "'latency'"),
        (["start", "--engnes", "3"], "'--engines'"),
        (["lab", "analyse", "--scal", "log"], "'--scale'"),
        (["bench", "latency", "--qick"], "'--quick'"),
        (["config", "show", "prefetch_targt_us"], "'prefetch_target_us'"),
        (["start", "-o", "prefetch_mn=3"], "'prefetch_min'"),
    ],
)
def test_the_closest_word_is_suggested(arguments, meant):
    line = said(*arguments, code=2)
    assert meant in line
    assert "id you mean" in line


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["start", "-n", "four"], "'four' is not a whole number"),
        (["start", "-n", "-1"], "-1 is not in the range"),
        (["plan"], "missing option '--engines' / '-n'"),
        (["bench", "--quick", "latency"], "put options after the case, as in `broadleaf bench latency --quick`"),
        (["bench", "--json", "out.json", "latency"], "--json comes before the case"),
        (["bench", "latency", "--repeats", "0"], "0 is not in the range"),
        (["stop", "--all", "--cluster-id", "x"], "cannot be combined"),
        (["status", "--profile", "a/b"], "profile 'a/b'"),
        (["list", "--profile", "a/b"], "profile 'a/b'"),
        (["stop", "--cluster-id", "a/b"], "cluster id 'a/b'"),
        (["start", "--cluster-id", ""], "cluster id ''"),
        (["top", "--interval", "soon"], "'soon' is not a number"),
    ],
)
def test_wrong_usage_says_why_and_where_the_help_is(arguments, why):
    line = said(*arguments, code=2)
    assert why in line
    assert " See 'broadleaf " in line
    assert line.endswith(" --help'.")


@pytest.mark.parametrize("command", [["status"], ["top"], ["logs"], ["stop"]])
def test_no_cluster_says_where_it_looked_and_how_to_start_one(command, base):
    line = said(*command, "--profile", "quiet", code=1)
    assert "no cluster is running in profile 'quiet'" in line
    assert f"(looked in {base}/profiles/quiet)" in line
    assert line.endswith("Start one with `broadleaf start --profile quiet`")


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "--engines", "3", "--plot", "/proc/nowhere"],
        ["lab", "init", "/proc/nowhere"],
        ["bench", "raw", "--quick", "--json", "/proc/nowhere/x.jsonl"],
    ],
)
def test_a_place_that_cannot_be_written_is_named(arguments):
    if "--plot" in arguments:
        pytest.importorskip("matplotlib")
    done = CliRunner().invoke(group, arguments)
    assert done.exit_code == 1
    assert "error: /proc/nowhere" in done.stderr
    assert "No such file or directory" in done.stderr
    assert "Traceback" not in done.output


def test_an_error_of_the_program_keeps_its_traceback(monkeypatch):
    from broadleaf.cluster import ClusterManager

    def broken(*_):
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr(ClusterManager, "load_clusters", broken)
    done = CliRunner().invoke(group, ["list"])
    assert isinstance(done.exception, ZeroDivisionError)


def test_a_wrong_value_in_the_environment_is_one_line(monkeypatch):
    monkeypatch.setenv("BROADLEAF_TLS", "maybe")
    assert "option 'tls' from environment BROADLEAF_TLS: expected on or off, got 'maybe'" in said(
        "config", "show", code=1
    )


def test_a_study_without_runs_is_said_to_have_none(tmp_path):
    pytest.importorskip("pandas")
    assert CliRunner().invoke(group, ["lab", "init", str(tmp_path)]).exit_code == 0
    for command in (["analyse", str(tmp_path)], ["deltas", str(tmp_path)], ["path", "-s", str(tmp_path)]):
        assert said("lab", *command, code=1).endswith("there are no runs yet. Make them with `broadleaf-lab run`.")
