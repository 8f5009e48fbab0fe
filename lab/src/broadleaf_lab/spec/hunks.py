"""The hunks of a patch, each as a patch of its own: a factor for each of them says what each change costs or saves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hunk:
    """`text` is a patch with this hunk alone, `line` the first line that it removes or adds, without its indent."""

    text: str
    line: str


def hunks(patch: str) -> list[Hunk]:
    """The hunks of a unified diff, in its order."""
    found: list[Hunk] = []
    head: list[str] = []
    body: list[str] = []
    left = (0, 0)

    def finish() -> None:
        if body:
            changed = [line for line in body[1:] if line[:1] in "-+"]
            first = next((line for line in changed if line.startswith("-")), changed[0] if changed else "")
            found.append(Hunk("".join(line + "\n" for line in (*head, *body)), first[1:].strip()))
            body.clear()

    for line in patch.splitlines():
        if line.startswith("@@"):
            finish()
            left = _sizes(line)
            body.append(line)
        elif body and (left != (0, 0) or line.startswith("\\")):
            # The sizes decide where a hunk ends: a removed line may look like a header.
            body.append(line)
            left = (left[0] - (line[:1] in "- "), left[1] - (line[:1] in "+ ")) if line[:1] != "\\" else left
        else:
            if body:
                finish()
                head = []
            head.append(line)
    finish()
    return found


def _sizes(head: str) -> tuple[int, int]:
    """How many lines a hunk has before and after: `@@ -12,7 +12,6 @@`."""
    old, new = (part.partition(",")[2] or "1" for part in head.split()[1:3])
    return int(old), int(new)
