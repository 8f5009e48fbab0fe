"""Every option that can change what a cluster does or how fast: one table, and where each value came from.

A value comes from the last of these that has one: the default, `config.toml` in the site's directory, in Broadleaf's
and in the profile's, the environment variable ``BROADLEAF_<NAME>``, the argument of a call.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from broadleaf.state.directories import base_dir

Kind = Literal["int", "float", "bool", "str", "choice", "list"]
Value = int | float | bool | str | list[str]

_MIB = 1 << 20
# Upper bounds: an hour and a second in microseconds, a year in seconds, more bytes than any machine has, the tasks of a
# client's history, and half of what a frame has left beside the largest payload.
_HOUR_US = 3_600_000_000
_SECOND_US = 1_000_000
_YEAR_S = 31_536_000
_ANY_BYTES = 1 << 48
_HISTORY_TASKS = 1 << 24
_FLUSH_BYTES = _MIB // 2
# Tasks that an engine's claim board has room for, and the largest payload inline.
_CLAIM_SLOTS = 4096
_INLINE_BYTES = 255 * _MIB
SITE_DIR = Path("/etc/broadleaf")
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


class ConfigError(ValueError):
    """An option does not exist, or a value is not allowed; says where it was found."""


class Option(NamedTuple):
    """One option. `acts` says where it is read: node, client, engine, host (the fork server) or cluster."""

    name: str
    kind: Kind
    default: Value
    acts: str
    meaning: str
    choices: tuple[str, ...] = ()
    minimum: float = 0
    maximum: float = 0
    """The largest value of a number: what the native parts accept, or more than anyone needs."""
    form: tuple[str, str] = ("", "")
    """Regular expression of a text's form, and that form in words."""
    items: type[str] | type[int] | type[float] = str
    """What a list has."""

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return f"BROADLEAF_{self.name.upper()}"

    def check(self, value: Any, origin: str) -> Value:
        """`value` as this option's type. `ConfigError` names the option, the fault and `origin`."""
        try:
            return self._convert(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"option {self.name!r} from {origin}: {error}") from None

    def _convert(self, value: Any) -> Value:
        match self.kind:
            case "bool":
                return _to_bool(value)
            case "int" | "float":
                return self._to_number(value)
            case "list":
                return _to_list(value) if self.items is str else self._to_numbers(value)
            case "str" | "choice":
                if isinstance(value, bool) and self.kind == "choice":
                    value = "on" if value else "off"
                if not isinstance(value, str):
                    raise TypeError(f"expected text, got {value!r}")
                if self.choices and value not in self.choices:
                    raise ValueError(f"expected one of {', '.join(self.choices)}, got {value!r}")
                if self.form[0] and not re.fullmatch(self.form[0], value):
                    raise ValueError(f"expected {self.form[1]}, got {value!r}")
                return value

    def _to_number(self, value: Any) -> int | float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise TypeError(f"expected a number, got {value!r}")
        try:
            number = int(value) if self.kind == "int" else float(value)
        except ValueError:
            raise ValueError(f"expected a number, got {value!r}") from None
        if self.kind == "int" and isinstance(value, float) and number != value:
            raise ValueError(f"expected a whole number, got {value!r}")
        if not self.minimum <= number < float("inf"):
            raise ValueError(f"must be at least {self.minimum:g} and finite, got {value!r}")
        if number > self.maximum:
            raise ValueError(f"must be at most {self.maximum:.15g}, got {value!r}")
        return number

    def _to_numbers(self, value: Any) -> list[Any]:
        """A list of numbers, or a text with commas or spaces between them, in brackets or not."""
        if isinstance(value, str):
            text = value.strip()
            value = (text[1:-1] if text.startswith("[") and text.endswith("]") else text).replace(",", " ").split()
        if not isinstance(value, list | tuple):
            raise TypeError(f"expected a list of numbers, got {value!r}")
        kind: Kind = "int" if self.items is int else "float"
        return [self._replace(kind=kind)._to_number(item) for item in value]


def _to_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        if value.lower() in _TRUE:
            return True
        if value.lower() in _FALSE:
            return False
    raise ValueError(f"expected on or off, got {value!r}")


