"""Where configurations run: worktrees with patches, builds, refs, and combinations that do not fit together."""

import subprocess
from pathlib import Path

import pytest
from broadleaf_lab.errors import RunError
from broadleaf_lab.run.environments.environment import BuildFailed, Environments, Incompatible, Variant, with_excludes
from broadleaf_lab.run.environments.worktrees import Worktrees
from broadleaf_lab.run.interpreters import (
    Interpreter,
    Unavailable,
    check_level,
    check_variables,
    find_interpreter,
)
from broadleaf_lab.spec.factors import Factor
from broadleaf_lab.study import Study

LINES = [f"line {i}\n" for i in range(1, 31)]


def git(root: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=Lab", "-c", "user.email=lab@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(root), *settings, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """A repository with a file of thirty lines in `src`, and patches of it in `study`."""
    root = tmp_path / "repo"
    (root / "src").mkdir(parents=True)
    git(root, "init", "--quiet", "--initial-branch", "main")
    source = root / "src" / "text"
    source.write_text("".join(LINES))
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "thirty lines")
    (root / "study").mkdir()

    def patch(name: str, changes: dict[int, str], on: dict[int, str] | None = None) -> None:
        base = [*LINES]
        for at, text in (on or {}).items():
            base[at - 1] = text
        source.write_text("".join(base))
        if on:
            git(root, "commit", "--quiet", "--all", "--message", "base of a patch")
        for at, text in changes.items():
            base[at - 1] = text
        source.write_text("".join(base))
        (root / "study" / f"{name}.diff").write_text(git(root, "diff") + "\n")
        git(root, "checkout", "--quiet", "--", ".")
        if on:
            git(root, "reset", "--quiet", "--hard", "HEAD~1")

    patch("top", {2: "top\n"})
    patch("bottom", {29: "bottom\n"})
    patch("rival", {2: "rival\n"})
    patch("after_top", {3: "after top\n"}, on={2: "top\n"})
    return root


def study(root: Path, *factors: Factor, **settings) -> Study:
    return Study(name="trees", command=("true",), factors=factors, directory=root / "study",
                 settings={"source": "../src", **settings})  # fmt: skip


def patch_factor(name: str) -> Factor:
    return Factor(name, "patch", setting={"patch": f"{name}.diff"})


def test_patches_are_applied_and_trees_are_kept(repository):
    subject = study(repository, patch_factor("top"), patch_factor("bottom"))
    environments = Environments(subject)
    counts = environments.prepare([{"top": a, "bottom": b} for a in (False, True) for b in (False, True)])
    assert counts == {"ready": 4, "skipped": 0, "invalid": 0, "failed": 0}
    checkout = environments.checkout({"top": True, "bottom": True})
    assert checkout.cwd.name == "src"
    assert (checkout.cwd / "text").read_text().splitlines()[1] == "top"
    assert (checkout.cwd / "text").read_text().splitlines()[28] == "bottom"
    assert checkout.git_sha == git(repository, "rev-parse", "HEAD")
    (checkout.cwd / "witness").touch()
    again = Environments(subject).checkout({"top": True, "bottom": True})
    assert (again.cwd / "witness").exists()
    assert (Environments(subject).checkout({}).cwd / "text").read_text() == "".join(LINES)
    # Trees are no part of the repository's status.
    assert ".lab" not in git(repository, "status", "--porcelain", "--untracked-files=all")


def test_an_edited_patch_makes_another_tree(repository):
    subject = study(repository, patch_factor("top"))
    before = Environments(subject).checkout({"top": True})
    path = repository / "study" / "top.diff"
    path.write_text(path.read_text().replace("+top", "+summit"))
    after = Environments(subject).checkout({"top": True})
    assert before.tree != after.tree
    assert (after.cwd / "text").read_text().splitlines()[1] == "summit"


def test_a_tree_that_was_not_finished_is_made_again(repository):
    subject = study(repository, patch_factor("top"))
    checkout = Environments(subject).checkout({"top": True})
    (checkout.cwd / "text").write_text("half")
    checkout.tree.with_name(checkout.tree.name + ".json").unlink()
    assert (Environments(subject).checkout({"top": True}).cwd / "text").read_text().splitlines()[1] == "top"


def test_rival_patches_exclude_each_other_and_order_is_found(repository):
    subject = study(repository, *map(patch_factor, ("rival", "bottom", "after_top", "top")))
    trees = Worktrees(repository / "src", repository / "study" / ".lab" / "trees")
    paths = {f.name: repository / "study" / f"{f.name}.diff" for f in subject.factors if f.name != "after_top"}
    order = trees.order(trees.resolve("HEAD"), paths)
    assert order.excluded == {("rival", "top")}
    assert order.before == set()
    excluded = with_excludes(study(repository, *map(patch_factor, ("rival", "top"))))
    assert excluded.constraints == {"apply_rival_top": "not (rival and top)"}
    assert not excluded.rules().allows({"rival": True, "top": True})
    with pytest.raises(Incompatible, match="do not apply together"):
        Environments(excluded).checkout({"rival": True, "top": True})


