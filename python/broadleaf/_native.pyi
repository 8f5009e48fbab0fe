"""The native part: client and engine endpoints, buffers, the node. Private; the package wraps all of it."""

import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from types import CodeType
from typing import Any, NoReturn, Protocol, final, type_check_only

__all__ = [
    "PROTOCOL_VERSION",
    "STATUS_CANCELLED",
    "STATUS_ERROR",
    "STATUS_LOST",
    "STATUS_OK",
    "STATUS_PENDING",
    "STATUS_REFUSED",
    "STATUS_TIMEOUT",
    "Buffer",
    "ConnectionRefused",
    "Engine",
    "ForkServer",
    "History",
    "Link",
    "LinkClosed",
    "Mover",
    "Pending",
    "SharedMemory",
    "Submitter",
    "__version__",
    "decode_plain",
    "derive_keys",
    "encode_plain",
    "generate_keys",
    "give_key",
    "hold_key",
    "run_node",
    "submitted_depth",
    "wall_ns",
]

__version__: str
PROTOCOL_VERSION: int

STATUS_PENDING: int  # -1: not resolved yet
STATUS_OK: int  # 0
STATUS_ERROR: int  # 1
STATUS_CANCELLED: int  # 2
STATUS_TIMEOUT: int  # 3
STATUS_REFUSED: int  # 4
STATUS_LOST: int  # 5

class ConnectionRefused(Exception):
    """The controller refused: ``args == (kind, message)``, kind one of
    'version', 'python', 'identity', 'full', 'malformed'."""

class LinkClosed(Exception):
    """The connection to the controller is closed or lost, or belongs to the process that this one was forked from."""

@type_check_only
class ClientHooks(Protocol):
    """What the client endpoint needs from Python."""
    def resolve_function(
        self, function: Callable[..., Any], out_of_band: bool
    ) -> tuple[bytes, bool | tuple[CodeType, tuple[Any, ...] | None], list[Any]]:
        """Returns the pickled body, whether it may be cached by the function's identity, and the buffers that travel
        with each call (none unless `out_of_band`). Given its code and defaults, it is cached as long as it has them,
        otherwise permanently. A body with buffers is loaded as an object with `bind(buffers)`."""
    def function_name(self, function: Any) -> str:
        """What error messages call a function."""
    def on_new_function(self) -> None:
        """Called before a body is sent for the first time; may send what it needs first."""
    def dump_args(self, args: tuple[Any, ...], kwargs: dict[str, Any], out_of_band: bool) -> tuple[bytes, list[Any]]:
        """A pickle (protocol 5) and its out-of-band buffers (objects of the buffer protocol); with `out_of_band`, even
        the smallest are kept out of band.
        """
    def explain_too_large(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, sizes: tuple[int, int]
    ) -> BaseException:
        """The exception for a call that does not fit into a message; `sizes` are its size and the limit, in bytes."""
    def load_value(self, data: Any, buffers: list[Any]) -> Any:
        """The value of a pickle, which is bytes or another object with a buffer."""
    def decode_failure(
        self, status: int, payload: Any, buffers: list[Any], engine_id: int, pending: Pending, part: int
    ) -> BaseException:
        """The exception for a task that did not return. `payload` is the engine's error record and `buffers` are its
        buffers (status ERROR), or JSON text of the refusal or death certificate (other statuses)."""
    def on_event(self, kind: str, body: str) -> None:
        """'engine_down', 'stopping', 'link_broken', 'link_resumed', 'link_lost', 'controller_lost', 'successor'; body
        is JSON.

        'controller_lost' comes instead of 'link_lost' if another controller is awaited. 'successor' is called when one
        has accepted the client, in a thread that may use the link before any other thread does; then comes
        'link_resumed'. If none does in time, 'link_lost' comes."""
    def on_wait_behind_others(self) -> None:
        """A call has waited for a second, the first after `Link.leave_behind`."""
    def on_wait(self) -> None:
        """The first wait after `Link.tell_waiting` begins; called on the thread that waits."""
    def on_output(self, seq: int, part: int, stream: int, data: bytes) -> None:
        """Live output of part `part` of the request whose `Pending.seq` is `seq`; called only while
        `Link.live_output` is true."""
    def show_output(self) -> None:
        """Tasks of a `Submitter` with `show_output` have written. Returns once all that `Link.show_next` gives has been
        shown, also by other threads."""