def _to_list(value: Any) -> list[str]:
    if isinstance(value, str):
        import json
        import shlex

        if value.lstrip().startswith("["):  # or a host such as [fe80::1]
            with contextlib.suppress(ValueError):
                return _to_list(json.loads(value))
        lexer = shlex.shlex(value, posix=True)
        lexer.whitespace += ","
        lexer.whitespace_split = True
        return list(lexer)
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return list(value)
    raise TypeError(f"expected a list of strings, such as 'a, b' or ['a', 'b'], got {value!r}")


OPTIONS: dict[str, Option] = {
    option.name: option
    for option in (
        # Scheduling
        Option("prefetch_target_us", "int", 8000, "node", "Work that the controller keeps ahead on each engine, in "
               "microseconds. An engine's prefetch window is this time divided by its mean task time.",
               maximum=_HOUR_US),
        Option("prefetch_min", "int", 2, "node", "Minimum number of tasks in an engine's prefetch window, the running "
               "task included.", minimum=1, maximum=_CLAIM_SLOTS),
        Option("prefetch_max", "int", 1000, "node", "Maximum number of tasks in an engine's prefetch window.",
               minimum=1, maximum=_CLAIM_SLOTS),
        Option("steal", "bool", True, "node", "Whether an idle engine takes over tasks that wait on a busy engine and "
               "have not started."),
        Option("steal_after_us", "int", 500, "node", "Minimum work behind an engine's running task before an idle "
               "engine takes some of it, in microseconds. A running task that has already taken this long also counts.",
               maximum=_HOUR_US),
        Option("wake_cost_us", "int", 20, "node", "Cost of waking an engine, in microseconds. Tasks of functions "
               "that have taken less time so far go to engines that are awake; other tasks go to any engine. 0 = all "
               "tasks go to any engine.", maximum=_SECOND_US),
        Option("wake_after_us", "int", 50, "node", "Work on each awake engine, in microseconds, before another engine "
               "is woken for tasks shorter than `wake_cost_us`. No more engines than cores are woken for them.",
               maximum=_SECOND_US),
        Option("chunk_target", "int", 1024, "client", "Number of chunks that a map without `chunksize` is cut into. "
               "There are more if this would give fewer than 8 chunks per engine, or chunks of more than 16,384 items.",
               minimum=1, maximum=_HISTORY_TASKS),
        Option("ship_local_modules", "bool", False, "client", "Whether to send modules from the client's working "
               "directory or its script's folder to the engines. They are sent before the first function or argument "
               "that may need them, and again after a reload."),
        # Batching
        Option("client_linger_us", "int", 100, "client", "Maximum batching delay for submitted tasks, in microseconds. "
               "The delay is ten times as long once more than 64 tasks per engine are unresolved.", maximum=_SECOND_US),
        Option("client_spin_us", "int", 200, "client", "How long a waiting thread busy-polls for replies before it "
               "blocks, in microseconds. It polls only if it has sent no more tasks than the engines and cores can "
               "run at once. 0 = never.", maximum=_SECOND_US),
        Option("client_flush_bytes", "int", 32 * 1024, "client", "Batch size that ends the batching delay of submitted "
               "tasks, in bytes.", maximum=_FLUSH_BYTES),
        Option("engine_flush_us", "int", 200, "engine", "Maximum batching delay for results on an engine, in "
               "microseconds.", maximum=_SECOND_US),
        Option("engine_flush_bytes", "int", 32 * 1024, "engine", "Batch size that ends the batching delay of results, "
               "in bytes.", maximum=_FLUSH_BYTES),
        # Payload
        Option("inline_buffer_bytes", "int", 16384, "client, engine", "Largest buffer or encoded value that travels "
               "inside its message, in bytes. Larger ones go through shared memory.", maximum=_INLINE_BYTES),
        Option("shared_memory", "bool", True, "client, engine", "Whether large buffers go through shared memory "
               "between processes of one host."),
        Option("pool_max_bytes", "int", 0, "client, engine", "Maximum size of all shared segments that a process "
               "holds, including free ones, in bytes. 0 = a quarter of the available memory.", maximum=_ANY_BYTES),
        Option("shared_memory_warm_s", "int", 5, "node, client, engine", "How long a free segment of shared memory is "
               "kept for reuse, in seconds. Reusing memory is several times faster than allocating it.",
               maximum=_YEAR_S),
        # Bounds
        Option("max_outstanding_tasks", "int", 262_144, "node", "Maximum number of unresolved tasks per client. "
               "Further submissions wait.", minimum=1, maximum=_HISTORY_TASKS),
        Option("max_outstanding_bytes", "int", 256 * _MIB, "node", "Maximum size of the unresolved tasks of one "
               "client, in bytes. Further submissions wait.", minimum=1, maximum=_ANY_BYTES),
        Option("congestion_bytes", "int", 64 * _MIB, "node", "Size of a client's unread messages, in bytes, above "
               "which none of its tasks is started. Above it, output, displays and published data of its tasks are "
               "dropped.", maximum=_ANY_BYTES),
        Option("history_tasks", "int", 65_536, "node", "Number of resolved tasks remembered per client, so that later "
               "tasks can depend on them.", maximum=_HISTORY_TASKS),
        Option("kept_results_bytes", "int", 4 * _MIB, "node", "Size of the result store, in bytes. It keeps ended "
               "tasks for other clients and for clients that reconnect: values, arguments, and 320 bytes per task. 0 = "
               "keep none.", maximum=_ANY_BYTES),
        Option("function_cache_bytes", "int", 256 * _MIB, "node", "Maximum size of the functions that one client "
               "defines, in bytes.", maximum=_ANY_BYTES),
        # Observation
        Option("log_level", "choice", "info", "node", "Lowest level of events that are recorded.",
               choices=("off", "error", "info", "debug")),
        Option("log_sink", "str", "ring", "node", "Where events go besides the event ring: `ring` (nowhere else), "
               "`stderr` (the node's log), or the path of a file."),
        Option("trace_events", "int", 65_536, "node", "Number of events that the event ring keeps.",
               maximum=_HISTORY_TASKS),
        Option("record_inputs", "str", "", "node", "The file in which the controller records its inputs from its start "
               "on, without data and code, for a bug report. Each relay writes one on its own host, named after "
               "that host. Empty = none."),
        Option("record_inputs_bytes", "int", 256 * _MIB, "node", "Maximum size of each of these files, in bytes. Then "
               "recording ends.", minimum=1, maximum=_ANY_BYTES),
        # Liveness and failure
        Option("restart_engines", "bool", False, "node", "Whether an engine that died is started again."),
        Option("max_restarts", "int", 10, "node", "Maximum number of restarts of one engine within a minute. After "
               "that it stays down.", maximum=1_000_000),
        Option("restart_backoff_max_s", "float", 10.0, "node", "Maximum delay before an engine that keeps dying is "
               "restarted, in seconds. The first delay is 0.1 s. It doubles with each restart within a minute.",
               maximum=_YEAR_S),
        Option("interrupt_grace_s", "float", 2.0, "node", "How long a task may go on after a timeout or an abort "
               "interrupts it, in seconds. Then its engine is killed.", maximum=_YEAR_S),
        Option("stop_grace_s", "float", 5.0, "node", "How long an engine that is told to stop may spend on its current "
               "task, in seconds.", maximum=_YEAR_S),
        Option("start_timeout_s", "float", 60.0, "cluster, node", "How long the node, and then each engine, may take "
               "to start, in seconds.", minimum=0.1, maximum=_YEAR_S),
        Option("broadcast_topology", "choice", "auto", "node", "Topology by which large arguments reach several hosts. "
               "`auto` picks the fastest one for the measured latency and bandwidth.",
               choices=("auto", "flat", "binomial", "k-ary", "chain")),
        Option("tree_arity", "int", 0, "node", "Number of branches per node of the tree of hosts. 0 = automatic: the "
               "fastest number.", maximum=65_536),
        Option("tree_depth", "int", 0, "node", "Maximum depth of the tree of hosts. 0 = no limit.", maximum=64),
        Option("payload", "choice", "tcp", "node", "How data goes from host to host. `mpi` uses MPI between hosts that "
               "each run a mover, and TCP between others; `rma` uses one-sided calls instead. See the guide to MPI.",
               choices=("tcp", "mpi", "rma")),
        Option("payload_trust", "choice", "encrypted", "node", "Whether data may leave a host unencrypted while TCP "
               "connections are encrypted. `fabric` allows it for MPI, which does not encrypt.",
               choices=("encrypted", "fabric")),
        Option("mpi_message_bytes", "int", 262_144, "node", "Size of the messages in which MPI moves data between "
               "hosts, in bytes. Larger messages have less overhead; smaller ones pass through a chain of hosts "
               "sooner.",
               minimum=65_536, maximum=1 << 30),
        Option("payload_socket_bytes", "int", 262_144, "node", "Maximum payload waiting in one socket between two "
               "hosts, in bytes. If their round trip is over 2 ms, and too long for 1 Gb/s with this value, the kernel "
               "sets the limit instead. A smaller value keeps queues short.",
               minimum=4096, maximum=1 << 30),
        Option("payload_streams", "int", 0, "node, client", "Number of connections over which a host gets payload from "
               "another. 0 = automatic: one, and on links with a round trip of over 2 ms up to 8, as long as more are "
               "faster.", maximum=16),
        Option("payload_cores", "int", 0, "node", "Number of cores on each host, counted from the last, that may "
               "handle payload between hosts. The others stay free for small tasks. 0 = automatic: on hosts with at "
               "most four cores, prefer the last core while it has capacity.", maximum=65_536),
        Option("payload_niceness", "int", 10, "node", "`nice` level of the threads that move payload between hosts. A "
               "lower level keeps payload moving beside engines that compute; a higher one keeps the round trips of "
               "small tasks short.", maximum=19),
        Option("host_timeout_s", "float", 10.0, "node", "How long a host may be silent before it gets no new tasks, "
               "in seconds. A host whose connection was reset is lost after four seconds, or after this time if it is "
               "shorter.",
               minimum=1, maximum=_YEAR_S),
        Option("rejoin_timeout_s", "float", 60.0, "node", "How long a host may be silent before it is lost, in "
               "seconds; at least `host_timeout_s`. Until then its engines keep their variables and running tasks, and "
               "its relay tries to reach the controller again. Clients on other hosts and their results are kept for "
               "the same time.",
               maximum=_YEAR_S),
        Option("lost_client", "choice", "cancel", "node", "What becomes of the tasks of a client on another host "
               "that does not come back within `rejoin_timeout_s`: `cancel` those that have not started, or `finish` "
               "them and keep the results for whoever asks for them by their ids.", choices=("cancel", "finish")),
        Option("journal", "choice", "off", "node", "Whether the controller writes down which hosts and engines it has. "
               "If it is killed, it can then be started again, by the steward of a detached cluster or by "
               "`broadleaf start --resume`: engines on other hosts keep their variables and running tasks until then, "
               "for at most `rejoin_timeout_s`. With `sync`, the journal also survives a crash of its machine.",
               choices=("off", "on", "sync")),
        Option("drain_s", "float", 30.0, "node", "How long before the end of its batch job a host stops taking "
               "tasks, in seconds; at most a tenth of the job's time. A relay that receives SIGTERM has "
               "the same time to finish its tasks.", maximum=_YEAR_S),
        # Network
        Option("listen", "str", "", "node", "TCP address to listen on, as `host:port`. The host may be the name of a "
               "network interface, such as `ib0`. Port 0 = any free port. Empty = unix socket only.",
               form=(r"|.+:\d{1,5}", "host:port")),
        Option("tls", "bool", True, "node, client", "Whether TCP connections are encrypted. Both sides prove their "
               "keys either way."),
        # Engines
        Option("engines", "str", "local", "cluster", "Where engines run: `local`, `ssh`, `slurm`, `sge`, `pbs`, `lsf`, "
               "`psij`, `dask`, `ray`, `mpi`, or an installed engine set."),
        Option("engine_start", "choice", "fork", "host", "How engines are started: `fork` from a process that has "
               "already imported what they need, or `spawn` a new interpreter for each.", choices=("fork", "spawn")),
        Option("capture_descriptors", "bool", True, "host", "Whether a task's client receives what child processes, C "
               "code and system calls write. If off, it goes to the engine's log."),
        Option("keep_failed_frames", "int", 0, "engine", "Number of failed tasks whose frames, with their variables, "
               "an engine keeps for `AsyncResult.debug()`.", maximum=65_536),
        Option("preload", "list", ["auto"], "host", "Modules that engines import before their first task, separated by "
               "commas; forked engines share them. `auto` adds numpy if the client has imported it, and IPython in an "
               "IPython session."),
        Option("affinity", "str", "none", "engine", "Cores that an engine may use: `none` (every core of the cluster), "
               "`spread` (one core each, in turn), or a list such as `0-3,8`.",
               form=(r"none|spread|\d+(-\d+)?(,\d+(-\d+)?)*", "none, spread, or a list such as 0-3,8")),
        Option("threads_per_engine", "int", 0, "host", "Number of threads that numerical libraries use in an engine. 0 "
               "= the value of OMP_NUM_THREADS, or the number of usable cores divided by the number of engines. A "
               "library's own variable takes precedence.",
               maximum=65_536),
    )
}  # fmt: skip


