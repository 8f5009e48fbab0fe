"""The history of a repository: commits are checked out, built and run on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from broadleaf_lab.comparisons.compare import fastest_known, parse_settings
from broadleaf_lab.comparisons.history import REPLICATES, History, coarse_grid, search
from broadleaf_lab.errors import RunError
from broadleaf_lab.run.calibrate import Calibration, calibrate
from broadleaf_lab.run.environments.environment import BuildFailed, Environments, Variant
from broadleaf_lab.run.environments.worktrees import git
from broadleaf_lab.run.single import Quiet, Runner, record
from broadleaf_lab.spec.factors import Config, Level
from broadleaf_lab.spec.runs import RunsFile, replace_file
from broadleaf_lab.spec.study import StudySpec

RUNS_FILE = "history.csv"
RESULT_FILE = "history.json"


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of the range."""

    sha: str
    unix_time: int
    subject: str


@dataclass(frozen=True, slots=True)
class Measured:
    """A searched range: its commits, oldest first, and what was found."""

    commits: tuple[Commit, ...]
    history: History
    broken: tuple[str, ...]
    """Commits that could not be built, or at which no run succeeded."""

    def sentences(self) -> list[str]:
        """The result for a reader."""
        lines: list[str] = []
        for change in self.history.changes:
            commit = self.commits[change.commit]
            word = "faster" if change.ratio.estimate < 1 else "slower"
            lines.append(
                f"{commit.sha[:10]} made {change.config} {word}: {change.ratio} of the time before (p {change.p:.2g},"
                f" {change.ratio.n} fresh pairs). {commit.subject}"
            )
        for found in self.history.unresolved:
            first, last = self.commits[found.first], self.commits[found.last]
            lines.append(
                f"{found.config} changed between {first.sha[:10]} and {last.sha[:10]}: {found.ratio} of the time"
                " before; these runs do not show which commit it was."
            )
        if not lines:
            lines.append(f"No change was proven among {len(self.commits)} commits.")
        lines.append(f"{self.history.runs} runs; single runs differ by {100 * self.history.spread:.1f} %.")
        if self.broken:
            lines.append(f"Not measured: {', '.join(sha[:10] for sha in self.broken)}.")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "commits": [asdict(commit) for commit in self.commits],
            "broken": list(self.broken),
            **asdict(self.history),
        }


def commits_of(repository: Path, span: str) -> tuple[Commit, ...]:
    """The commits of `A..B` along first parents, A first. Raises RunError if `span` is not a range."""
    first, dots, last = span.partition("..")
    if not dots or not first or last.startswith("."):
        raise RunError(f"{span!r} is not a range of commits: write A..B, oldest first.")
    start = git(repository, "rev-parse", "--verify", "--end-of-options", f"{first}^{{commit}}")
    listed = git(
        repository, "log", "--first-parent", "--reverse", "--format=%H%x09%ct%x09%s", "--end-of-options",
        f"{start}..{last or 'HEAD'}",
    )  # fmt: skip
    head = git(repository, "log", "-1", "--format=%H%x09%ct%x09%s", "--end-of-options", start)
    found = [line.split("\t", 2) for line in [head, *listed.splitlines()] if line]
    if len(found) < 2:
        raise RunError(f"{span}: there is no commit after {first}.")
    return tuple(Commit(sha, int(when), subject) for sha, when, subject in found)


def named_configs(study: StudySpec, names: Sequence[str]) -> dict[str, dict[str, Level]]:
    """`baseline`, `all-on`, `best` (the fastest measured), or settings such as `cfg_log=off+prefetch=64`."""
    rules = study.rules()
    found: dict[str, dict[str, Level]] = {}
    for name in names:
        if name == "all-on":
            found[name] = study.all_on
        elif name == "best":
            best = fastest_known(study)
            if best is None:
                raise RunError(f"{study.runs_path}: there are no runs yet, so no best configuration is known.")
            found[name] = best
        else:
            config = rules.settle({**study.baseline, **parse_settings(study, name.replace("+", ","))})
            if broken := rules.violated(config):
                raise RunError(f"configuration {name!r} violates {', '.join(broken)}.")
            found[name] = config
    return found


class _CommitRuns:
    """A `Measure` that runs commits. A commit that cannot be built or run counts as a failed run."""

    def __init__(
        self, study: StudySpec, commits: Sequence[Commit], configs: dict[str, dict[str, Level]], runner: Runner,
        runs: RunsFile,
    ) -> None:  # fmt: skip
        self.study, self.commits, self.configs = study, commits, configs
        self.runner, self.runs = runner, runs
        self.succeeded: set[int] = set()
        self.tried: set[int] = set()
        self._before = max((run["block"] or 0 for run in runs.rows), default=0)

    def __call__(self, commit: int, config: str, /, *, purpose: str, block: int) -> float | None:
        self.tried.add(commit)
        sha = self.commits[commit].sha
        levels: Config = self.configs[config]
        row = record(
            self.runner, self.runs, levels, Variant(ref=sha), purpose=purpose,
            block=self._before + block, replicate=1, git_sha=sha,
        )  # fmt: skip
        if row["status"] != "ok":
            return None
        self.succeeded.add(commit)
        return float(row["time_per_task_us"])


def measure_history(
    study: StudySpec,
    span: str,
    names: Sequence[str] = ("baseline",),
    *,
    points: int | None = None,
    replicates: int = REPLICATES,
    seed: int = 1,
    quiet: Quiet | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Measured:
    """Measures a range of the study's repository. Every run is appended to history.csv beside the study. Raises
    RunError if nothing can be run.
    """
    environments = Environments(study, say=say, trees=True)
    commits = commits_of(environments.worktrees.top, span)
    configs = named_configs(study, names)
    for index in coarse_grid(len(commits), len(commits) if points is None else points):
        # Built now, so that no build comes between two runs that are compared.
        _build(environments, study, commits[index], say)
    calibration = Calibration.load(study) or calibrate(environments, Variant(ref=commits[-1].sha), quiet=quiet, say=say)
    runner = calibration.runner(environments, quiet=quiet)
    with RunsFile(study.directory / RUNS_FILE, study.factors, study.responses) as runs:
        measure = _CommitRuns(study, commits, configs, runner, runs)
        found = search(len(commits), list(configs), measure, points=points, replicates=replicates, seed=seed, say=say)
    broken = sorted(measure.tried - measure.succeeded)
    return Measured(commits, found, tuple(commits[index].sha for index in broken))


def _build(environments: Environments, study: StudySpec, commit: Commit, say: Callable[[str], None]) -> None:
    try:
        environments.checkout(study.baseline, Variant(ref=commit.sha))
    except BuildFailed as error:
        say(f"{commit.sha[:10]}: {error}")


def write(measured: Measured, directory: Path) -> Path:
    """Writes the result; returns its path."""
    result = directory / RESULT_FILE
    replace_file(result, json.dumps(measured.to_dict(), indent=1) + "\n")
    return result
