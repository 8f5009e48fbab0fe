"""The help of every command, and what it takes to show it."""

import re
import subprocess
import sys

import click
import pytest
from broadleaf.cli import group
from click.testing import CliRunner


def commands(found=group, words=()):
    """The words of every command and group, and itself."""
    yield words, found
    if isinstance(found, click.Group):
        context = click.Context(found)
        for name in found.list_commands(context):
            yield from commands(found.get_command(context, name), (*words, name))


ALL = dict(commands())


def text(*arguments):
    done = CliRunner().invoke(group, [*arguments, "--help"])
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    return done.stdout


def test_every_command_of_every_level_is_known():
    assert ("lab", "analyse") in ALL
    assert ("bench", "latency") in ALL
    assert ("bench", "sizes") in ALL
    assert len(ALL) > 40


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_help_begins_with_a_sentence_and_explains_every_option(words):
    shown = text(*words)
    assert shown.startswith("Usage: ")
    paragraph = " ".join(shown.split("\n\n")[1].split())
    assert re.match(r"[A-Z].*[.]$", paragraph), paragraph
    # The one line in the list of its group is the first sentence of its own help.
    command = ALL[words]
    if words:
        group_text = " ".join(text(*words[:-1]).split())
        assert f" {words[-1]} " in group_text
    for option in command.params:
        assert not isinstance(option, click.Option) or option.help, f"{words} {option.opts}"


@pytest.mark.parametrize(
    ("command", "columns"),
    [
        ("status", ["ENGINE", "STATE", "PID", "QUEUED", "DONE", "MEAN TASK", "BUSY", "RESTARTS"]),
        ("top", ["ENGINE", "STATE", "PID", "QUEUED", "DONE", "MEAN TASK", "BUSY", "RESTARTS"]),
        ("list", ["PROFILE", "CLUSTER ID", "ENGINES", "PID", "AGE", "KIND"]),
    ],
)
def test_columns_are_explained(command, columns):
    explained = text(command).partition("Columns:")[2]
    assert re.findall(r"^  ([A-Z]+(?: [A-Z]+)*)  +\S", explained, re.MULTILINE) == columns


def test_figures_of_a_benchmark_are_explained():
    assert "roundtrip_median" in text("bench", "latency").partition("Figures:")[2]


def test_the_light_commands_load_nothing_heavy():
    heavy = ("numpy", "pandas", "asyncio", "IPython", "matplotlib", "rich", "broadleaf._native")
    code = (
        "import sys\nfrom broadleaf.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    for arguments in (["--help"], ["--version"], ["status", "--help"], ["bench", "--help"], ["lab", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=50, check=True
        )
        loaded = done.stderr.strip()
        expected = "['broadleaf._native']" if arguments == ["--version"] else "[]"
        assert loaded in ("[]", expected), (arguments, loaded)
