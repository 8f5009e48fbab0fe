"""Turns a configuration into a command, its environment and its files: what each kind of factor does to a run."""

from __future__ import annotations

import json
import random
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broadleaf_lab.errors import RunError
from broadleaf_lab.run.interpreters import Interpreter, Unavailable, check_variables
from broadleaf_lab.run.process import PADDING, clean_environment, padding
from broadleaf_lab.spec.factors import Config, Factor, Level
from broadleaf_lab.spec.settings import RunSettings
from broadleaf_lab.spec.study import StudySpec

PLACEBO = "LAB_PLACEBO"
"""Environment variable that a placebo factor sets. Nothing reads it."""
RUN_DIR = "LAB_RUN_DIR"
_CALL = Path(__file__).with_name("call.py")
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z_0-9.]*)\}")


@dataclass(frozen=True, slots=True)
class Checkout:
    """Where a configuration runs: the directory, the top of its source tree, and the interpreter."""

    cwd: Path
    tree: Path
    python: Interpreter
    git_sha: str = ""
    dirty: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """A run about to be made."""

    command: tuple[str, ...]
    cwd: Path
    env: dict[str, str]


def command_of(
    study: StudySpec,
    settings: RunSettings,
    config: Config,
    checkout: Checkout,
    *,
    n_tasks: int,
    iterations: int,
    run_dir: Path,
    rng: random.Random,
) -> Command:
    """The command of one run. Raises Unavailable if this machine lacks what a level needs, and RunError for a wrong
    setting.
    """
    names: dict[str, str] = {
        "python": checkout.python.path,
        "n_tasks": str(n_tasks),
        "iterations": str(iterations),
        "run_dir": str(run_dir),
        "study": str(study.directory.resolve()),
        "tree": str(checkout.tree),
    }
    options: dict[str, Level] = {}
    variables: dict[str, str] = {}
    arguments: list[str] = []
    wrappers: list[str] = []
    keywords: dict[str, Level] = {}
    for factor in study.factors:
        level = config.get(factor.name, factor.default)
        value = level_value(factor, level)
        names.setdefault(factor.name, as_text(value))
        if factor.kind == "config":
            options[str(factor.setting.get("config", factor.name))] = _scalar(value)
        elif factor.kind == "env":
            variables |= _variables(factor, level, value)
        elif factor.kind in ("argument", "flag"):
            arguments += _arguments(factor, level, value)
        elif factor.kind == "wrapper":
            wrappers += _wrapper(factor, level, value, study.directory)
        elif factor.kind == "keyword":
            keywords[str(factor.setting.get("keyword", factor.name))] = _scalar(value)
        elif factor.kind == "placebo" and level != factor.default:
            variables[PLACEBO] = padding(rng)
        elif factor.kind == "file":
            path = _file(factor, level, value, study.directory, run_dir)
            names[factor.name] = str(path or "")
    check_variables(variables, checkout.python)

    if study.command is not None:
        words = list(study.command)
        if keywords:
            raise RunError(f"study {study.name!r}: factors of kind keyword need `callable`, not `command`.")
    else:
        words = [
            checkout.python.path,
            str(_CALL),
            str(_write_call(study, checkout, keywords, n_tasks, iterations, run_dir)),
        ]
    if any("{config}" in word for word in words):
        path = run_dir / "config.json"
        path.write_text(json.dumps(options, indent=1))
        names["config"] = str(path)
    else:
        prefix = settings.config_prefix
        variables |= {prefix + re.sub(r"\W", "_", n).upper(): as_text(v) for n, v in options.items()}
    given = {name: substitute(value, names) for name, value in settings.env.items()}
    env = clean_environment() | {
        RUN_DIR: str(run_dir),
        "TMPDIR": str(run_dir),
        # A cluster of this run must not find another run's.
        "BROADLEAF_DIR": str(run_dir / "b"),
        **given,
        **{name: substitute(value, names) for name, value in variables.items()},
        PADDING: padding(rng),
    }
    command = [substitute(word, names) for word in (*wrappers, *words, *arguments)]
    return Command(tuple(command), checkout.cwd, {name: value for name, value in env.items() if value != "\0"})


def substitute(text: str, names: Mapping[str, str]) -> str:
    """Substitutes values for `{name}`; unknown names, such as JSON in an argument, stay unchanged."""
    return _PLACEHOLDER.sub(lambda match: names.get(match[1], match[0]), text)


def uses(study: StudySpec, name: str) -> bool:
    """Whether the command, or a factor's setting, contains `{name}`. A callable takes the keywords that it declares."""
    if study.command is None:
        return True
    texts = [*study.command, *(json.dumps(dict(factor.setting), default=str) for factor in study.factors)]
    return any("{" + name + "}" in text for text in texts)


