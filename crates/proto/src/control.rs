//! Control messages: one to a frame, `postcard`-encoded.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::chunk::PayloadSecret;
pub use crate::fork_server::{ForkServerCommand, ForkServerEvent};
use crate::ids::{ClientId, EngineId, FunctionId, HostId, OptionsId, SegmentId, TaskSeq};
use crate::mover::MoverRank;
use crate::wire::DecodeError;

/// Encodes a control message.
///
/// # Panics
/// Never: every message type here serialises into memory.
pub fn encode<M: Serialize>(message: &M) -> Vec<u8> {
    postcard::to_allocvec(message).expect("invariant: control messages serialise infallibly")
}

/// Decodes a control message; trailing bytes are refused.
///
/// # Errors
/// [`DecodeError::Malformed`].
pub fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Result<M, DecodeError> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(DecodeError::Malformed),
    }
}

/// What the dialling peer is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Submits tasks.
    Client {
        /// Shown by status; free text.
        name: String,
    },
    /// Runs tasks.
    Engine {
        /// The place the fork server gave it, or `None` for one started by hand.
        engine: Option<EngineId>,
        /// Its process on this host.
        pid: u32,
    },
    /// Forks engines on this host.
    ForkServer {
        /// Its process on this host.
        pid: u32,
    },
    /// Owns another host: its engines, its memory.
    Relay {
        /// The host's name, unique in the cluster.
        name: String,
        /// Engines it wants to start.
        n_engines: u32,
        /// Where other relays dial it for payload, `host:port`; `None` when nobody can.
        listen: Option<String>,
        /// Time until it ends by itself, with the batch job that it runs in.
        ends_in_ns: Option<u64>,
    },
    /// Fetches and serves payload; a connection beside that of the same relay.
    Payload {
        /// The host at this end.
        host: HostId,
    },
    /// Moves payload by MPI, for the host it is on.
    Mover(MoverRank),
}

/// What a peer says of itself, once the keys are proven.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`crate::PROTOCOL_VERSION`] of the sender.
    pub protocol: u32,
    /// Broadleaf's version.
    pub broadleaf: String,
    /// `major.minor` of the sender's Python.
    pub python: String,
    /// Cluster the sender means to join.
    pub cluster_id: String,
    /// What it is.
    pub role: Role,
}

/// The controller accepts a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The client's id (0 for other roles).
    pub client: ClientId,
    /// The engine's id (0 for other roles).
    pub engine: EngineId,
    /// Token for the high half of the sender's segment ids.
    pub segment_token: u32,
    /// The relay's host, or the number that a client on another host has as one (0 for other roles).
    pub host: HostId,
    /// Most unresolved tasks the client may have.
    pub max_outstanding_tasks: u64,
    /// Most unresolved payload bytes the client may have.
    pub max_outstanding_bytes: u64,
    /// Engines known now (clients only).
    pub engines: Vec<EngineInfo>,
    /// For payload between hosts (relays, and clients on other hosts; only where connections are encrypted).
    pub payload_secret: Option<PayloadSecret>,
}

/// Why a connection was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Which of the checks failed.
    pub kind: RefusalKind,
    /// For the user.
    pub message: String,
}

/// The check that a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusalKind {
    /// Protocol or Broadleaf version differs.
    Version,
    /// Python version differs.
    Python,
    /// Another cluster, or another user.
    Identity,
    /// Too many peers.
    Full,
    /// Bytes that are no handshake.
    Malformed,
}

/// What a client knows of an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineInfo {
    /// Its place.
    pub engine: EngineId,
    /// Unique over restarts, 32 hex digits.
    pub uuid: String,
    /// Its process.
    pub pid: u32,
    /// Its host's name.
    pub host: String,
}

/// Which engines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetSet {
    /// Every engine there is.
    All,
    /// Half-open ranges, in target order; a range may hold one engine, and order matters to `Each`.
    Ranges(Vec<(EngineId, EngineId)>),
}

/// How the targets of a request are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// One task, on whichever target is free.
    Balanced,
    /// One task per target, in that engine's submission order.
    Each,
}

/// When a set of dependencies counts as met (names as `IPython` Parallel's `Dependency`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DependencyRule {
    /// All of them, or any.
    pub all: bool,
    /// A success counts.
    pub success: bool,
    /// A failure counts.
    pub failure: bool,
}

impl Default for DependencyRule {
    fn default() -> Self {
        Self {
            all: true,
            success: true,
            failure: false,
        }
    }
}

