"""Writes requirements/*.txt: exact versions for each dependency group, solved together so that the files agree."""

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# File name -> dependency groups in it, where `lab` is what the laboratory needs. Every file also holds what the package
# itself needs.
FILES = {
    "run": ["build"],
    "test": ["test", "bench", "lab"],
    "bench": ["bench"],
    "docs": ["docs", "lab"],
    "peers": ["peers"],
    "ray": ["ray"],
    "mpich": ["mpich"],
    "openmpi": ["openmpi"],
    "psij": ["psij"],
    "release": ["release"],
    "lint": ["lint", "test", "bench", "lab"],
}
# Extras of the package whose requirements are in the file as well.
EXTRAS = {"docs": ["dask", "notebook", "plan"]}
# Groups that need other versions than all the others; their files contain only what they need.
SEPARATE = {"psij"}


def solve(requirements: list[str], constraints: Path | None) -> list[str]:
    """Exact pins that satisfy the requirements on this interpreter, sorted by name."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    if constraints:
        command += ["--constraint", str(constraints)]
    report = subprocess.run([*command, *requirements], check=True, capture_output=True, text=True).stdout
    found = [item["metadata"] for item in json.loads(report)["install"]]
    return sorted((f"{m['name'].lower().replace('_', '-')}=={m['version']}" for m in found), key=str.lower)


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    laboratory = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())["project"]
    groups, runtime = project["dependency-groups"], project["project"]["dependencies"]
    groups["lab"] = laboratory["dependencies"]
    extras = project["project"]["optional-dependencies"]
    added = {name: [r for extra in names for r in extras[extra]] for name, names in EXTRAS.items()}
    together_needed = [r for name, group in groups.items() if name not in SEPARATE for r in group]
    everything = solve([*runtime, *together_needed, *(r for group in added.values() for r in group)], None)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as together:
        together.write("\n".join(everything))
        together.flush()
        for name, members in FILES.items():
            wanted = [*runtime, *(r for g in members for r in groups[g]), *added.get(name, ())]
            is_separate = not SEPARATE.isdisjoint(members)
            pins = solve(groups[members[0]] if is_separate else wanted, None if is_separate else Path(together.name))
            head = f"# Exact versions for {', '.join(members)}; renew with `make lock`.\n"
            (ROOT / "requirements" / f"{name}.txt").write_text(head + "\n".join(pins) + "\n")
            print(f"requirements/{name}.txt: {len(pins)} packages")


if __name__ == "__main__":
    main()