def level_value(factor: Factor, level: Level) -> Any:
    """The value for a level of a factor: what its setting maps it to, otherwise the level itself."""
    for table in (factor.setting.get("values"), factor.setting.get(factor.kind)):
        if isinstance(table, Mapping):
            for name in _names(level):
                if name in table:
                    return table[name]
    return level


def as_text(value: object) -> str:
    """A value as an argument or variable: on and off for booleans, as for Broadleaf's options."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ",".join(map(as_text, value))
    return str(value)


def _names(level: Level) -> tuple[str, ...]:
    if isinstance(level, bool):
        return ("on", "true", "1") if level else ("off", "false", "0")
    return (str(level),)


def _scalar(value: Any) -> Any:
    return as_text(value) if isinstance(value, list | tuple | Mapping) else value


def _is_map_of_levels(factor: Factor, table: object) -> bool:
    return isinstance(table, Mapping) and any(name in table for level in factor.levels for name in _names(level))


def _variables(factor: Factor, level: Level, value: Any) -> dict[str, str]:
    """Variables of an `env` factor. Off means unset, whatever the runner's own environment contains."""
    table = factor.setting.get("env", factor.name)
    if isinstance(value, Mapping):
        return {str(k): as_text(v) for k, v in value.items()}
    if isinstance(table, Mapping) and not _is_map_of_levels(factor, table):
        if not factor.is_bool:
            return {str(k): str(v).replace("{value}", as_text(value)) for k, v in table.items()}
        return {str(k): as_text(v) if level else "\0" for k, v in table.items()}
    if isinstance(table, Mapping):
        raise RunError(f"factor {factor.name!r}: set.env needs the variable's name, or a table of variables per level.")
    if factor.is_bool and isinstance(value, bool):
        return {str(table): "1" if value else "\0"}
    return {str(table): as_text(value)}


def _arguments(factor: Factor, level: Level, value: Any) -> list[str]:
    form = factor.setting.get(factor.kind)
    if form is None or form is True:
        # The command contains {factor}.
        return []
    if isinstance(form, Mapping):
        return [str(word) for word in value] if isinstance(value, list | tuple) else shlex.split(str(value))
    words = [str(word) for word in form] if isinstance(form, Sequence) and not isinstance(form, str) else [str(form)]
    if isinstance(value, bool):
        return words if value else []
    if any("{value}" in word for word in words):
        return [word.replace("{value}", as_text(value)) for word in words]
    if words[-1].endswith("="):
        return [*words[:-1], words[-1] + as_text(value)]
    return [*words, as_text(value)]


def _wrapper(factor: Factor, level: Level, value: Any, directory: Path) -> list[str]:
    form = factor.setting.get("wrapper")
    if isinstance(value, bool):
        value = form if value else ""
    elif not isinstance(form, Mapping):
        value = str(form).replace("{value}", as_text(value))
    words = [str(word) for word in value] if isinstance(value, list | tuple) else shlex.split(str(value or ""))
    if not words:
        return []
    own = (directory / words[0]).resolve()
    if own.is_file():
        words[0] = str(own)
    elif shutil.which(words[0]) is None:
        raise Unavailable(f"factor {factor.name!r}: the wrapper {words[0]!r} is not installed")
    return words


def _file(factor: Factor, level: Level, value: Any, directory: Path, run_dir: Path) -> Path | None:
    """Copies the level's file into the run's directory, under the name `to` or its own."""
    form = factor.setting.get("file")
    if isinstance(value, bool):
        value = form if value else ""
    if not value:
        return None
    path = directory / str(value)
    if not path.is_file():
        raise RunError(f"factor {factor.name!r}: there is no file {path}.")
    target = run_dir / str(factor.setting.get("to", path.name))
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, target)
    return target


def _write_call(
    study: StudySpec, checkout: Checkout, keywords: Mapping[str, Level], n_tasks: int, iterations: int, run_dir: Path
) -> Path:
    """Writes what call.py should call."""
    what: dict[str, Any]
    path = [str(checkout.cwd), str(study.directory.resolve())]
    if study.callable is not None:
        what = {"function": study.callable}
    elif study.function is not None:
        what = {"function": f"{study.function.__module__}:{study.function.__qualname__}"}
        module = sys.modules.get(study.function.__module__)
        file = getattr(module, "__file__", None)
        if study.function.__module__ == "__main__":
            if file is None:
                raise RunError("a benchmark function must be in a file: each run calls it in a fresh process.")
            what["file"] = str(Path(file).resolve())
        elif file is not None:
            depth = study.function.__module__.count(".") + (Path(file).name == "__init__.py")
            path.append(str(Path(file).resolve().parents[depth]))
    else:
        raise RunError(f"study {study.name!r} has neither `command` nor `callable`; set one in the study file.")
    call = {**what, "path": path, "keywords": dict(keywords), "n_tasks": n_tasks, "iterations": iterations}
    target = run_dir / "call.json"
    target.write_text(json.dumps(call))
    return target
