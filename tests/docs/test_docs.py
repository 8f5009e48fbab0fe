"""The Python examples of the README and the pages run unchanged, each page from top to bottom as one script."""

import codeop
import doctest
import importlib.util
import itertools
import json
import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import broadleaf
import click
import pytest
from broadleaf.cli import group
from page_environments import declared, python_with, requirements_of

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A block, and what the page shows as its output.
SHOWN = re.compile(r"^```python\n((?:(?!^```).*\n)*)```\n\n```output\n((?:(?!^```).*\n)*)```$", re.MULTILINE)
PAGES = {
    str(page.relative_to(ROOT)): "".join(BLOCK.findall(page.read_text()))
    for page in [
        ROOT / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted(path for pattern in ("*.md", "docs/*.md", "studies/*/*.md") for path in (ROOT / "lab").glob(pattern)),
    ]
    if "_build" not in page.parts
}
# Their examples need hosts, or an MPI: tests in `tests/clusters` run them.
ELSEWHERE = {
    f"docs/guides/{page}.md"
    for page in (
        "ssh",
        "from-your-laptop",
        "slurm",
        "sge",
        "pbs",
        "lsf",
        "psij",
        "mpi",
        "dask",
        "ray",
        "your-scheduler",
    )
}
PAGE_TEXTS = [(ROOT / page).read_text() for page in PAGES]
NAMED = re.compile(r"broadleaf\[([a-z,]+)\]")
RUN = [name for name, code in PAGES.items() if code and name not in ELSEWHERE]


def test_there_are_examples():
    assert {"README.md", "docs/tour.md", "docs/guides/map.md"} <= {name for name, code in PAGES.items() if code}


def test_the_front_page_is_the_first_part_of_the_readme():
    """Written once: the front page includes it between two comments."""
    include = re.search(
        r"^```\{include\} (\S+)\n:start-after: (.+)\n:end-before: (.+)$",
        (ROOT / "docs/index.md").read_text(),
        re.MULTILINE,
    )
    assert include
    assert (ROOT / "docs" / include[1]).resolve() == ROOT / "README.md"
    first = (ROOT / "README.md").read_text().split(include[2])[1].split(include[3])[0]
    marks = ("Broadleaf runs", "![", "```python", "```output", "## When to use it, and when not", "## Install")
    assert [first.index(mark) for mark in marks] == sorted(first.index(mark) for mark in marks)


@pytest.mark.parametrize("page", ["README.md", "docs/tour.md"])
def test_the_first_pages_show_what_their_examples_print(page):
    text = (ROOT / page).read_text()
    assert [
        block for block in BLOCK.findall(text) if "print(" in block and block not in dict(SHOWN.findall(text))
    ] == []
    assert SHOWN.search(text)


def run(page, arguments, tmp_path, **options):
    """Runs Python with just the packages that the page names."""
    pytest.importorskip("broadleaf._native", reason="the native module is not built")
    python = python_with(declared((ROOT / page).read_text()))
    # No engine is killed because it gets no processor for some seconds.
    environment = os.environ | {"BROADLEAF_DIR": str(tmp_path / "state"), "BROADLEAF_INTERRUPT_GRACE_S": "60"}
    return subprocess.run(
        [python, *arguments], capture_output=True, text=True, timeout=100, cwd=tmp_path, env=environment, **options
    )


@pytest.mark.timeout(120)
@pytest.mark.parametrize("page", RUN)
def test_examples_run_with_just_the_packages_that_the_page_names(page, tmp_path):
    script = tmp_path / "page.py"
    script.write_text(PAGES[page])
    done = run(page, [str(script)], tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]


