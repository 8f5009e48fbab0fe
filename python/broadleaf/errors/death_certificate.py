"""How an engine died, and what to do about it."""

from __future__ import annotations

import signal
from typing import Literal, NamedTuple

# Number of lines of an engine's last output that its error shows.
_LAST_LINES = 10


class DeathCertificate(NamedTuple):
    """Everything known about an engine's death."""

    engine_id: int
    """The engine's id."""
    uuid: str = ""
    """Distinguishes it from other engines that had the same id."""
    pid: int = 0
    """Its process id; 0 if it is not known."""
    host: str = ""
    """The name of its host; '' if it is not known."""
    cause: str = "disconnected"
    """'exit', 'signal', 'out_of_memory', 'unresponsive', 'stopped', 'host_gone', 'not_started', 'rank_died',
    'disconnected'."""
    code: int | None = None
    """Exit code or signal number, for these two causes; for 'rank_died' the rank."""
    last_output: str = ""
    """The end of what it wrote; for an engine that was not started, what the operating system said."""
    task_started: bool = False
    """Whether the task had been started on it."""
    block_end: str = ""
    """For an engine that was lost with its host: why the batch job of that host ended, in the scheduler's words."""

    @property
    def is_with_host(self) -> bool:
        """Whether its host is gone, too."""
        return self.cause == "host_gone" or bool(self.block_end)

    @property
    def reason(self) -> str:
        """The cause as a clause of a sentence: 'was ended by signal 11 (SIGSEGV)'."""
        if self.cause == "exit":
            return f"exited with code {self.code}"
        if self.cause == "signal":
            return f"was ended by signal {self.code}{_signal_name(self.code)}"
        if self.cause == "not_started":
            return f"could not be started: {self.last_output}"
        if self.block_end:
            return f"was lost with its host: {self.block_end}"
        if self.cause == "rank_died":
            return f"ended with its MPI world, of which rank {self.code} died first"
        return {
            "out_of_memory": "was ended by the kernel because memory ran out",
            "unresponsive": "was killed because its task did not end in time after a timeout or an abort",
            "stopped": "was stopped on request",
            "host_gone": "was lost with its host: the relay there ended, or the connection to it was lost",
        }.get(self.cause, "lost its connection; its fate is unknown")

    @property
    def advice(self) -> str:
        """Advice on what to do about it."""
        if self.cause == "not_started":
            return "Start fewer engines there, or raise the limit on processes (`ulimit -u`)."
        if self.cause == "out_of_memory":
            return "Start fewer engines per host, or send less at a time."
        if self.is_with_host:
            return (
                "cluster.scale_sync(n) or `broadleaf scale N` replaces lost hosts; restart relays that you started "
                "yourself."
            )
        return "cluster.restart_engines_sync() restarts it."


Sequel = Literal["", "awaited", "replaced"]
"""What comes after a controller's death: nothing, or another controller, which the client awaits or is connected to."""


class ControllerDeath(NamedTuple):
    """Everything that a client knows about a controller it has lost."""

    pid: int
    """Its process id; 0 if it is not known."""
    address: str = ""
    """Where it listens; '' for this host."""
    cause: str = "disconnected"
    """'exit', 'signal', 'stopped', 'ended' (nobody knows how) or 'disconnected' (it may be alive)."""
    code: int | None = None
    """Exit code or signal number, for the first two."""
    failure: str = ""
    """What the connection failed with."""
    log_path: str = ""
    """The path of its log, if it is on this host and was started by this process."""
    sequel: Sequel = ""
    """'awaited' if the client waits until it is started again, 'replaced' if it was."""

    @property
    def text(self) -> str:
        """Which controller it was and what has become of it, as a sentence."""
        who = f"the controller ({', '.join([f'pid {self.pid}'] * bool(self.pid) + [self.address or 'this host'])})"
        if self.cause == "stopped":
            return f"{who} and its engines were stopped before this result arrived."
        if self.cause == "disconnected":
            why = f": {self.failure}" if self.failure else ""
            return f"the connection to {who} was lost before this result arrived{why}."
        how = {
            "exit": f"exited with code {self.code}",
            "signal": f"was ended by signal {self.code}{_signal_name(self.code)}",
        }.get(self.cause, "has ended")
        engines = "" if self.sequel else ", and its engines with it,"
        return f"{who} {how}{engines} before this result arrived."

    @property
    def advice(self) -> str:
        """Advice on what to do about it."""
        log = f" Its log is {self.log_path}." if self.log_path and self.cause != "stopped" else ""
        if self.sequel == "replaced":
            return f"The client is connected to the one that was started in its place: resubmit the missing tasks.{log}"
        if self.sequel:
            return (
                "Once it is started again (by the steward, cluster.resume_controller_sync() or `broadleaf start "
                f"--resume`), this client goes on: on_reconnect says when. Then resubmit the missing tasks.{log}"
            )
        if self.cause == "disconnected":
            return f"Open a new Client, and resubmit the missing tasks.{log}"
        return f"Restart the cluster, open a new Client, and resubmit the missing tasks.{log}"


def _signal_name(number: int | None) -> str:
    try:
        return f" ({signal.Signals(number).name})" if number is not None else ""
    except ValueError:
        return ""


def obituary(certificate: DeathCertificate, retries: int | None) -> str:
    """The certificate as text, with advice. `retries` is the task's number of retries, None if it cannot be retried."""
    c = certificate
    if c.cause == "not_started":
        return f"engine {c.engine_id} {c.reason}. {c.advice}"
    host = f" on {c.host}" if c.host else ""
    text = (
        f"engine {c.engine_id} (pid {c.pid}{host}) {c.reason}"
        f"{' while it ran this task' if c.task_started else ' before it started this task'}."
    )
    advice = c.advice
    if retries == 0 and c.task_started:
        advice = f"Set retries=1 on the view to run such tasks again on another engine. {advice}"
    elif retries and c.task_started:
        advice = f"The task was tried {retries + 1} times, as retries={retries} allows. {advice}"
    if not c.last_output.strip():
        return f"{text} {advice}"
    last = "\n".join("  | " + line for line in c.last_output.strip().splitlines()[-_LAST_LINES:])
    return f"{text} Its last output:\n{last}\n{advice}"