@final
class Link:
    """A client's way to its controller: one connection, or several in a row. Thread-safe.

    With `goes_on`, a link whose controller has died and kept a journal is not `closed`, but reaches for the one that is
    started in its place, for as long as the option `rejoin_timeout_s` says. Submissions, `request` and
    `wait_for_engines` wait meanwhile. What was unresolved has ended as lost.

    In a child forked from the process that made it, it is `closed` and its calls raise `LinkClosed`. The same applies
    to everything made with it.
    """

    live_output: bool
    def __new__(
        cls, connection: str, hooks: ClientHooks, timeout_s: float = 10.0, name: str = ..., goes_on: bool = False
    ) -> Link:
        """`connection` is the connection file's JSON text."""
    @property
    def client_id(self) -> int:
        """The number that the controller has given to the client."""
    @property
    def next_seq(self) -> int:
        """The number of the next task. Numbers go on from one controller to the next."""
    @property
    def closed(self) -> bool: ...
    @property
    def max_outstanding_bytes(self) -> int: ...
    @property
    def max_outstanding_tasks(self) -> int: ...
    def show_next(self, show: Callable[[int, int, bytes], None]) -> bool:
        """Calls `show(seq, stream, data)` for the oldest output that is to be shown; returns whether there was any."""
    def define_options(self, options: str) -> int:
        """Interns task options given as JSON with the fields of TaskOptions; returns their id."""
    @property
    def engines_version(self) -> int:
        """Changes when the known engines change, and when the link ends."""
    def engines(self) -> list[tuple[int, str, int, str]]:
        """(engine id, uuid, pid, host) of every known engine, by id."""
    def deaths_after(self, n: int) -> tuple[int, list[str]]:
        """The number of deaths of engines so far, and the certificates after the first `n` as JSON. Only the last 256
        certificates are kept. An engine that has died is here before it is gone from `engines`."""
    def frees_engine(self) -> bool:
        """Whether a task of the link's cluster waits on this thread; its engine then runs other tasks in the
        meantime."""
    def wait_for(self, is_done: Callable[[], bool], timeout_s: float | None) -> bool:
        """Waits until `is_done()`, which results make true."""
    def wait_for_engines(self, n: int, timeout_s: float | None) -> bool:
        """Whether there were n engines in time. Raises LinkClosed if the link closed, even if n engines were known."""
    def request(self, request: str, timeout_s: float | None = ..., content: bytes | None = None) -> str:
        """Sends a control request given as JSON; returns the reply as JSON.

        A 'Prepare' request gets the number of its `content`, a preparation, which is sent unless it was sent before:
        engines call `EngineHooks.prepare` with it."""
    def post(self, request: str, content: bytes | None = None) -> None:
        """As `request`, but the reply is dropped. Never waits for the controller."""
    def keep_sent_again(self, keep: bool) -> None:
        """Between a call with `True` and the matching call with `False`, large buffers that load-balanced calls send
        again stay in their segments. They are recognized by address and content."""
    def flush(self) -> None: ...
    def begun(self) -> tuple[int, int]:
        """The number of the first task, and the number of tasks, of the request that this thread's last call began;
        (0, 0) if it began none. Waiting for results and asking for their state do not count as calls."""
    def start_call(self) -> None:
        """A call of this thread that makes a request begins: until then, `begun` gives (0, 0)."""
    def leave_behind(self) -> None:
        """The next long wait calls `ClientHooks.on_wait_behind_others`."""
    def tell_waiting(self) -> None:
        """The next wait calls `ClientHooks.on_wait` before it begins."""
    def is_outstanding(self, seq: int) -> bool:
        """Whether task number `seq` was submitted and is not resolved."""
    def outstanding(self) -> int:
        """Number of tasks submitted and not resolved."""
    def outstanding_seqs(self) -> list[int]: ...
    def wait_all(self, timeout_s: float | None) -> bool: ...
    def wait_tasks(self, seqs: Sequence[int], timeout_s: float | None) -> bool:
        """Waits until all of these tasks are resolved, regardless of others."""
    def counters(self) -> dict[str, int]: ...
    def close(self) -> None: ...
    def close_at_exit(self) -> None:
        """Closes the connection and waits for its threads; calls nobody back, because the interpreter is ending."""

