//! Settings of the controller. Each is an option that a user may change.

use broadleaf_proto::limits;
use serde::{Deserialize, Serialize};

use crate::Nanos;

/// Settings of the controller; [`Default`] gives the documented defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Work kept ahead on an engine: the prefetch window is this divided by its mean task time. Default: 8 ms.
    pub prefetch_target_ns: Nanos,
    /// Minimum number of tasks in an engine's window, including the running one; at least 1. Default: 2.
    pub prefetch_min: u32,
    /// Maximum number of tasks in an engine's window; at most `CLAIM_SLOTS`. Default: 1000.
    pub prefetch_max: u32,
    /// Whether an idle engine takes back tasks that wait behind another's running one. Default: true.
    pub steal: bool,
    /// Minimum work behind an engine's running task, or time that the running task has taken, before an idle engine
    /// takes some of the work: well above the cost of moving it. Default: 500 us.
    pub steal_after_ns: Nanos,
    /// What waking an engine costs. Tasks of functions that have taken less time so far are short: they go to engines that
    /// are awake. 0 spreads all tasks. Default: 20 us.
    pub wake_cost_ns: Nanos,
    /// Short tasks' work on each engine that is awake, before another engine is woken for more. Default: 50 us.
    pub wake_after_ns: Nanos,
    /// Number of cores of the controller's host: more engines than this are not woken for short tasks. Default: 1.
    pub n_cores: u32,
    /// Maximum number of unresolved tasks of one client. Default: 262,144.
    pub max_outstanding_tasks: u64,
    /// Maximum size of one client's unresolved payload. Default: 256 MiB.
    pub max_outstanding_bytes: u64,
    /// Number of resolved tasks remembered per client, so that later tasks can depend on them. Default: 65,536.
    pub history_tasks: usize,
    /// Maximum size of the bodies of the functions that one client defines; those that only stored tasks name are
    /// dropped first. Default: 256 MiB.
    pub function_cache_bytes: u64,
    /// Maximum size of the result store: values, arguments and records of ended tasks of all clients; 0 to keep none.
    /// Default: 4 MiB.
    pub kept_results_bytes: u64,
    /// Number of engines to run, numbered from 0. Default: 0.
    pub n_engines: u32,
    /// Whether to restart an engine that died. Default: false.
    pub restart_engines: bool,
    /// Number of restarts of one engine within a minute before it is given up. Default: 10.
    pub max_restarts_per_minute: u32,
    /// Delay before the first restart of an engine; doubles with each restart within a minute. Default: 100 ms.
    pub restart_backoff_ns: Nanos,
    /// Maximum delay before a restart. Default: 10 s.
    pub restart_backoff_max_ns: Nanos,
    /// How long a task that has timed out may take to end after its interrupt, before its engine is killed.
    /// Default: 2 s.
    pub interrupt_grace_ns: Nanos,
    /// How long an engine that is told to stop may spend on its current task. Default: 5 s.
    pub stop_grace_ns: Nanos,
    /// How long to wait for the cause of death after a link is lost, before the engine's tasks are resolved and its
    /// death is announced without it. Only a fork server that gets no processor takes long. Default: 4 s.
    pub certificate_wait_ns: Nanos,
    /// How long after an exit the engine's death is announced although its link is open. Default: 1 s.
    pub exit_wait_ns: Nanos,
    /// How long an engine may take from its request to its hello. Default: 60 s.
    pub start_timeout_ns: Nanos,
    /// How long before the end of its batch job a host stops taking new tasks; at most a tenth of the job's time.
    /// Default: 30 s.
    pub drain_ns: Nanos,
    /// Whether to say what a later controller of this cluster would have to know. Default: false.
    pub journal: bool,
    /// Seed of the jitter of restarts. Default: 0.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        const MS: Nanos = 1_000_000;
        Self {
            prefetch_target_ns: 8 * MS,
            prefetch_min: 2,
            prefetch_max: 1000,
            steal: true,
            steal_after_ns: 500_000,
            wake_cost_ns: 20_000,
            wake_after_ns: 50_000,
            n_cores: 1,
            max_outstanding_tasks: limits::DEFAULT_MAX_OUTSTANDING_TASKS,
            max_outstanding_bytes: limits::DEFAULT_MAX_OUTSTANDING_BYTES,
            history_tasks: 65_536,
            function_cache_bytes: 256 * 1024 * 1024,
            kept_results_bytes: limits::DEFAULT_KEPT_RESULTS_BYTES,
            n_engines: 0,
            restart_engines: false,
            max_restarts_per_minute: 10,
            restart_backoff_ns: 100 * MS,
            restart_backoff_max_ns: 10_000 * MS,
            interrupt_grace_ns: 2_000 * MS,
            stop_grace_ns: 5_000 * MS,
            certificate_wait_ns: 4_000 * MS,
            exit_wait_ns: 1_000 * MS,
            start_timeout_ns: 60_000 * MS,
            drain_ns: 30_000 * MS,
            journal: false,
            seed: 0,
        }
    }
}
