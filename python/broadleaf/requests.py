"""Requests to a cluster's controller, which a client and a `Cluster` share: sending them, and waiting for engines."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict

from broadleaf.errors import BroadleafError, EngineError
from broadleaf.errors.death_certificate import DeathCertificate
from broadleaf.errors.display import id_ranges

# Control requests and their replies in the JSON form that a link accepts and returns.


class RequestFailed(BroadleafError):
    """The controller refused a request, such as to drain an engine that may hold data of clients."""


def target_set(targets: Sequence[int] | None) -> object:
    """Engine ids as a TargetSet: 'All' for None, else half-open ranges that keep their order."""
    if targets is None:
        return "All"
    ranges: list[list[int]] = []
    for engine in targets:
        if ranges and ranges[-1][1] == engine:
            ranges[-1][1] = engine + 1
        else:
            ranges.append([engine, engine + 1])
    return {"Ranges": ranges}


def preparation(name: str, reload: bool) -> dict[str, Any]:
    """The request that has engines do something first; what it is, is given with the request."""
    return {"Prepare": {"name": name, "function": 0, "reload": reload}}


def send(link: Any, request: object, timeout_s: float | None, content: bytes | None = None) -> Any:
    """Sends one request over `link`, a preparation with its `content`; returns the reply's content, None for a bare
    'done'.

    Raises `RequestFailed` with the controller's reason, and whatever the link raises.
    """
    reply = json.loads(link.request(json.dumps(request), timeout_s, content))
    if reply == "Done":
        return None
    kind, content = next(iter(reply.items()))
    if kind == "Failed":
        raise RequestFailed(content)
    return content


def status(link: Any, timeout_s: float | None = 10.0) -> dict[str, Any]:
    """Counters of the controller and the engines."""
    counters: dict[str, Any] = json.loads(send(link, "Status", timeout_s))
    return counters


class Recording(TypedDict):
    """What a node records of its inputs."""

    path: str
    """The file that it writes, on its own host."""
    calls: int
    """Number of inputs."""
    bytes: int
    """Size of the file."""
    limit_bytes: int
    """Maximum size of the file."""
    ended: str | None
    """Why nothing more is recorded: 'limit', 'stopped' or an error."""


def save_inputs(link: Any, path: str | Path, stop: bool, timeout_s: float | None = 60.0) -> Recording:
    """Writes the recording of the controller's inputs to a file here; with `stop`, nothing more is recorded."""
    recording: Recording = json.loads(send(link, {"Recording": {"stop": stop}}, timeout_s))
    with open(path, "wb") as file:
        while file.tell() < recording["bytes"]:
            piece = send(link, {"Recorded": {"from_bytes": file.tell()}}, timeout_s).encode()
            if not piece:
                break  # the disk of the controller's host is full
            file.write(piece)
    return recording


def failures(link: Any, timeout_s: float | None = 10.0) -> list[dict[str, Any]]:
    """What tasks have raised, by kind, the latest first; see `errors.kinds`."""
    told: list[dict[str, Any]] = json.loads(send(link, {"Watch": {"after": 0, "max_events": 0}}, timeout_s))["failures"]
    return told


# What whoever starts a cluster's engines tells everybody, through the controller.


# What notices are about, besides hosts: who tells them, and what engines wait for.
STEWARD, WAITING = "steward", "waiting"
# The steward tells within seconds what the scheduler says, or that it says nothing. This is for one that has died.
_NOTICE_S = 30.0
_NOTICE_LOOK_EVERY_S = 0.2


def noticed(link: Any, about: str, timeout_s: float | None = 10.0) -> str:
    """What is told about this; '' if nothing is."""
    return str(send(link, {"Noticed": about}, timeout_s))


def why_gone(link: Any, host: str, has_steward: bool = False) -> str:
    """Why a host is gone, in the words of the scheduler; '' if nobody knows. Waits for whoever is asking it; with
    `has_steward` also for a steward that has told nothing yet, because it has just been started."""
    give_up_at = time.monotonic() + _NOTICE_S
    while not (text := noticed(link, host)):
        if time.monotonic() > give_up_at or not (has_steward or noticed(link, STEWARD)):
            return ""
        time.sleep(_NOTICE_LOOK_EVERY_S)
    return text


# What a wait for engines says: for what they wait.


# Short waits are not worth a word.
_QUIET_S = 3.0


class WaitingLine:
    """Says on standard error what a wait is for: on a terminal in one line that is updated, otherwise once."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._shown_at = 0.0
        self._said = ""
        self._is_shown = False

    def tell(self, what: str) -> None:
        """Shows what is waited for, with the seconds so far; '' if nothing is known."""
        now = time.monotonic()
        waited_s = now - self._began
        if waited_s < _QUIET_S:
            return
        if not sys.stderr.isatty():
            if what and what != self._said:
                print(f"broadleaf: {what}", file=sys.stderr, flush=True)
                self._said = what
            return
        if not what:
            self.close()
        elif now - self._shown_at >= 1.0:
            self._shown_at, self._is_shown = now, True
            print(f"\r\x1b[K{what}, {waited_s:.0f} s", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Removes the line from a terminal."""
        if self._is_shown:
            self._is_shown = False
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