@final
class History:
    """The numbers of the last `limit` tasks submitted."""
    def __new__(cls, limit: int) -> History: ...
    def record(self, first: int, n: int) -> None:
        """Notes that tasks `first` to `first + n - 1` were submitted."""
    def __len__(self) -> int: ...
    def seqs(self) -> list[int]:
        """The task numbers, oldest first."""
    def select(self, seqs: Sequence[int]) -> list[int]:
        """Those of `seqs` that are in the history, and those that may have been in it before it forgot them."""
    def clear(self) -> None:
        """Forgets everything."""

@final
class Submitter:
    """Submits for one view, with options, targets and result type fixed once, so a call is cheap."""
    def __new__(
        cls,
        link: Link,
        result_type: type[Pending],
        origin: Any,
        options_id: int,
        n_targets: int,
        coalesce: bool = False,
        delivery: str = "private",
        histories: Sequence[History] = ...,
        show_output: bool = False,
    ) -> Submitter:
        """`n_targets` is 0 for load-balanced tasks, and otherwise the number of targets of mode 'each'. `coalesce` is
        the option of that name. `delivery` says what engines may do with the large buffers they get: 'private',
        'readonly' or 'shared'; other values raise ValueError. `histories` record every task. With `show_output`,
        `ClientHooks.show_output` is called when its tasks write, and before a wait for them ends.
        """
    def __call__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        after: Sequence[int] = (),
        follow: Sequence[int] = (),
        caller_waits: bool = False,
    ) -> Pending:
        """One request: one part (balanced) or one part per target, in target order. `caller_waits` says that the caller
        waits for the result at once (apply_sync), so no other thread is woken to read it."""
    def many(
        self,
        function: Callable[..., Any],
        calls: Iterable[tuple[Any, ...]],
        n_calls: int,
        after: Sequence[int] = ...,
        follow: Sequence[int] = ...,
    ) -> Pending:
        """One balanced task for each of the first `n_calls` tuples of arguments, as the parts of one request. Raises
        ValueError if there are fewer; those before are aborted."""

    def each(
        self, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], options_ids: Sequence[int]
    ) -> Pending:
        """One request whose i-th part is the i-th tuple, sent with the i-th options (mode 'each', one target each)."""

    def subscribe(self, function: Callable[..., Any], tasks: Sequence[tuple[int, int]], run_again: bool) -> Pending:
        """The results of any client's tasks, given as (client id, number), or of running those tasks again: one part
        for each. A part that the controller does not have ends as refused with 'NotStored'. `function` becomes the
        pending's function."""

class Pending:
    """A request of one or more parts that are resolved one by one. Subclassed by AsyncResult."""
    @property
    def seq(self) -> int:
        """Number of the first part; the others follow."""
    def __len__(self) -> int: ...
    @property
    def n_parts(self) -> int:
        """Number of parts, even if a subclass redefines `len`."""
    @property
    def origin(self) -> Any: ...
    @property
    def function(self) -> Callable[..., Any]: ...
    @property
    def submitted_ns(self) -> int: ...
    @property
    def link(self) -> Link: ...
    def all_done(self) -> bool: ...
    def n_done(self) -> int: ...
    def part_done(self, part: int) -> bool: ...
    def wait_all_done(self, timeout_s: float | None) -> bool:
        """Whether all parts are resolved; runs signal handlers while it waits."""
    def wait_part(self, part: int, timeout_s: float | None) -> bool: ...
    def wait_count(self, n: int, timeout_s: float | None) -> bool:
        """Waits until at least n parts are resolved."""
    def completed_part(self, rank: int) -> int:
        """The part that was resolved as number `rank` (0 first)."""
    def status(self, part: int) -> int: ...
    def value(self, part: int) -> Any:
        """Decoded once, then cached. Raises what `decode_failure` gives if the part did not return."""
    def returned(self) -> list[Any] | None:
        """The values of all parts, in order, if every part returned; else None."""
    def values(self) -> list[Any] | None:
        """All values in order; None if a part has no value. Every part must be resolved."""
    def failure(self, part: int) -> BaseException | None: ...
    def times(self, part: int) -> tuple[int, int, int, int]:
        """(started_ns, completed_ns, received_ns, engine id): wall clock. A time not known is 0, no engine is -1."""
    def cpu_ns(self, part: int) -> int:
        """Processor time of the part's task; 0 if it never ran."""
    def text_since(self, part: int, stream: int, position_bytes: int) -> tuple[str, int]:
        """The text of stream 1 or 2 of a part from a position on, and the position of its end. Only the latest text is
        kept, and it says how much is missing. Bytes that are not UTF-8 are replaced by U+FFFD."""
    def messages(self, part: int) -> list[bytes]:
        """Messages of stream 3 so far."""
    def written_parts(self) -> list[int]:
        """The parts that have written to any stream so far, in order."""
    def abandon(self, parts: Sequence[int]) -> None:
        """Marks the unresolved parts among these as cancelled. Their tasks still count as unresolved until they end."""
    def n_failed(self) -> int:
        """Number of parts that are resolved but did not return."""
    def on_done(self, callback: Callable[[], object]) -> None:
        """Calls back once, when all parts are resolved (at once if they are), from whichever thread learns of it."""
    def get_single(self, timeout_s: float | None) -> Any:
        """wait_part(0), then value(0). Raises TimeoutError."""

