"""Environments with just the packages that a page of the documentation says it needs.

A page names them in a sentence that begins with "This page needs" or "This step needs", as arguments of `pip install`.
An environment links to packages of this one, which `make` has installed from the exact versions in .ci/requirements. So
it takes no network and next to no time, and is kept in the checkout for all pages that need the same. Broadleaf and the
laboratory are those of the checkout.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import shlex
import shutil
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CHECKOUT = Path(__file__).resolve().parent.parent
_CACHE = CHECKOUT / ".page-venvs"
# The packages of this checkout, each with the folders of its project file and of its sources.
_OWN = {"broadleaf": (CHECKOUT, CHECKOUT / "python"), "broadleaf-lab": (CHECKOUT / "lab", CHECKOUT / "lab" / "src")}
_DECLARATION = re.compile(r"\bThis (?:page|step) needs\b[^`]*`pip install ([^`]+)`")


def declared(text: str) -> tuple[str, ...]:
    """The requirements that a page, given as its text, says it has besides `broadleaf`."""
    return tuple(sorted({word for command in _DECLARATION.findall(text) for word in shlex.split(command)}))


def python_with(requirements: tuple[str, ...]) -> Path:
    """The interpreter of an environment with Broadleaf and these requirements, with all that they require.

    Raises `PackageNotFoundError` if one is not installed here.
    """
    return python_of(("broadleaf", *requirements))


@functools.cache
def python_of(requirements: tuple[str, ...]) -> Path:
    """The interpreter of an environment with these requirements and all that they require, and nothing else.

    Raises `PackageNotFoundError` if one is not installed here.
    """
    names, dists = _closure(requirements)
    own = sorted(names & _OWN.keys())
    found = {canonicalize_name(dist.name): dist for dist in dists}
    contents = sorted(f"{name} {dist.version} {dist.locate_file('')}" for name, dist in found.items())
    recipe = Path(__file__).read_bytes() + "\n".join([sys.version, str(CHECKOUT), *own, *contents]).encode()
    key = hashlib.sha256(recipe).hexdigest()[:12]
    ready = _CACHE / key
    if not ready.exists():
        _CACHE.mkdir(exist_ok=True)
        making = Path(tempfile.mkdtemp(dir=_CACHE))
        venv.EnvBuilder(symlinks=True).create(making)
        site = next((making / "lib").glob("python3*")) / "site-packages"
        (site / "checkout.pth").write_text("".join(f"{_OWN[name][1]}\n" for name in own))
        for dist in found.values():
            _link(dist, site)
        for name in own:
            _link_metadata(distribution(name), site)
            _write_command(making, ready, name)
        try:
            making.rename(ready)
        except OSError:
            # Another process has made the same.
            shutil.rmtree(making)
            if not ready.exists():
                raise
    return ready / "bin" / "python"


def requirements_of(wanted: Iterable[str]) -> set[str]:
    """The canonical names of all packages that these requirements need, without those of this checkout."""
    return {canonicalize_name(dist.name) for dist in _closure(wanted)[1]}


def kernel_with(requirements: tuple[str, ...], folder: Path) -> str:
    """The name of a kernel of such an environment. Jupyter looks for it in `folder`, as part of `JUPYTER_PATH`."""
    kernel = folder / "kernels" / "page"
    kernel.mkdir(parents=True)
    command = [str(python_with(requirements)), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": command, "display_name": "page", "language": "python"}))
    return kernel.name


def _closure(wanted: Iterable[str]) -> tuple[set[str], list[Distribution]]:
    """The names of the requirements and of all that these require, and the distributions of those that are not of this
    checkout.
    """
    seen: set[tuple[str, str]] = set()
    dists: dict[str, Distribution] = {}
    left = [Requirement(text) for text in wanted]
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        if name not in _OWN and name not in dists:
            dists[name] = distribution(name)
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                left += _required_by(name, dists.get(name), extra)
    return {name for name, _ in seen}, list(dists.values())


def _required_by(name: str, dist: Distribution | None, extra: str) -> list[Requirement]:
    """What a distribution requires, or what one of its extras does; it is None for a package of this checkout."""
    if dist is None:
        project = tomllib.loads((_OWN[name][0] / "pyproject.toml").read_text())["project"]
        texts = project["optional-dependencies"][extra] if extra else project["dependencies"]
        return [Requirement(text) for text in texts]
    found = [Requirement(text) for text in dist.requires or ()]
    # Without an extra, a marker that asks for one does not hold.
    return [r for r in found if r.marker is None or r.marker.evaluate({"extra": extra})]


@functools.cache
def _owners() -> dict[Path, int]:
    """How many distributions have files in each folder of the search path that holds packages."""
    owners: dict[Path, int] = {}
    for dist in distributions():
        for top in {_top(dist, path.parts) for path in dist.files or () if _is_import(path.parts)}:
            owners[top] = owners.get(top, 0) + 1
    return owners


def _top(dist: Distribution, parts: tuple[str, ...]) -> Path:
    return Path(str(dist.locate_file(parts[0])))


def _is_import(parts: tuple[str, ...]) -> bool:
    return parts[0] not in ("..", "__pycache__")


def _link(dist: Distribution, site: Path) -> None:
    """Links the distribution's packages, or their files one by one where others have files in the same folder."""
    for path in dist.files or ():
        if not _is_import(path.parts):
            continue
        top = _top(dist, path.parts)
        source, target = (top, site / path.parts[0]) if _owners()[top] == 1 else (dist.locate_file(path), site / path)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(Path(str(source)))


def _link_metadata(dist: Distribution, site: Path) -> None:
    folder = next(path.parts[0] for path in dist.files or () if path.parts[0].endswith(".dist-info"))
    (site / folder).symlink_to(Path(str(dist.locate_file(folder))))


def _write_command(environment: Path, ready: Path, name: str) -> None:
    """Writes the command of a package of this checkout, in an environment that is going to be `ready`."""
    command, python = environment / "bin" / name, ready / "bin" / "python"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(str(python))} -m {name.replace("-", "_")} "$@"\n')
    command.chmod(0o755)