/// The way that large arguments take to several hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestedTopology {
    /// As the cluster's options say.
    #[default]
    Auto,
    /// To each host from the controller's.
    Flat,
    /// Down a binomial tree.
    Binomial,
    /// From host to host.
    Chain,
    /// Down a tree with so many branches; 0 for the number that takes least time.
    Kary(u32),
}

/// How to run a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskOptions {
    /// Balanced or each.
    pub mode: Mode,
    /// Where it may run.
    pub targets: TargetSet,
    /// The user's name for it.
    pub label: String,
    /// Higher runs first among balanced tasks.
    pub priority: i32,
    /// Times it may be started again after its engine died, it raised, or (`Unmet`) never counts.
    pub retries: u32,
    /// Most time it may run, from its start; `None` for no limit.
    pub timeout_ns: Option<u64>,
    /// Most time its dependencies may take, from submission; `None` for no limit.
    pub dependency_timeout_ns: Option<u64>,
    /// Rule of `after`.
    pub after: DependencyRule,
    /// Rule of `follow`.
    pub follow: DependencyRule,
    /// Mode `Each`: the client gets all results together, once the last target is resolved.
    pub coalesce: bool,
    /// How its arguments reach the hosts.
    pub topology: RequestedTopology,
}

impl Default for TaskOptions {
    fn default() -> Self {
        Self {
            mode: Mode::Balanced,
            targets: TargetSet::All,
            label: String::new(),
            priority: 0,
            retries: 0,
            timeout_ns: None,
            dependency_timeout_ns: None,
            after: DependencyRule::default(),
            follow: DependencyRule::default(),
            coalesce: false,
            topology: RequestedTopology::Auto,
        }
    }
}

/// Names a set of options for later submissions on this connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefineOptions {
    /// The client's name for the set.
    pub id: OptionsId,
    /// The set.
    pub options: TaskOptions,
}

/// Why a task was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusalReason {
    /// No engine of the target set exists.
    NoEngines,
    /// A target that does not exist.
    NoSuchEngine(EngineId),
    /// A function or options id that was never defined.
    Undefined,
    /// A dependency that can never be met (failed, unknown, or on engines that exclude each other).
    ImpossibleDependency,
    /// A dependency on itself or on a task submitted later.
    InvalidDependency,
    /// A functional dependency that no engine meets.
    UnmetEverywhere,
    /// Over the client's bound on tasks or bytes.
    OverLimit,
    /// The cluster is stopping.
    Stopping,
    /// The controller does not have what was asked for: a task's result, or what it takes to run it again.
    NotKept,
    /// Its arguments or its value could not be brought to where they were needed, for this reason.
    Undeliverable(String),
}

/// What ended an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeathCause {
    /// It left with this code.
    Exit(i32),
    /// This signal ended it.
    Signal(i32),
    /// The kernel's out-of-memory killer ended it.
    OutOfMemory,
    /// We ended it: a hung task outlived its timeout and its interrupt.
    KilledByTimeout,
    /// We ended it on request.
    Stopped,
    /// Its connection was lost and its fate is unknown.
    Disconnected,
    /// Its host is gone: the relay died, or the link to it is cut.
    HostGone,
    /// No process could be made for it; why not is in `last_output`.
    NotStarted,
    /// Its MPI world has ended, of which this rank died first.
    RankDied(u32),
}

/// Everything known of an engine's death.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeathCertificate {
    /// The engine's place.
    pub engine: EngineId,
    /// Its unique name.
    pub uuid: String,
    /// Its process.
    pub pid: u32,
    /// Its host.
    pub host: String,
    /// What ended it.
    pub cause: DeathCause,
    /// The end of what it wrote to standard output and error.
    pub last_output: String,
    /// Whether the task had been started on it (else it was only waiting there).
    pub task_started: bool,
}

/// New segments; their descriptors ride with the frame, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentAnnounce {
    /// Id and size in bytes of each.
    pub segments: Vec<(SegmentId, u64)>,
}

/// References that the sender no longer holds; with `retired`, segments whose owner closes them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentRelease {
    /// One entry per reference given up.
    pub released: Vec<SegmentId>,
    /// Segments that will not be used again.
    pub retired: Vec<SegmentId>,
}