# Waits for engines; gives up early if the missing ones have died while starting.


# An answer has this long, even if the wait may be shorter.
_ANSWER_S = 1.0
# Time between two checks for deaths.
_LOOK_S = 0.1
# Time between two questions what engines wait for.
_ASK_EVERY_S = 1.0
# Lines of an engine's last output that the error shows.
_LAST_LINES = 10


def catch_up(link: Any, timeout_s: float | None) -> None:
    """Waits until `link` has taken in all that the controller announced before, such as which engines there are."""
    send(link, {"Records": []}, timeout_s)


def wait_for_engines(
    link: Any, n: int, timeout_s: float | None, n_deaths: Callable[[], int], *, all_are_new: bool = False
) -> bool:
    """Whether `n` engines were up in time; `n_deaths` counts the deaths that `link` has reported.

    Raises `EngineError` once so many engines have died while starting, and will not be restarted, that there cannot be
    `n` of them. If `all_are_new`, the cluster is being started, and whoever died did so at its start.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    try:
        # Engines that a restart ends are not counted.
        catch_up(link, None if timeout_s is None else max(timeout_s, _ANSWER_S))
    except TimeoutError:
        return False
    line = WaitingLine()
    try:
        return _wait(link, n, deadline, n_deaths, all_are_new, line)
    finally:
        line.close()


def _wait(
    link: Any, n: int, deadline: float | None, n_deaths: Callable[[], int], all_are_new: bool, line: WaitingLine
) -> bool:
    deaths_seen, ask_at = -1, time.monotonic() + _QUIET_S
    while True:
        left_s = _LOOK_S if deadline is None else min(_LOOK_S, deadline - time.monotonic())
        if link.wait_for_engines(n, max(0.0, left_s)):
            return True
        if left_s <= 0:
            return False
        # Asked once per death: there may have been some before the link could report them.
        deaths = n_deaths()
        if deaths != deaths_seen:
            error = _hopeless(status(link)["engines"], n, all_are_new)
            deaths_seen = deaths
            if error is not None:
                raise error
        if time.monotonic() >= ask_at:
            ask_at = time.monotonic() + _ASK_EVERY_S
            with contextlib.suppress(TimeoutError):
                line.tell(noticed(link, WAITING, _ANSWER_S))


def _hopeless(engines: list[dict[str, Any]], n: int, all_are_new: bool) -> EngineError | None:
    """The error to raise if there will never be `n` engines: the missing ones died while starting.

    None if more are missing than have died: a user or another host may have yet to start the others.
    """
    living = [entry for entry in engines if entry["state"] != "gone"]
    failed = died(engines) if all_are_new else died_at_start(engines)
    missing = n - len(living)
    if missing <= 0 or len(failed) < missing:
        return None
    return deaths_at_start(failed, sum(entry["up"] for entry in engines), n)


def died(engines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The engines, as the controller's status has them, that died and are not started again."""
    return [entry for entry in engines if entry["state"] == "gone" and entry["last_death"] is not None]


def died_at_start(engines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of them that died before they were up."""
    # An engine has its uuid from the moment that it is up.
    return [entry for entry in died(engines) if not entry["last_death"]["uuid"]]


def deaths_at_start(failed: list[dict[str, Any]], n_up: int, n: int) -> EngineError:
    """The error that says why only `n_up` of `n` engines are up, where those in `failed` have died at their start."""
    first = failed[0]
    death = first["last_death"]
    certificate = DeathCertificate(
        engine_id=first["engine"],
        pid=death["pid"],
        host=death["host"],
        cause=death["cause"],
        code=death["code"],
        last_output=death["last_output"],
    )
    others = [entry["engine"] for entry in failed[1:]]
    also = f"; engine{'s' * (len(others) > 1)} {id_ranges(others)} also died during startup" if others else ""
    where = f" on {certificate.host.partition(':')[0]}" if certificate.host else ""
    message = f"only {n_up} of {n} engines came up: engine {certificate.engine_id}{where} {_how(certificate)}{also}."
    lines = certificate.last_output.strip().splitlines()[-_LAST_LINES:]
    if lines and certificate.cause != "not_started":
        message += " Its last output:\n" + "\n".join(f"  | {line}" for line in lines)
    return EngineError(message, {"engine_id": certificate.engine_id}, certificate)


def _how(certificate: DeathCertificate) -> str:
    if certificate.cause == "disconnected":
        return "did not start within the time limit (start_timeout_s)"
    return certificate.reason if certificate.cause == "not_started" else f"{certificate.reason} during startup"


# Signals as users name them.


def signal_number(sig: int | str) -> int:
    """The number of a signal given by number or name: 2, '2', 'SIGINT'; 0 is none. Raises `ValueError`."""
    text = str(int(sig) if isinstance(sig, int) else sig)
    if text.isdigit():
        number = int(text)
        if number == 0 or number in signal.valid_signals():
            return number
    elif text.upper() in signal.Signals.__members__:
        return int(signal.Signals[text.upper()])
    raise ValueError(f"{sig!r} is not a signal: use a number, or a name such as 'SIGINT'")
