"""Source trees at a commit with patches applied: made once, kept beside the study, used by all runs that need them."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

from broadleaf_lab.errors import RunError
from broadleaf_lab.spec.runs import replace_file

_GIT_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class PatchOrder:
    """What `git apply --check` says about every ordered pair: which patches exclude each other, and which must come
    before which.
    """

    broken: frozenset[str]
    excluded: frozenset[tuple[str, str]]
    before: frozenset[tuple[str, str]]

    def sort(self, names: Sequence[str]) -> list[str]:
        """`names` in an order in which they apply. Raises RunError if there is none."""
        left, ordered = list(names), []
        while left:
            ready = [n for n in left if not any((other, n) in self.before for other in left)]
            if not ready:
                raise RunError(f"patches {', '.join(left)} do not apply in any order. Exclude one with a constraint.")
            ordered.append(ready[0])
            left.remove(ready[0])
        return ordered

    def expressions(self) -> dict[str, str]:
        """The exclusions as constraints, by name."""
        return {f"apply_{a}_{b}": f"not ({a} and {b})" for a, b in sorted(self.excluded)}


class Worktrees:
    """Worktrees of the repository that holds `source`, kept under `root`."""

    def __init__(self, source: Path, root: Path) -> None:
        """Raises RunError if `source` is not in a git repository."""
        self.root = root
        self.top: Path = Path(git(source, "rev-parse", "--show-toplevel"))
        self.inside: Path = source.resolve().relative_to(self.top.resolve())

    def resolve(self, ref: str) -> str:
        """The full name of a commit. Raises RunError if there is no such commit."""
        try:
            return git(self.top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
        except RunError:
            raise RunError(f"{self.top} has no commit {ref!r}. `git branch -a` and `git tag` list names.") from None

    def order(self, sha: str, patches: Mapping[str, Path]) -> PatchOrder:
        """Tries every patch alone and after every other one."""
        if not patches:
            return PatchOrder(frozenset(), frozenset(), frozenset())
        tree = self._checkout(self.root / "check", sha)
        try:
            broken = {name for name, path in patches.items() if not _applies(tree, path)}
            works = set()
            for first, second in permutations(sorted(set(patches) - broken), 2):
                git(tree, "apply", str(patches[first]))
                if _applies(tree, patches[second]):
                    works.add((first, second))
                git(tree, "apply", "--reverse", str(patches[first]))
        finally:
            self.remove(tree)
        names = sorted(set(patches) - broken)
        pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
        excluded = {(a, b) for a, b in pairs if (a, b) not in works and (b, a) not in works}
        before = {(a, b) for a, b in works if (b, a) not in works}
        return PatchOrder(frozenset(broken), frozenset(excluded), frozenset(before))

    def key(self, sha: str, patches: Sequence[Path], variant: str = "") -> str:
        """The name of a tree: it changes with whatever its content depends on."""
        digest = hashlib.sha256(f"{sha}\0{variant}".encode())
        for path in patches:
            digest.update(b"\0" + path.read_bytes())
        return f"{sha[:8]}-{digest.hexdigest()[:8]}"

    def tree(self, sha: str, patches: Sequence[Path], variant: str = "") -> tuple[Path, bool]:
        """The tree at `sha` with the patches applied in turn, and whether it was finished before."""
        path = self.root / self.key(sha, patches, variant)
        if self._marker(path).exists() and path.exists():
            return path, True
        self._checkout(path, sha)
        for patch in patches:
            try:
                git(path, "apply", str(patch))
            except RunError as error:
                raise RunError(f"{patch}: does not apply to {sha[:10]} after the patches before it: {error}") from None
        return path, False

    def finish(self, path: Path, facts: Mapping[str, object]) -> None:
        """Marks a tree as complete, so that it is used from now on."""
        replace_file(self._marker(path), json.dumps(facts) + "\n")

    def directory_in(self, tree: Path) -> Path:
        """Where commands run in a tree: the study's `source` directory in it."""
        directory = tree / self.inside
        if not directory.is_dir():
            raise RunError(
                f"{self.top / self.inside} is not part of the commit that was checked out. Commit it, or set "
                f"`source` in the study file to a directory that is, such as the repository's root."
            )
        return directory

    def keep_only(self, trees: set[Path]) -> None:
        """Removes every other tree."""
        for path in self.root.iterdir():
            if path.is_dir() and path not in trees:
                self.remove(path)

    def remove(self, path: Path) -> None:
        """Removes a tree and forgets it."""
        self._marker(path).unlink(missing_ok=True)
        subprocess.run(["git", "-C", str(self.top), "worktree", "remove", "--force", str(path)],
                       capture_output=True, timeout=_GIT_TIMEOUT_S, check=False)  # fmt: skip
        shutil.rmtree(path, ignore_errors=True)
        git(self.top, "worktree", "prune")

    def _checkout(self, path: Path, sha: str) -> Path:
        # An unfinished tree is useless.
        self.remove(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        git(self.top, "worktree", "add", "--detach", "--force", str(path), sha)
        return path

    @staticmethod
    def _marker(path: Path) -> Path:
        return path.with_name(path.name + ".json")


def _applies(tree: Path, patch: Path) -> bool:
    try:
        git(tree, "apply", "--check", str(patch))
    except RunError:
        return False
    return True


def git(directory: Path, *arguments: str) -> str:
    """The output of a git command. Raises RunError if it fails, with git's own words."""
    try:
        done = subprocess.run(["git", "-C", str(directory), *arguments], capture_output=True, text=True,
                              timeout=_GIT_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL)  # fmt: skip
    except FileNotFoundError:
        raise RunError("git is not installed, but factors of kind patch and git need it.") from None
    except subprocess.TimeoutExpired:
        raise RunError(f"git {arguments[0]} in {directory} did not finish within {_GIT_TIMEOUT_S} s.") from None
    if done.returncode != 0:
        raise RunError(f"git {' '.join(arguments[:2])} in {directory}: {(done.stderr or done.stdout).strip()[-400:]}")
    return done.stdout.strip()


def revision(directory: Path) -> tuple[str, bool] | None:
    """The commit of a directory and whether it has uncommitted changes; None outside git."""
    try:
        return git(directory, "rev-parse", "HEAD"), bool(git(directory, "status", "--porcelain", "-uno"))
    except RunError:
        return None
