"""How engines died, in words: for every command that shows engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broadleaf.errors import DeathCertificate
from broadleaf.text import duration

_OUTPUT_LINES = 10
_ADVICE = (
    "cluster.restart_engines_sync() starts engines that died again, and so does rc.shutdown(restart=True); a cluster "
    "with the option restart_engines=True does it by itself."
)


@dataclass(frozen=True)
class LastDeath:
    """The last death in an engine's slot."""

    engine: int
    sentence: str
    """Which process died, how and when."""
    last_output: str
    is_over: bool
    """Whether another process has taken the place."""
    by_request: bool
    """Whether somebody had it stopped."""


def last_death(status: Mapping[str, Any], engine_id: int) -> LastDeath | None:
    """What a status says about the last death of an engine; None if it never died.

    A requested stop is no news once another process has taken the slot.
    """
    entries = (entry for entry in status["engines"] if entry["engine"] == engine_id)
    return next((_of_engine(entry) for entry in entries), None)


def _of_engine(entry: Mapping[str, Any]) -> LastDeath | None:
    death, is_over = entry["last_death"], entry["up"]
    if death is None or (death["cause"] == "stopped" and is_over):
        return None
    engine: int = entry["engine"]
    certificate = DeathCertificate(engine, **{name: value for name, value in death.items() if name != "ago_s"})
    host = f" on {certificate.host}" if certificate.host else ""
    since = ", and was started again" if is_over else ""
    if certificate.cause == "not_started":
        sentence = f"engine {engine} {certificate.reason} ({duration(death['ago_s'])} ago)"
        return None if is_over else LastDeath(engine, sentence, "", is_over, False)
    sentence = (
        f"engine {engine} (pid {certificate.pid}{host}) {certificate.reason}, {duration(death['ago_s'])} ago{since}"
    )
    return LastDeath(engine, sentence, certificate.last_output, is_over, certificate.cause == "stopped")


def deaths_text(status: Mapping[str, Any]) -> str:
    """Everything that a status says about how engines died; empty if none did."""
    deaths = [death for entry in status["engines"] if (death := _of_engine(entry)) is not None]
    parts: list[str] = []
    for death in deaths:
        lines = death.last_output.strip().splitlines()[-_OUTPUT_LINES:]
        parts.append(f"{death.sentence}. Its last output:" if lines else f"{death.sentence}.")
        parts += [f"  | {line}" for line in lines]
    if any(not death.is_over and not death.by_request for death in deaths):
        parts.append(_ADVICE)
    return "\n".join(parts)