def test_a_patch_that_does_not_apply_is_told(repository):
    (repository / "study" / "top.diff").write_text("--- a/src/none\n+++ b/src/none\n@@ -1 +1 @@\n-a\n+b\n")
    with pytest.raises(Incompatible, match="top does not apply"):
        Environments(study(repository, patch_factor("top"))).checkout({"top": True})


def test_a_ref_per_level(repository):
    git(repository, "switch", "--quiet", "--create", "other")
    (repository / "src" / "text").write_text("other\n")
    git(repository, "commit", "--quiet", "--all", "--message", "other")
    git(repository, "switch", "--quiet", "main")
    version = Factor(
        "version", "git", levels=("old", "new"), default="old", setting={"git": {"old": "main", "new": "other"}}
    )
    environments = Environments(study(repository, version))
    assert (environments.checkout({"version": "new"}).cwd / "text").read_text() == "other\n"
    assert (environments.checkout({"version": "old"}).cwd / "text").read_text() == "".join(LINES)


def test_a_branch_that_moves_does_not_change_what_a_level_means(repository):
    git(repository, "branch", "other")
    version = Factor("version", "git", levels=("main", "other"), default="main")
    first = Environments(study(repository, version))
    first.prepare([{"version": "main"}, {"version": "other"}])
    git(repository, "switch", "--quiet", "other")
    (repository / "src" / "text").write_text("moved\n")
    git(repository, "commit", "--quiet", "--all", "--message", "moved")
    git(repository, "switch", "--quiet", "main")
    later = Environments(study(repository, version), refs=first.pinned_refs)
    assert (later.checkout({"version": "other"}).cwd / "text").read_text() == "".join(LINES)
    moved = Environments(study(repository, version)).checkout({"version": "other"})
    assert (moved.cwd / "text").read_text() == "moved\n"


def test_a_build_runs_once_in_each_tree_and_its_failure_is_kept(repository):
    build = ["sh", "-c", "echo built >> built; echo said; ! grep -q rival text"]
    subject = study(repository, patch_factor("top"), patch_factor("rival"), build=build)
    said: list[str] = []
    environments = Environments(subject, say=said.append)
    assert environments.prepare([{}, {"top": True}, {"rival": True}]) == {
        "ready": 2,
        "skipped": 0,
        "invalid": 0,
        "failed": 1,
    }
    with pytest.raises(BuildFailed, match="exit code 1"):
        environments.checkout({"rival": True})
    assert (Environments(subject).checkout({"top": True}).cwd / "built").read_text() == "built\n"


def test_a_variant_is_a_ref_with_a_patch_on_top(repository):
    checkout = Environments(study(repository)).checkout({}, Variant("main", (repository / "study" / "top.diff",)))
    assert (checkout.cwd / "text").read_text().splitlines()[1] == "top"


def test_without_factors_of_the_source_it_runs_in_place(repository):
    checkout = Environments(study(repository)).checkout({})
    assert checkout.cwd == repository / "src"
    assert not (repository / "study" / ".lab").exists()


def test_a_wrong_ref_is_told(repository):
    with pytest.raises(RunError, match="no commit 'nowhere'"):
        Environments(study(repository)).checkout({}, Variant("nowhere"))


def test_no_interpreter_stands_in_for_another(tmp_path):
    python = Interpreter("/p", "3.12.1", "CPython", free_threaded=False, jit=False)
    check_level("3.12", python)
    check_level("fast", python)
    for level in ("3.13", "3.12t", "3.1"):
        with pytest.raises(Unavailable, match=level):
            check_level(level, python)
    with pytest.raises(Unavailable, match="JIT"):
        check_variables({"PYTHON_JIT": "1"}, python)
    with pytest.raises(Unavailable, match="free-threaded"):
        check_variables({"PYTHON_GIL": "0"}, python)
    check_variables({"PYTHON_JIT": "0"}, python)
    with pytest.raises(Unavailable, match="not found"):
        find_interpreter("python9.99", tmp_path)


def test_faults_are_found_without_building(repository):
    factors = (
        Factor("top", "patch", setting={"patch": "top.diff"}),
        Factor("stale", "patch", setting={"patch": "after_top.diff"}),
    )
    assert Environments(study(repository, factors[0], build=["false"])).faults() == []
    (fault,) = Environments(study(repository, *factors)).faults()
    assert fault.startswith("stale: the patch does not apply to ")
    gone = Factor("gone", "patch", setting={"patch": "gone.diff"})
    (fault,) = Environments(study(repository, gone)).faults()
    assert fault.startswith("gone=True: factor 'gone': there is no patch ")
