"""The Python examples of the README and the pages run unchanged, each page from top to bottom as one script."""

import importlib.util
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import broadleaf
import click
import pytest
from broadleaf.cli import group

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = {
    str(page.relative_to(ROOT)): "".join(BLOCK.findall(page.read_text()))
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "_build" not in page.parts
}
# Their examples need hosts, or an MPI: tests in `tests/clusters` run them.
ELSEWHERE = {
    f"docs/guides/{page}.md" for page in ("ssh", "from-your-laptop", "slurm", "sge", "psij", "mpi", "dask", "ray")
}


def test_there_are_examples():
    assert {"README.md", "docs/index.md", "docs/tour.md"} <= {name for name, code in PAGES.items() if code}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("page", [name for name, code in PAGES.items() if code and name not in ELSEWHERE])
def test_examples_run(page, tmp_path):
    pytest.importorskip("broadleaf._native", reason="the native module is not built")
    script = tmp_path / "page.py"
    script.write_text(PAGES[page])
    # No engine is killed because it gets no processor for some seconds.
    environment = os.environ | {"BROADLEAF_DIR": str(tmp_path / "state"), "BROADLEAF_INTERRUPT_GRACE_S": "60"}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=100, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_reference_has_every_public_name():
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    documented = set(re.findall(r"^(?:\.\. \w+::|         ) +(\w+)$", pages, re.MULTILINE))
    modules = set(re.findall(r"^\.\. (?:auto)?module:: broadleaf\.(\w+)$", pages, re.MULTILINE))
    public = {name for name in dir(broadleaf) if not name.startswith("_")}
    assert documented | modules >= public, sorted(public - documented - modules)
    assert documented <= public | {"broadleaf"}, sorted(documented - public)


def test_the_page_on_commands_has_every_command_and_option():
    spec = importlib.util.spec_from_file_location(
        "command_reference", ROOT / "docs" / "extensions" / "command_reference.py"
    )
    assert spec
    assert spec.loader
    command_reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(command_reference)
    page = command_reference.page(group)
    sections = dict(re.findall(r"^#+ (broadleaf.*)\n((?:(?!^#+ broadleaf).*\n)*)", page, re.MULTILINE))

    def check(command, ctx):
        section = sections[ctx.command_path]
        options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
        missing = [option.opts for option in options if not any(name in section for name in option.opts)]
        assert missing == [], ctx.command_path
        for name in command.list_commands(ctx) if isinstance(command, click.Group) else ():
            below = command.get_command(ctx, name)
            check(below, click.Context(below, info_name=name, parent=ctx))

    check(group, click.Context(group, info_name="broadleaf"))


def test_the_gallery_has_ten_examples_that_are_there():
    folder = ROOT / "docs" / "gallery"
    shown = re.findall(r"^:::\{example-card\} (\S+)$", (folder / "index.md").read_text(), re.MULTILINE)
    assert len(shown) >= 10
    assert [page for page in shown if not (folder / f"{page}.md").exists()] == []
    assert {page.stem for page in folder.glob("*.md")} - {"index"} <= set(shown)


@pytest.mark.parametrize("page", PAGES)
def test_links_to_files_lead_somewhere(page):
    text = (ROOT / page).read_text()
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert [target for target in targets if not ((ROOT / page).parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_no_heading_skips_a_level(page):
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    levels = [len(marks) for marks in re.findall(r"^(#+) ", text, re.MULTILINE)]
    assert levels[0] == 1
    assert [f"{a} -> {b}" for a, b in itertools.pairwise(levels) if b > a + 1] == []
