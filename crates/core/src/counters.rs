//! Counters of the controller and its engines, for status and metrics.

use broadleaf_proto::control::DeathCertificate;
use broadleaf_proto::ids::{EngineId, HostId};
use bytes::Bytes;

use crate::Nanos;

/// How a task came to its engine. Times are the controller's; 0 where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Course {
    /// The id by which events name its function.
    pub function: u32,
    /// When the controller received it.
    pub received_ns: Nanos,
    /// When it was last offered to an engine.
    pub sent_ns: Nanos,
    /// Bytes of its arguments, inline and in segments.
    pub in_bytes: u64,
}

/// Counters since the start, and current gauges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Tasks submitted (one per target for mode `Each`).
    pub submitted: u64,
    /// Tasks resolved, by status as on the wire (`Unmet` is never a result).
    pub resolved: [u64; 7],
    /// Tasks of clients that left before the result.
    pub discarded: u64,
    /// Offers made to engines.
    pub assigned: u64,
    /// Tasks started again after an error or a death.
    pub retried: u64,
    /// Revokes sent for idle engines.
    pub steals: u64,
    /// Revokes that came back won.
    pub revoked: u64,
    /// Tasks that are waiting for dependencies.
    pub waiting: u64,
    /// Tasks queued for any engine of a set.
    pub ready: u64,
    /// Tasks queued for one particular engine.
    pub pinned: u64,
    /// Tasks currently offered to engines.
    pub offered: u64,
    /// Tasks in the table, including those awaiting a death certificate.
    pub live: u64,
    /// Connected clients.
    pub clients: u64,
    /// Cached functions.
    pub functions: u64,
    /// Total size of their bodies.
    pub function_bytes: u64,
    /// Ended tasks in the result store.
    pub kept_tasks: u64,
    /// The size charged for them.
    pub kept_bytes: u64,
    /// Records dropped because they named something unknown (from a bad or outdated peer).
    pub ignored: u64,
    /// Each engine's.
    pub engines: Vec<EngineCounters>,
    /// One entry for each connected relay.
    pub hosts: Vec<HostCounters>,
}

/// One host's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCounters {
    /// Its number.
    pub host: HostId,
    /// Whether it is being released.
    pub drains: bool,
    /// When it ends by itself, if ever.
    pub ends_at: Option<Nanos>,
}

/// One engine's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineCounters {
    /// Its engine slot.
    pub engine: EngineId,
    /// Whether it can be given tasks.
    pub up: bool,
    /// `starting`, `up`, `draining`, `leaving`, `dying`, `restarting` or `gone`.
    pub state: &'static str,
    /// Its process, 0 if unknown.
    pub pid: u32,
    /// Offers not done.
    pub outstanding: u64,
    /// Offers that wait for other tasks.
    pub waiting: u64,
    /// Tasks that wait only for this engine.
    pub queued: u64,
    /// Tasks that ended on it.
    pub completed: u64,
    /// Its prefetch window.
    pub window: u32,
    /// Mean time of its recent tasks, 0 when unknown.
    pub mean_task_ns: u64,
    /// Time its tasks took.
    pub busy_ns: u64,
    /// Number of restarts.
    pub restarts: u64,
    /// Its last death, and the time of it.
    pub last_death: Option<(DeathCertificate, Nanos)>,
    /// Its host's name, while it lives.
    pub host: String,
    /// Whether it received a task addressed to it, which may have left data in its memory.
    pub holds_data: bool,
    /// Since when it has been idle.
    pub idle_since: Option<Nanos>,
    /// What it is believed to be running: the function's name, and since when.
    pub running: Option<(Bytes, Nanos)>,
}
