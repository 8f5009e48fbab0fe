"""A plan: every run to make, in order, in blocks that each hold their own controls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broadleaf_lab.errors import DesignError
from broadleaf_lab.spec.factors import Level
from broadleaf_lab.spec.runs import replace_file

if TYPE_CHECKING:
    from broadleaf_lab.spec.study import StudySpec

VERSION = 1


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One run to make. `purpose` is design, path, edge, control, confirm, explicit or sweep; rows of a path contain its
    number and their step (0 is the baseline).
    """

    row: int
    purpose: str
    block: int
    order_in_block: int
    path_id: int | None
    path_step: int | None
    replicate: int
    config: dict[str, Level]


@dataclass(frozen=True, slots=True)
class Plan:
    """The runs of a study in the order in which they are made. `spec` says how they were chosen: the kind of design,
    replicates and blocks, the diagnostics of each part, and the additional constraints.
    """

    study_name: str
    seed: int
    rows: tuple[PlanRow, ...]
    spec: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def make(cls, study: StudySpec, excludes: Mapping[str, str] | None = None) -> Plan:
        """The plan of a study; the same study gives the same plan. `excludes` are constraints in addition to the
        study's own, by name: for example patches that do not apply together.
        """
        from broadleaf_lab.designs import build

        return build(study, excludes)

    def counts(self) -> dict[str, int]:
        """Rows by purpose."""
        found: dict[str, int] = {}
        for row in self.rows:
            found[row.purpose] = found.get(row.purpose, 0) + 1
        return found

    def save(self, path: Path) -> None:
        """Writes the plan as JSON; the file appears completely or not at all. Raises WriteError if it cannot be
        written.
        """
        rows = [
            [r.row, r.purpose, r.block, r.order_in_block, r.path_id, r.path_step, r.replicate, r.config]
            for r in self.rows
        ]
        lines = ",\n  ".join(json.dumps(row) for row in rows)
        head = json.dumps(
            {"version": VERSION, "study": self.study_name, "seed": self.seed, "spec": self.spec}, indent=1
        )
        replace_file(path, f'{head[:-2]},\n "rows": [\n  {lines}\n ]\n}}\n')

    @classmethod
    def load(cls, path: Path) -> Plan:
        """Reads a plan. Raises DesignError that says what is wrong with the file."""
        try:
            data: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DesignError(f"{path}: there is no plan yet. Make one with `broadleaf-lab plan`.") from None
        except ValueError as error:
            raise DesignError(f"{path} is not a plan ({error}). Make a new one with `broadleaf-lab plan`.") from None
        if data.get("version") != VERSION:
            raise DesignError(
                f"{path}: the plan has version {data.get('version')}, but version {VERSION} is needed. Make a new one "
                "with `broadleaf-lab plan`."
            )
        rows = tuple(PlanRow(*entry) for entry in data["rows"])
        return cls(data["study"], data["seed"], rows, data["spec"])
