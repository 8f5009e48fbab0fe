"""Where configurations run: source trees with patches, built, and interpreters."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from broadleaf_lab.errors import RunError, writing
from broadleaf_lab.run.command import Checkout, level_value, substitute
from broadleaf_lab.run.environments.worktrees import PatchOrder, Worktrees, revision
from broadleaf_lab.run.interpreters import Interpreter, Unavailable, check_level, find_interpreter
from broadleaf_lab.run.process import clean_environment, last_words, run_command, run_directory
from broadleaf_lab.spec.factors import Config, Factor
from broadleaf_lab.spec.hunks import hunks
from broadleaf_lab.spec.settings import RunSettings
from broadleaf_lab.spec.study import StudySpec

CACHE = ".lab"


class Incompatible(Exception):
    """A configuration whose patches do not apply together. Such runs are recorded as invalid."""


class BuildFailed(RunError):
    """An environment that could not be built. Its runs are recorded as failed."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A version of the source in addition to what the factors choose: a commit, and patches on top."""

    ref: str | None = None
    patches: tuple[Path, ...] = ()


HERE = Variant()
"""The source as the study has it."""


class Environments:
    """Creates and remembers the environment of every configuration of a study."""

    def __init__(
        self,
        study: StudySpec,
        *,
        sha: str | None = None,
        refs: Mapping[str, str] | None = None,
        say: Callable[[str], None] | None = None,
        trees: bool = False,
    ) -> None:
        """`sha` is the commit to which patches apply, the current one if None; `refs` are the commits that names of a
        git factor stood for earlier; `trees` requests worktrees even if no factor needs them.
        """
        self.study = study
        self.settings: RunSettings = RunSettings.of(study)
        self.say: Callable[[str], None] = say or (lambda _: None)
        self.patches: list[Factor] = [f for f in study.factors if f.kind == "patch"]
        self.refs: list[Factor] = [f for f in study.factors if f.kind == "git"]
        self.pythons: list[Factor] = [f for f in study.factors if f.kind == "python"]
        if len(self.refs) > 1:
            raise RunError(f"study {study.name!r}: only one factor of kind git can choose the commit.")
        if len(self.pythons) > 1:
            raise RunError(f"study {study.name!r}: only one factor of kind python can choose the interpreter.")
        self._build_differs = bool(self.pythons) and any("{python}" in word for word in self.settings.build)
        self._in_trees = trees or bool(self.patches or self.refs or self._build_differs)
        self._revision = revision(self.settings.source)
        self._worktrees: Worktrees | None = None
        self._orders: dict[str, PatchOrder] = {}
        self._made: dict[tuple[str, tuple[Path, ...], str], Checkout | Exception] = {}
        self.pinned_refs: dict[str, str] = dict(refs or {})
        self.sha: str = sha or (self._revision[0] if self._revision else "")

    @property
    def worktrees(self) -> Worktrees:
        """The trees. Raises RunError if the source is not under git."""
        if self._worktrees is None:
            self._worktrees = Worktrees(self.settings.source, self.cache() / "trees")
            self.sha = self._worktrees.resolve(self.sha or "HEAD")
        return self._worktrees

    def cache(self) -> Path:
        """The folder of things that can be recreated; it is created if missing. Raises WriteError if it cannot be
        created.
        """
        cache = self.study.directory.resolve() / CACHE
        with writing(cache, "Trees and builds are kept there. Copy the study to a folder that has room."):
            cache.mkdir(parents=True, exist_ok=True)
            (cache / ".gitignore").write_text("*\n")
        return cache

    @property
    def pinned(self) -> str | None:
        """The commit from which trees are made, which must stay the same for all runs of the study."""
        return self.sha if self._in_trees and not self.refs else None

    def excludes(self) -> dict[str, str]:
        """Constraints that follow from patches which do not apply together, by name."""
        if len(self.patches) < 2:
            return {}
        return self._order(self.worktrees.resolve(self.sha or "HEAD")).expressions()

    def faults(self) -> list[str]:
        """What this machine lacks for the levels of interpreters, commits and patches, in words. Nothing is built."""
        found: list[str] = []
        checks: list[tuple[Sequence[Factor], Callable[[Factor, Config], object]]] = [
            (self.pythons, lambda factor, config: self._python(config)),
            (self.refs, lambda factor, config: self.worktrees.resolve(str(level_value(factor, config[factor.name])))),
            (self.patches, self._patch),
        ]
        for factors, check in checks:
            for factor in factors:
                for level in factor.levels:
                    try:
                        check(factor, {factor.name: level})
                    except (RunError, Unavailable) as error:
                        found.append(f"{factor.name}={level}: {error}")
        if self.patches and not found:
            try:
                sha = self.worktrees.resolve(self.sha or "HEAD")
                found += [f"{name}: the patch does not apply to {sha[:10]}" for name in sorted(self._order(sha).broken)]
            except RunError as error:
                found.append(str(error))
        return found

    def prepare(self, configs: Iterable[Config], variants: Sequence[Variant] = (HERE,)) -> dict[str, int]:
        """Creates every environment that the configurations need. Returns how many are ready, missing, incompatible and
        failed to build; unavailable ones are reported again when a run asks for them.
        """
        found = {"ready": 0, "skipped": 0, "invalid": 0, "failed": 0}
        seen = set()
        for config in configs:
            key = tuple(str(config.get(f.name, f.default)) for f in (*self.patches, *self.refs, *self.pythons))
            if key in seen:
                continue
            seen.add(key)
            for variant in variants:
                try:
                    self.checkout(config, variant)
                except Unavailable:
                    found["skipped"] += 1
                except Incompatible:
                    found["invalid"] += 1
                except BuildFailed as error:
                    self.say(str(error))
                    found["failed"] += 1
                else:
                    found["ready"] += 1
        return found

    def checkout(self, config: Config, variant: Variant = HERE) -> Checkout:
        """Where a configuration runs. Raises Unavailable, Incompatible or BuildFailed if it cannot run."""
        python = self._python(config)
        if not self._in_trees and variant == HERE:
            key: tuple[str, tuple[Path, ...], str] = ("", (), python.path)
            return self._remembered(key, lambda: self._in_place(python))
        worktrees = self.worktrees
        sha = worktrees.resolve(variant.ref or self._ref(config) or self.sha or "HEAD")
        chosen = {f.name: path for f in self.patches if (path := self._patch(f, config)) is not None}
        order = self._order(sha) if chosen else None
        if order is not None:
            if broken := [name for name in chosen if name in order.broken]:
                raise Incompatible(f"patch {', '.join(broken)} does not apply to {sha[:10]}")
            for a, b in order.excluded:
                if a in chosen and b in chosen:
                    raise Incompatible(f"patches {a} and {b} do not apply together")
            patches = [chosen[name] for name in order.sort(list(chosen))]
        else:
            patches = []
        patches += [path.resolve() for path in variant.patches]
        key = (sha, tuple(patches), python.path if self._build_differs else "")
        made = self._remembered(key, lambda: self._make(sha, patches, python))
        return made if made.python == python else Checkout(made.cwd, made.tree, python, made.git_sha, made.dirty)

    def _remembered(self, key: tuple[str, tuple[Path, ...], str], make: Callable[[], Checkout]) -> Checkout:
        if key not in self._made:
            try:
                self._made[key] = make()
            except (BuildFailed, Incompatible) as error:
                self._made[key] = error
        made = self._made[key]
        if isinstance(made, Exception):
            raise made
        return made

    def _in_place(self, python: Interpreter) -> Checkout:
        source = self.settings.source
        if not source.is_dir():
            raise RunError(f"study {self.study.name!r}: the source directory {source} does not exist.")
        sha, dirty = self._revision or ("", False)
        checkout = Checkout(source, source, python, sha, dirty)
        if self.settings.build:
            self._build(checkout, self.cache() / "build.log")
        return checkout

    def _make(self, sha: str, patches: list[Path], python: Interpreter) -> Checkout:
        build = " ".join(self.settings.build)
        variant = f"{build}\0{python.path if self._build_differs else ''}" if build else ""
        try:
            tree, finished = self.worktrees.tree(sha, patches, variant)
        except RunError as error:
            raise Incompatible(str(error)) from None
        checkout = Checkout(self.worktrees.directory_in(tree), tree, python, sha, False)
        if not finished:
            if build:
                self._build(checkout, tree.with_name(tree.name + ".log"))
            self.worktrees.finish(tree, {"sha": sha, "patches": [p.name for p in patches], "python": python.text})
        return checkout

    def _build(self, checkout: Checkout, log: Path) -> None:
        names = {
            "python": checkout.python.path,
            "tree": str(checkout.tree),
            "study": str(self.study.directory.resolve()),
        }
        command = [substitute(word, names) for word in self.settings.build]
        self.say(f"building {checkout.tree.name}: {' '.join(command)}")
        env = clean_environment() | {n: substitute(v, names) for n, v in self.settings.env.items()}
        with run_directory() as run_dir:
            done = run_command(
                command, cwd=checkout.cwd, env=env, timeout_s=self.settings.build_timeout_s, run_dir=run_dir
            )
        log.write_text(done.stdout + done.stderr)
        if done.exit_code != 0 or done.timed_out:
            why = done.error or ("took too long" if done.timed_out else f"exit code {done.exit_code}")
            raise BuildFailed(f"the build in {checkout.tree} failed ({why}): {last_words(done)} See {log}.")

    def _python(self, config: Config) -> Interpreter:
        if not self.pythons:
            return find_interpreter(sys.executable)
        factor = self.pythons[0]
        level = config.get(factor.name, factor.default)
        wanted = str(level_value(factor, level))
        found = find_interpreter(wanted, self.study.directory.resolve())
        check_level(str(level), found)
        return found

    def _ref(self, config: Config) -> str | None:
        if not self.refs:
            return None
        name = str(level_value(self.refs[0], config.get(self.refs[0].name, self.refs[0].default)))
        # A branch that moves between two sessions must not change what a level means.
        if name not in self.pinned_refs:
            self.pinned_refs[name] = self.worktrees.resolve(name)
        return self.pinned_refs[name]

    def _patch(self, factor: Factor, config: Config) -> Path | None:
        level = config.get(factor.name, factor.default)
        value = level_value(factor, level)
        if isinstance(value, bool):
            value = factor.setting.get("patch") if value else ""
        if not value:
            return None
        path = (self.study.directory / str(value)).resolve()
        if not path.is_file():
            raise RunError(f"factor {factor.name!r}: there is no patch {path}.")
        number = factor.setting.get("hunk")
        return path if not isinstance(number, int) else self._hunk(path, number)

    def _hunk(self, patch: Path, number: int) -> Path:
        """A hunk of a patch in a file of its own."""
        text = hunks(patch.read_text(encoding="utf-8"))[number - 1].text
        path = self.cache() / f"{patch.stem}.{number}{patch.suffix}"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            with writing(path):
                path.write_text(text, encoding="utf-8")
        return path

    def _order(self, sha: str) -> PatchOrder:
        if sha not in self._orders:
            # A patch with several levels is represented by its last one.
            paths = {f.name: self._patch(f, {f.name: f.on}) for f in self.patches}
            self._orders[sha] = self.worktrees.order(sha, {n: p for n, p in paths.items() if p is not None})
        return self._orders[sha]


def with_excludes(study: StudySpec) -> StudySpec:
    """The study with an additional constraint for each pair of patches that do not apply together in either order."""
    if sum(factor.kind == "patch" for factor in study.factors) < 2:
        return study
    return replace(study, constraints={**study.constraints, **Environments(study).excludes()})