@type_check_only
class EngineHooks(Protocol):
    unmet_type: type[BaseException]
    def load_function(self, body: bytes) -> Callable[..., Any]: ...
    def prepare(self, content: bytes) -> None:
        """Runs a preparation; called between tasks, as soon as it arrives. Exceptions go to the log."""
    def load_args(self, data: bytes, buffers: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]: ...
    def run_coroutine(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """The value of a coroutine that a task returned."""
    def dump_value(self, value: Any) -> tuple[bytes, list[Any]]: ...
    def dump_error(self, error: BaseException, arguments: tuple[Any, ...]) -> tuple[bytes, Sequence[Any]]: ...
    def restore(self, function: Callable[..., Any] | None) -> None:
        """Called after a task that called `function`, if the task has changed `sys.stdout`, `sys.stderr`, `sys.stdin`,
        the filters of `warnings`, or the level of a logger (`Engine.note_level` was called)."""
    def run_nested(self, run: Callable[[], None]) -> None:
        """Calls `run`, which runs a task while the current one waits."""
    def end_child(self, error: BaseException | None) -> NoReturn:
        """Ends this process, a child that a task forked and that returned from the task, with the exception that it
        raised."""

@type_check_only
class CapturedOutput(Protocol):
    """Where an engine's output goes: file descriptors, and a path."""

    @property
    def stdout_read(self) -> int:
        """Read end of the pipe behind descriptor 1."""
    @property
    def stderr_read(self) -> int:
        """Read end of the pipe behind descriptor 2."""
    @property
    def recent(self) -> int:
        """Memory for the latest output: a memfd, or a nameless file in /dev/shm."""
    @property
    def recent_bytes(self) -> int:
        """Its size."""
    @property
    def log_path(self) -> str: ...

@final
class Engine:
    """An engine's connection to its node; `run` executes tasks on the calling (main) thread."""

    def __new__(
        cls, connection: str, engine_id: int | None, hooks: EngineHooks, captured: CapturedOutput | None
    ) -> Engine: ...
    @property
    def engine_id(self) -> int: ...
    @property
    def uuid(self) -> str: ...
    def run(self) -> None:
        """Runs tasks until told to stop or the node is gone. A KeyboardInterrupt raised by the SIGINT handler while a
        task runs becomes that task's error; `interrupt_pending` says whether the signal is meant for the task."""
    def run_next(self) -> None:
        """Runs a task while the current one waits; passed to `EngineHooks.run_nested`."""
    def current_task(self) -> int | None: ...
    def note_level(self) -> None:
        """Says that the level of a logger has been set."""
    def counters(self) -> dict[str, int]:
        """Figures on this engine's own segments: segments, segment_bytes, warm_bytes, copies, copied_bytes and
        mappings."""
    def interrupt_pending(self) -> bool:
        """Consumes a request to interrupt the running task: true once per request."""
    def is_interrupt_requested(self) -> bool:
        """Whether there is a request to interrupt the running task. Does not consume it."""
    def wakeup_fd(self) -> int:
        """The descriptor for `signal.set_wakeup_fd`. After a SIGINT a thread sends SIGURG until `on_interrupted` is
        called, for at most 10 s, so that the main thread leaves a call that blocks."""
    def on_interrupted(self) -> None:
        """Called by the handler of SIGINT: no more SIGURG is sent."""
    def replace(self, destination: Any, source: Any) -> bool:
        """Maps the bytes of `source` over those of `destination`, without a copy. Both are contiguous buffers. Returns
        False and does nothing unless each is a whole buffer received in a segment, both have the same length, and
        `source` was not written to.
        """
    def retire_buffers(self) -> None:
        """From here on, large received buffers that the running task drops are unmapped after its reply has left."""
    def write_output(self, stream: int, data: bytes) -> None:
        """Accepts what Python writes to stream 1 or 2. Whole lines are sent at once to the client of the running task,
        or to the log if there is none."""
    def flush_output(self, stream: int | None = None) -> None:
        """Sends the unfinished line of a stream, or of both, and waits until all that is queued has left."""
    def send_message(self, data: bytes) -> None:
        """Sends a pickled message of the running task."""

@final
class ForkServer:
    """The fork server's connection to its node."""
    def __new__(cls, connection: str) -> ForkServer: ...
    def fileno(self) -> int: ...
    def next_command(self) -> str | None:
        """The next command as JSON, or None if none is complete yet; raises LinkClosed when the node is gone."""
    def send_event(self, event: str) -> None: ...

@final
class Mover:
    """A mover's connection to the payload plane of its host. Raises ConnectionRefused if the node accepts no mover."""
    def __new__(cls, connection: str, world: int, rank: int) -> Mover: ...
    def fileno(self) -> int: ...
    def next_command(self) -> tuple[str, int, list[int], int | None] | None:
        """Name, flow, numbers and a descriptor of the next command, or None when none is complete yet.

        `receive` and `send`: peer, tag, piece_bytes, segment_offset_bytes, len_bytes, from_bytes. `ready`: end_bytes.
        `stop` and `abandon`: none. The descriptor is the caller's. Raises LinkClosed when the node is gone."""
    def moved(self, flow: int, end_bytes: int) -> None:
        """Reports with the next `flush` that all bytes up to `end_bytes` have arrived."""
    def ended(self, flow: int) -> None:
        """Reports with the next `flush` that nothing of a flow will be read or written any more."""
    def flush(self) -> bool:
        """Writes what is waiting; True when nothing is left."""

@final
class Buffer:
    """Bytes received out of band: a private mapping of a shared segment, or a copy of inline bytes. Writable."""
    def __len__(self) -> int: ...

@final
class SharedMemory:
    """Writable memory that is sent to engines of this host without a copy. Its address never changes."""
    def __new__(cls, n_bytes: int, zeroed: bool) -> SharedMemory:
        """Raises MemoryError. Without `zeroed` the content is undefined."""
    def __len__(self) -> int: ...
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...

def encode_plain(value: Any) -> bytes | None:
    """The compact encoding of exact None, bool, int (64 bit), float, str, bytes and range, and of lists, tuples and
    dicts of them. Returns None for everything else, including arrays and long text, which need buffers."""

def decode_plain(data: bytes) -> Any: ...
def wall_ns() -> int:
    """The time of day in ns since 1970, as tasks are stamped with it: it does not step while any is under way."""

def submitted_depth() -> int:
    """The depth of a task that this process submits now; 0 if no task is running."""

def generate_keys() -> str:
    """Fresh Ed25519 keys as JSON: server, client and engine, each {private, public} in base64."""

def derive_keys(secret: bytes, context: str) -> str:
    """Keys in the form of `generate_keys` that are derived from a secret by HKDF-SHA256: the same for the same `secret`
    and `context`."""

def hold_key(connection: str) -> str:
    """Removes the private key from a connection file's text and keeps it, hidden from Python, for this process and
    those forked from it. `Client`, `Engine` and `ForkServer` use it for a text of the same cluster that has no key.
    Raises ValueError for a text without a key."""

def give_key() -> str:
    """The held key, to pass on to an interpreter that this process starts. Raises RuntimeError in an engine, and if no
    key is held."""

def run_node(config: str) -> int:
    """Runs a node on the calling thread until it is stopped; returns its exit code. Releases the GIL.

    `config` is JSON: cluster_id, unix_path, ready_fd, lifeline_fd, tcp {host, port, tls}, keys, n_engines,
    python, engine_env, options {...}. `ready_fd` and `lifeline_fd` may be null, and so may `tcp`. When the
    node listens it writes one line of JSON to `ready_fd` and closes it: unix_path, tcp_port (null without `tcp`) and
    pid; closing it without a line means that the start failed. End of file on `lifeline_fd` means that the client is
    gone."""