# Between the outputs of two blocks.
MARK = "--- the next block ---"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("page", [page for page in RUN if "```output" in (ROOT / page).read_text()])
def test_blocks_print_what_the_page_shows(page, tmp_path):
    """Where a page shows `...`, anything may stand: numbers that differ from run to run."""
    text = (ROOT / page).read_text()
    shown = dict(SHOWN.findall(text))
    assert len(shown) == text.count("```output"), "an output must follow its block, and two blocks must differ"
    script = tmp_path / "page.py"
    script.write_text("".join(f"{block}\nprint({MARK!r}, flush=True)\n" for block in BLOCK.findall(text)))
    done = run(page, [str(script)], tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    printed = dict(zip(BLOCK.findall(text), done.stdout.split(f"{MARK}\n"), strict=False))
    matches = doctest.OutputChecker().check_output
    assert {
        block: printed[block]
        for block, output in shown.items()
        if not matches(output, printed[block], doctest.ELLIPSIS)
    } == {}


# Gives lines to a prompt as a paste does, and ends with the first error.
PROMPT = """
import code, json, sys
class Prompt(code.InteractiveConsole):
    def write(self, text):
        sys.exit(text)
prompt = Prompt({"__name__": "__main__", "__doc__": None})
sys.modules["__main__"].__dict__.update(prompt.locals)
prompt.locals = sys.modules["__main__"].__dict__
for block in json.load(sys.stdin):
    for line in [*block.splitlines(), ""]:
        prompt.push(line)
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("page", ["README.md", "docs/tour.md", "docs/cheat-sheet.md", "docs/guides/map.md"])
def test_blocks_run_when_they_are_pasted_into_a_prompt(page, tmp_path):
    blocks = BLOCK.findall((ROOT / page).read_text())
    done = run(page, ["-c", PROMPT], tmp_path, input=json.dumps(blocks))
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("page", [name for name, code in PAGES.items() if code])
def test_a_prompt_takes_the_lines_of_every_block(page):
    """Apart from blank lines inside a body, which the formatter wants: prompts that know what a paste is take them."""
    for block in BLOCK.findall((ROOT / page).read_text()):
        statement: list[str] = []
        for line in [*re.sub(r"\n(?:\n)+(?= )", "\n", block).splitlines(), ""]:
            statement.append(line)
            try:
                if codeop.compile_command("\n".join(statement), page, "single") is not None:
                    statement = []
            except SyntaxError as error:
                pytest.fail(f"{error.msg} in the block that begins with {block.splitlines()[0]!r}: {line!r}")


def test_extras_that_pages_and_messages_name_exist():
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    sources = [path.read_text() for path in (ROOT / "python").rglob("*.py")]
    named = {extra for text in [*PAGE_TEXTS, *sources] for names in NAMED.findall(text) for extra in names.split(",")}
    assert {"notebook", "lab", "dask"} <= named
    assert named <= extras


def test_the_readme_s_command_brings_what_the_tutorial_needs():
    readme = (ROOT / "README.md").read_text()
    (command,) = re.findall(r"^\$ pip install ./lab ('broadleaf\[.*)$", readme, re.MULTILINE)
    installed = requirements_of(word for word in shlex.split(command) if word != "jupyterlab")
    for page in ("docs/notebooks/tutorial", "docs/notebooks/magics", "docs/notebooks/progress", "lab/docs/notebook"):
        needed = requirements_of(declared((ROOT / f"{page}.md").read_text()))
        assert needed
        assert needed <= installed, page


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
    page = "\n".join(command_reference.pages(group).values())
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


SHELL = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\w+)?[$#] (?:\w+=\S+ )*(broadleaf(?:-lab)? .*)$", re.MULTILINE)


def shown_commands(page):
    """The command lines of Broadleaf and the laboratory that a page shows, as far as they are not the shell's."""
    blocks = "".join(SHELL.findall((ROOT / page).read_text())).replace("\\\n", " ")
    for line in COMMAND.findall(blocks):
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        yield list(itertools.takewhile(lambda word: not set(word) <= set("|>&;"), lexer))


@pytest.mark.parametrize("page", [page for page in PAGES if list(shown_commands(page))])
def test_commands_that_a_page_shows_have_the_options_that_it_gives_them(page):
    """What they do is tested elsewhere. Here files that they name need not be there."""
    groups = {"broadleaf": group, "broadleaf-lab": pytest.importorskip("broadleaf_lab.cli").command}
    for program, *words in shown_commands(page):
        command, context, arguments = groups[program], click.Context(groups[program], info_name=program), words
        while isinstance(command, click.Group):
            name, below, arguments = command.resolve_command(context, arguments)
            assert below, (program, *words)
            command, context = below, click.Context(below, info_name=name, parent=context)
        try:
            command.make_context(command.name, arguments, parent=context.parent)
        except click.MissingParameter:
            raise
        except click.BadParameter:
            continue


def test_the_gallery_has_ten_examples_that_are_there():
    folder = ROOT / "docs" / "gallery"
    shown = re.findall(r"^:::\{example-card\} (\S+)$", (folder / "index.md").read_text(), re.MULTILINE)
    assert len(shown) >= 10
    assert [page for page in shown if not (folder / f"{page}.md").exists()] == []
    assert {page.stem for page in folder.glob("*.md")} - {"index"} <= set(shown)


@pytest.mark.parametrize(
    "words", ["how many engines", "reconnect", "multiprocessing", "GPU", "chunk size", "random numbers"]
)
def test_headings_have_the_words_that_people_search_for(words):
    """The search of the site puts pages with the words in a title or a heading first."""
    found = [
        page
        for page, text in zip(PAGES, PAGE_TEXTS, strict=True)
        if re.search(rf"^#+ .*{words}", text, re.MULTILINE | re.IGNORECASE)
    ]
    assert [page for page in found if page.startswith(("docs/guides/", "docs/faq"))]


SIDES = re.compile(r"^::::\{container\} side-by-side\n(.*?)^::::$", re.MULTILINE | re.DOTALL)
COMING_FROM = [page for page in PAGES if "/coming-from-" in page and SIDES.search((ROOT / page).read_text())]


@pytest.mark.parametrize("page", COMING_FROM)
def test_side_by_side_the_other_library_comes_first_and_ours_runs(page):
    """Half of the column has room for 44 characters; a block says in its first line whose it is."""
    for pair in SIDES.findall((ROOT / page).read_text()):
        theirs, ours = re.findall(r"^```(\{code-block\} python|python)\n(.*?)^```$", pair, re.MULTILINE | re.DOTALL)
        assert theirs[0] == "{code-block} python"
        assert ours[0] == "python"
        assert ours[1].startswith("# Broadleaf\n")
        assert not theirs[1].startswith("# Broadleaf")
        assert [line for _, block in (theirs, ours) for line in block.splitlines() if len(line) > 44] == []


def test_there_is_a_page_for_those_who_come_from_each_library():
    from_libraries = {"multiprocessing", "joblib", "dask", "ray", "mpi4py"}
    assert {Path(page).stem.removeprefix("coming-from-") for page in COMING_FROM} == from_libraries


def test_each_page_with_a_card_says_what_it_needs():
    cards = {
        (ROOT / "docs" / index).parent / f"{card}.md"
        for index in ("index.md", "gallery/index.md")
        for card in re.findall(r"^:::\{example-card\} (\S+)$", (ROOT / "docs" / index).read_text(), re.MULTILINE)
    }
    assert len(cards) >= 10
    assert [str(page) for page in cards if not re.search(r"`pip install|\$ pip install", page.read_text())] == []


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
