//! Control messages: one per frame, `postcard`-encoded.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::chunk::PayloadSecret;
use crate::ids::{ClientId, EngineId, FunctionId, HostId, OptionsId, SegmentId, TaskSeq};
pub use crate::messages::fork_server::{
    ForkServerCommand, ForkServerEvent, ForkServerOrder, ReadWritten, Seen,
};
use crate::messages::mover::MoverRank;
use crate::messages::resume::SessionKey;
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

/// The role of the dialling peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Submits tasks.
    Client {
        /// Shown by status; free text.
        name: String,
        /// Whether something else forwards its bytes, which may end while the client goes on.
        is_forwarded: bool,
    },
    /// Runs tasks.
    Engine {
        /// The slot that the fork server gave it, or `None` for one started by hand.
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
        /// Number of engines it wants to start.
        n_engines: u32,
        /// Number of cores that its engines may use.
        n_cores: u32,
        /// Where other relays dial it for payload, `host:port`; `None` if nobody can.
        listen: Option<String>,
        /// Time until it ends by itself, with the batch job that it runs in.
        ends_in_ns: Option<u64>,
        /// Its link to the controller's predecessor, which keeps a journal: the relay has engines from then, and tells of
        /// them with [`RelayEvent::Rejoined`](crate::relay::RelayEvent::Rejoined).
        former: Option<SessionKey>,
    },
    /// Fetches and serves payload, on a connection in addition to the relay's own.
    Payload {
        /// The host at this end.
        host: HostId,
    },
    /// Moves payload by MPI, for its host.
    Mover(MoverRank),
    /// Continues a link whose connection broke; see [`crate::messages::resume`].
    Resume {
        /// What the welcome of the first connection gave.
        session: SessionKey,
    },
}

/// What a peer says about itself, once the keys are proven.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`crate::PROTOCOL_VERSION`] of the sender.
    pub protocol: u32,
    /// Broadleaf's version.
    pub broadleaf: String,
    /// `major.minor` of the sender's Python.
    pub python: String,
    /// Cluster that the sender means to join.
    pub cluster_id: String,
    /// The sender's role.
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
    /// The relay's host number, or the number that a client on another host has as one (0 for other
    /// roles).
    pub host: HostId,
    /// Maximum number of unresolved tasks that the client may have.
    pub max_outstanding_tasks: u64,
    /// Maximum number of unresolved payload bytes that the client may have.
    pub max_outstanding_bytes: u64,
    /// Engines known now (clients only).
    pub engines: Vec<EngineInfo>,
    /// Secret for payload between hosts (relays, and clients on other hosts; only if connections
    /// are encrypted).
    pub payload_secret: Option<PayloadSecret>,
    /// Resumes this link over another connection (relays, and clients on other hosts).
    pub session: Option<SessionKey>,
    /// Whether the controller keeps a journal: if it ends, it may be started again.
    pub keeps_journal: bool,
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
    /// Bytes that are not a handshake.
    Malformed,
    /// The link that is to be resumed is not known here, or no longer.
    Session,
    /// The link belonged to this controller's predecessor: join anew.
    Restarted,
}

/// What a client knows about an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineInfo {
    /// Its engine slot.
    pub engine: EngineId,
    /// Unique across restarts, 32 hex digits.
    pub uuid: String,
    /// Its process.
    pub pid: u32,
    /// Its host's name.
    pub host: String,
}

/// Which engines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetSet {
    /// All engines.
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
    /// Whether all dependencies must be met, or any one.
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

/// How large arguments reach several hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestedTopology {
    /// According to the cluster's options.
    #[default]
    Auto,
    /// From the controller's host to each host.
    Flat,
    /// Down a binomial tree.
    Binomial,
    /// From host to host.
    Chain,
    /// Down a tree with this many branches; 0 for the number that takes the least time.
    Kary(u32),
}

/// How to run a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskOptions {
    /// Load-balanced, or one task per target.
    pub mode: Mode,
    /// Where it may run.
    pub targets: TargetSet,
    /// The user's name for it.
    pub label: String,
    /// Higher runs first among load-balanced tasks.
    pub priority: i32,
    /// How often it may be started again after its engine died or it raised; `Unmet` does not
    /// count.
    pub retries: u32,
    /// Maximum time that it may run, from its start; `None` for no limit.
    pub timeout_ns: Option<u64>,
    /// Maximum time that its dependencies may take, from submission; `None` for no limit.
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
    /// A functional dependency that no engine meets, and what the last one said.
    UnmetEverywhere(String),
    /// It exceeds the client's limit on tasks or bytes.
    OverLimit,
    /// The cluster is stopping.
    Stopping,
    /// The controller does not have what was requested: a task's result, or the data needed to run
    /// it again.
    NotStored,
    /// Its arguments or its value could not be moved to where they were needed, for this reason.
    Undeliverable(String),
}

/// What ended an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeathCause {
    /// It exited with this code.
    Exit(i32),
    /// This signal killed it.
    Signal(i32),
    /// The kernel's out-of-memory killer killed it.
    OutOfMemory,
    /// We ended it: its task did not react to the interrupt after a timeout or an abort.
    Unresponsive,
    /// We ended it on request.
    Stopped,
    /// Its connection was lost and its fate is unknown.
    Disconnected,
    /// Its host is gone: the relay died, or the link to it was cut.
    HostGone,
    /// No process could be created for it; `last_output` says why.
    NotStarted,
    /// Its MPI world has ended; this rank died first.
    RankDied(u32),
}