/// A client's request; `Request` frames carry `(u64 number, ControlRequest)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlRequest {
    /// Abort these tasks, queued or running.
    Cancel(Vec<TaskSeq>),
    /// Interrupt whatever these engines run now.
    Interrupt(TargetSet),
    /// Send a signal to engines.
    Signal(TargetSet, i32),
    /// Start this many more engines.
    AddEngines(u32),
    /// Stop these engines.
    StopEngines(TargetSet),
    /// Release these engines, and the hosts with all of theirs: they take nothing new, end what they have, and leave.
    Drain {
        /// The engines, beside those of the hosts.
        targets: TargetSet,
        /// The relays' hosts.
        hosts: Vec<HostId>,
        /// Time after which they are stopped even if they have not ended what they have.
        within_ns: Option<u64>,
        /// Whether engines may go that hold what clients have put there.
        stateless: bool,
    },
    /// Whether balanced tasks wait where there is no engine: the caller starts engines, for as long as it is connected.
    AwaitEngines(bool),
    /// Stop these engines and start them afresh under the same ids.
    RestartEngines(TargetSet),
    /// Stop the whole cluster.
    Shutdown,
    /// Why a task waits.
    Explain(TaskSeq),
    /// Counters of controller and engines.
    Status,
    /// Length of queues per engine.
    QueueStatus,
    /// The event ring, oldest first.
    Trace,
    /// For who looks again and again: events since the last look, functions whose tasks took most time, and objects
    /// on their way.
    Watch {
        /// Events that were seen, by the answer before; 0 at first.
        after: u64,
        /// Most events to tell: the newest.
        most: u32,
    },
    /// Set level and sink of the event ring.
    SetLog {
        /// 0 off, 1 errors, 2 info, 3 debug.
        level: u8,
        /// `ring`, `stderr` or a file's path.
        sink: String,
    },
    /// Current value of every option.
    Config,
    /// Have every engine call this function, a preparation, before it runs anything submitted from now on;
    /// engines that start while the client is there do so first. It replaces the one of the same name.
    Prepare {
        /// The client's name for it.
        name: String,
        /// The function, defined before.
        function: FunctionId,
        /// Whether what engines have loaded of functions is to be loaded again.
        reload: bool,
    },
    /// Carry on with this client's tasks once its link has closed, and keep their results.
    Leave,
    /// What is known of these tasks of any client, or of all: those that live and those that are kept.
    Records(Option<Vec<TaskName>>),
    /// Send the results of these tasks, now or when they end, as those of the caller's tasks from
    /// `first` on.
    Subscribe {
        /// The caller's number for the first of them, not used for anything else.
        first: TaskSeq,
        /// Whose results.
        tasks: Vec<TaskName>,
    },
    /// Run these tasks again, as the caller's tasks from `first` on, without their dependencies.
    Resubmit {
        /// The caller's number for the first of them, not used for anything else.
        first: TaskSeq,
        /// Which tasks.
        tasks: Vec<TaskName>,
        /// How deep they are nested now; see [`crate::SubmitRecord::depth`].
        depth: u16,
    },
    /// Keep nothing of these tasks, or of any, that have ended.
    Forget(Option<Vec<TaskName>>),
}

/// A task of any client.
pub type TaskName = (ClientId, TaskSeq);

/// What the controller knows of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskRecord {
    /// Whose it is.
    pub client: ClientId,
    /// Its number there.
    pub seq: TaskSeq,
    /// How it ended, as [`crate::Status`] on the wire; `None` until it has.
    pub status: Option<u8>,
    /// Where it ran last; `u32::MAX` when nowhere so far.
    pub engine: EngineId,
    /// Whether it runs there now.
    pub is_running: bool,
    /// When it was submitted, on the controller's monotonic clock.
    pub submitted_ns: u64,
    /// Wall clock at its start, ns since 1970; 0 when unknown.
    pub started_ns: u64,
    /// Wall clock at its end, ns since 1970; 0 when unknown.
    pub completed_ns: u64,
    /// The user's name for it.
    pub label: String,
    /// Whether its result can be had, now or once it has ended.
    pub has_result: bool,
    /// Whether it can be run again.
    pub can_run_again: bool,
}

/// The answer to a request; `Reply` frames carry `(u64 number, ControlReply)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlReply {
    /// Done.
    Done,
    /// Text in the form the request defines (a sentence, JSON, Prometheus text).
    Text(String),
    /// Queue per engine: (engine, queued, running, completed).
    Queues(Vec<(EngineId, u64, u64, u64)>),
    /// Not done.
    Failed(String),
    /// What is known of tasks.
    Records {
        /// The controller's monotonic clock.
        now_ns: u64,
        /// The tasks, in no order.
        records: Vec<TaskRecord>,
    },
}

/// News for clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// An engine is ready.
    EngineUp(EngineInfo),
    /// An engine takes no new tasks; it is gone when it has ended those that it has.
    EngineDraining(EngineId),
    /// An engine is gone.
    EngineDown(DeathCertificate),
    /// The cluster is stopping.
    Stopping,
}