class Settings:
    """A value for every option, and where each came from."""

    def __init__(self, values: Mapping[str, Value], origins: Mapping[str, str]) -> None:
        self.values = values
        self.origins = origins

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def origin(self, name: str) -> str:
        """'default', 'environment BROADLEAF_X', 'argument', or the file's path."""
        return self.origins[name]

    def to_dict(self) -> dict[str, Value]:
        """The values, ready for JSON."""
        return dict(self.values)

    def to_native(self) -> dict[str, Any]:
        """The values as the native parts take them."""
        return self.to_dict() | {
            "log_level": OPTIONS["log_level"].choices.index(self["log_level"]),
            "pool_max_bytes": self["pool_max_bytes"] or None,
            "record_inputs": self["record_inputs"] and os.path.abspath(self["record_inputs"]),
        }


def is_strange(arguments: Mapping[str, Any]) -> bool:
    """Whether an argument is not an option, or has a value that only IPython Parallel uses."""
    return not arguments.keys() <= OPTIONS.keys() or isinstance(arguments.get("log_level"), int)


def resolve(arguments: Mapping[str, Any] | None = None, profile_dir: Path | None = None) -> Settings:
    """Layers defaults, files, environment and `arguments`; None among arguments means not given.

    Raises `ConfigError` for names that do not exist and values that do not fit.
    """
    values: dict[str, Value] = {name: option.default for name, option in OPTIONS.items()}
    origins = dict.fromkeys(values, "default")
    for path in _files(profile_dir):
        _overlay(values, origins, _read_toml(path), str(path))
    for name, option in OPTIONS.items():
        if (text := os.environ.get(option.variable)) is not None:
            origin = f"environment {option.variable}"
            values[name], origins[name] = option.check(text, origin), origin
    given = {name: value for name, value in (arguments or {}).items() if value is not None}
    _overlay(values, origins, given, "argument")
    return Settings(values, origins)


