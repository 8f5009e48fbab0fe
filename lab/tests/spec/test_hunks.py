"""A patch becomes a factor for each of its hunks; git is the judge of every one."""

import subprocess
from itertools import chain, combinations

import pytest
from broadleaf_lab.errors import StudyFileError
from broadleaf_lab.run.environments.environment import Environments
from broadleaf_lab.spec.hunks import hunks
from broadleaf_lab.study import Study


def git(root, *arguments):
    settings = ["-c", "user.name=Lab", "-c", "user.email=lab@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(root), *settings, *arguments], check=True, capture_output=True, text=True)
    return done.stdout


@pytest.fixture
def repository(tmp_path):
    """Two sources with log lines, and a patch that deletes them: three hunks, one in the second file."""
    root = tmp_path / "repo"
    (root / "study").mkdir(parents=True)
    lines = [f"step({i})\n" for i in range(40)]
    for name, at in (("a.py", (4, 30)), ("b.py", (20,))):
        text = list(lines)
        for i in at:
            text[i] = f'logger.debug("--- {name} {i}")\n'
        (root / name).write_text("".join(text))
    git(root, "init", "--quiet", "--initial-branch", "main")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "with log lines")
    for name in ("a.py", "b.py"):
        kept = [line for line in (root / name).read_text().splitlines(True) if "logger" not in line]
        (root / name).write_text("".join(kept))
    (root / "study" / "biglogs.diff").write_text(git(root, "diff"))
    git(root, "checkout", "--quiet", "--", ".")
    (root / "study" / "study.toml").write_text(
        '[study]\nname = "lines"\ncommand = ["true"]\nsource = ".."\n'
        '[factors.line]\nlevels_from_patch = "biglogs.diff"\ntier = 4\n'
    )
    return root


def test_every_hunk_applies_alone_and_with_any_others(repository):
    found = hunks((repository / "study" / "biglogs.diff").read_text())
    assert [hunk.line for hunk in found] == [f'logger.debug("--- {at}")' for at in ("a.py 4", "a.py 30", "b.py 20")]
    every = chain.from_iterable(combinations(found, size) for size in (1, 2, 3))
    for chosen in every:
        for hunk in chosen:
            file = repository / "one.diff"
            file.write_text(hunk.text)
            git(repository, "apply", str(file))
        text = (repository / "a.py").read_text() + (repository / "b.py").read_text()
        assert text.count("logger") == 3 - len(chosen)
        git(repository, "checkout", "--quiet", "--", ".")


def test_a_patch_is_a_factor_for_each_hunk(repository):
    study = Study.load(repository / "study")
    assert [f.name for f in study.factors] == ["line_1", "line_2", "line_3"]
    assert {f.kind for f in study.factors} == {"patch"}
    assert study.factors[2].loses == 'logger.debug("--- b.py 20")'
    assert study.factors[0].tier == 4
    environments = Environments(study)
    config = {"line_1": True, "line_2": False, "line_3": True}
    assert environments.prepare([config])["ready"] == 1
    tree = environments.checkout(config).tree
    assert (tree / "a.py").read_text().count("logger") == 1
    assert "logger" not in (tree / "b.py").read_text()


def test_a_patch_without_hunks_or_that_is_not_there_is_named(repository):
    (repository / "study" / "biglogs.diff").write_text("nothing\n")
    with pytest.raises(StudyFileError, match=r"biglogs\.diff has no hunk"):
        Study.load(repository / "study")
    (repository / "study" / "biglogs.diff").unlink()
    with pytest.raises(StudyFileError, match="cannot be read"):
        Study.load(repository / "study")