/// Everything known about an engine's death.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeathCertificate {
    /// The engine's slot.
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
    /// Whether the task had been started on it (otherwise it was only waiting there).
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
    /// One entry per released reference.
    pub released: Vec<SegmentId>,
    /// Segments that will not be used again.
    pub retired: Vec<SegmentId>,
}

/// A client's request; `Request` frames carry `(u64 number, ControlRequest)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlRequest {
    /// Abort these tasks, queued or running. The engine of one that does not end in time is killed.
    Cancel(Vec<TaskSeq>),
    /// Abort these tasks, queued or running, but let those that run take as long as they want to end.
    InterruptTasks(Vec<TaskSeq>),
    /// Interrupt whatever these engines are running now.
    Interrupt(TargetSet),
    /// Send a signal to engines.
    Signal(TargetSet, i32),
    /// Start this many more engines.
    AddEngines(u32),
    /// Stop these engines.
    StopEngines(TargetSet),
    /// Release these engines, and the hosts with all of theirs: they take nothing new, finish what
    /// they have, and leave.
    Drain {
        /// The engines, in addition to those of the hosts.
        targets: TargetSet,
        /// The relays' hosts.
        hosts: Vec<HostId>,
        /// Time after which they are stopped even if they have not finished.
        within_ns: Option<u64>,
        /// Whether engines that hold clients' data may be released.
        stateless: bool,
    },
    /// Whether load-balanced tasks wait if there are no engines: the caller starts engines, for as
    /// long as it is connected.
    AwaitEngines(bool),
    /// Stop these engines and start them afresh under the same ids.
    RestartEngines(TargetSet),
    /// Stop the whole cluster.
    Shutdown,
    /// Explain why a task waits.
    Explain(TaskSeq),
    /// Counters of controller and engines.
    Status,
    /// Length of each engine's queue.
    QueueStatus,
    /// The event ring, oldest first.
    Trace,
    /// For observers that poll: events since the last poll, the functions whose tasks took the most
    /// time, and objects on their way.
    Watch {
        /// Number of the last event seen, from the previous answer; 0 at first.
        after: u64,
        /// Maximum number of events to return: the newest.
        max_events: u32,
    },
    /// For observers: what an engine has written since, wherever it runs, as JSON.
    Written {
        /// The engine.
        engine: EngineId,
        /// What the observer has of it already.
        seen: Option<Seen>,
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
    /// Have every engine call this function, a preparation, before it runs anything submitted from
    /// now on; engines that start while the client is connected do so first. It replaces the
    /// preparation of the same name.
    Prepare {
        /// The client's name for it.
        name: String,
        /// The function, defined before.
        function: FunctionId,
        /// Whether engines must load functions again that they have already loaded.
        reload: bool,
    },
    /// Continue this client's tasks after its link has closed, and store their results.
    Leave,
    /// Report on these tasks of any client, or on all: live tasks, and those in the result store.
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
        /// Their nesting depth now; see [`crate::SubmitRecord::depth`].
        depth: u16,
    },
    /// Remove these ended tasks, or all, from the result store.
    Forget(Option<Vec<TaskName>>),
    /// Keep a text that only whoever starts the cluster's engines knows, such as why a host is gone.
    Notice {
        /// What it is about: the name of a host, for example. It replaces an earlier text.
        about: String,
        /// The text; an empty one takes back what was said.
        text: String,
    },
    /// The text that is kept about this; empty if there is none.
    Noticed(String),
    /// What the node records of its inputs, as JSON.
    Recording {
        /// Whether it is to record nothing more.
        stop: bool,
    },
    /// A piece of the recording, from this byte on; empty at its end.
    Recorded {
        /// Where it begins.
        from_bytes: u64,
    },
}

/// A task of any client.
pub type TaskName = (ClientId, TaskSeq);

/// What the controller knows about a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskRecord {
    /// The client that it belongs to.
    pub client: ClientId,
    /// Its number at that client.
    pub seq: TaskSeq,
    /// How it ended, as [`crate::Status`] on the wire; `None` until it has.
    pub status: Option<u8>,
    /// Where it ran last; `u32::MAX` if nowhere so far.
    pub engine: EngineId,
    /// Whether it is running there now.
    pub is_running: bool,
    /// When it was submitted, on the controller's monotonic clock.
    pub submitted_ns: u64,
    /// Wall clock at its start, ns since 1970; 0 if unknown.
    pub started_ns: u64,
    /// Wall clock at its end, ns since 1970; 0 if unknown.
    pub completed_ns: u64,
    /// The user's name for it.
    pub label: String,
    /// Whether its result is available, now or once it has ended.
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
    /// What is known about tasks.
    Records {
        /// The controller's monotonic clock.
        now_ns: u64,
        /// The tasks, in no order.
        records: Vec<TaskRecord>,
    },
}

/// Events for clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// An engine is ready.
    EngineUp(EngineInfo),
    /// An engine takes no new tasks; it leaves when it has finished those that it has.
    EngineLeaving(EngineId),
    /// An engine is gone.
    EngineDown(DeathCertificate),
    /// The cluster is stopping.
    Stopping,
}