def tables(name: str, profile_dir: Path | None = None) -> list[tuple[str, Mapping[str, Any]]]:
    """The tables ``[name]`` of the configuration files, with the file of each; the last one takes precedence."""
    found = [(str(path), _read_toml(path).get(name)) for path in _files(profile_dir)]
    return [(path, table) for path, table in found if isinstance(table, Mapping)]


def _files(profile_dir: Path | None) -> list[Path]:
    directories = (SITE_DIR, base_dir(), profile_dir)
    return [directory / "config.toml" for directory in directories if directory is not None]


def _overlay(values: dict[str, Value], origins: dict[str, str], layer: Mapping[str, Any], origin: str) -> None:
    for name, value in layer.items():
        if isinstance(value, Mapping):
            continue  # the options of an engine set, see `tables`
        option = OPTIONS.get(name)
        if option is None:
            raise ConfigError(f"unknown option {name!r} ({origin}){_suggestion(name)}; see `broadleaf config show`")
        values[name], origins[name] = option.check(value, origin), origin


def _suggestion(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, OPTIONS, 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open() as file:
            _check_owner(path, os.fstat(file.fileno()))
            text = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None


def _check_owner(path: Path, found: os.stat_result) -> None:
    """Refuses a file that another user may have written: it names commands that are run."""
    # Where users are mapped, as in a container, root is shown as the last of these.
    if path.parent != SITE_DIR and found.st_uid not in (os.getuid(), 0, 65534):
        raise ConfigError(f"{path} belongs to user {found.st_uid}, who could use it to run commands as you; remove it")
    if found.st_mode & stat.S_IWOTH:
        raise ConfigError(
            f"{path} can be changed by all users, who could use it to run commands as you: chmod o-w {path}"
        )


def markdown_list() -> str:
    """The options for the documentation, as a list of definitions."""
    lines = []
    for option in OPTIONS.values():
        kind = ", ".join(f"`{choice}`" for choice in option.choices) or option.kind
        if option.kind in ("int", "float"):
            kind += f", {option.minimum:,} to {option.maximum:,}"
        about = f"*{kind}; default `{format_value(option.default)}`; acts in {option.acts}*"
        lines += [f"`{option.name}`", f": {option.meaning}", "", f"  {about}", ""]
    return "\n".join(lines)


def format_value(value: Value) -> str:
    """A value as it is written in the environment."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ",".join(value)
    return str(value)
