//! A whole cluster in one thread: the real controller, with simulated clients, engines and a fork
//! server, on a virtual clock.
//!
//! Links delay messages at random, in order within a link and in any order between links; links are
//! lost and processes killed at any step. Everything follows from a seed, so a failing seed is the
//! bug report: `cargo run -p broadleaf-sim -- --seed N --trace` replays it.

mod cluster;
mod driver;
mod far;
mod lane;
mod liveness;
mod peers;
mod random;
mod replay;
mod restart;
mod script;
mod trace;
mod work;

use broadleaf_core::{Config, Counters, Nanos};

use crate::cluster::Cluster;
pub use crate::far::uploads::{UploadOutcome, run_uploads};
pub use crate::far::values::{FarOutcome, run_far_client};
pub use crate::lane::{LaneMutation, LaneOutcome, run_lane};
pub use crate::liveness::{LivenessOutcome, run_liveness};
use crate::random::Random;
pub use crate::replay::{Difference, ReplayError, Replayed, replay, replay_inputs};
pub use crate::restart::{RestartMutation, RestartOutcome, run_restart};
use crate::trace::Trace;

/// A fault put into the simulated driver, to check that the simulation finds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mutation {
    /// None.
    #[default]
    None,
    /// Every revoke is answered as won, even if the engine has started the task.
    RevokeAlwaysWon,
    /// A dead engine's offers are all reported as never started.
    AllUnclaimed,
    /// Everything on its way to a relay when an engine there died counts as started.
    ForgetsOnTheWay,
    /// Relays report that arguments have arrived while these are still on their way.
    DeliveredTooSoon,
    /// Occasionally a preparation does not reach its engine.
    LosesPreparations,
    /// Engines do not report that a task waits.
    WaitsUnsaid,
    /// Engines' flushers are not woken.
    FlushersSleep,
    /// Relays do not answer what observers ask.
    LeavesObserversWaiting,
    /// A relay's reports about processes are treated as those of the controller's own fork server.
    BelievesRelays,
    /// Relays do not dial again.
    NeverDials,
    /// What relays have sent over a link that broke is lost at times.
    LosesReports,
    /// What the controller has sent over a link that broke is lost at times.
    LosesOrders,
    /// What was on its way when a link broke arrives the wrong way round.
    ReversesLinks,
    /// The controller's machine is not told that a host is away.
    AbsenceUnsaid,
    /// It is not told that a host is back.
    ReturnUnsaid,
    /// A controller that was stopped judges as if it had listened.
    JudgesAfterStop,
    /// Relays are not told that an attempt to dial has failed.
    FailuresUnsaid,
}

/// The parameters of one run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Everything random follows from it.
    pub seed: u64,
    /// The controller's settings.
    pub config: Config,
    /// Relays.
    pub n_hosts: u32,
    /// Number of engines of each host.
    pub engines_per_host: u32,
    /// Number of cores of each relay's host.
    pub cores_per_host: u32,
    /// Clients.
    pub n_clients: u32,
    /// Percentage of relays whose host ends by itself, sometimes early.
    pub ending_host_percent: u64,
    /// MPI worlds, each started twice: the second time in vain unless the first is over.
    pub n_worlds: u32,
    /// Number of functions that each client defines.
    pub n_functions: u32,
    /// Each client submits tasks fewer times than this.
    pub bursts: u32,
    /// Whether some tasks submit tasks and wait for them.
    pub nests: bool,
    /// Number of kills and lost links.
    pub n_faults: u32,
    /// Percentage of relays whose link breaks, perhaps again and again.
    pub breaking_link_percent: u64,
    /// Number of times that a process is stopped, or a client's connection breaks.
    pub n_stops: u32,
    /// Number of lies that relays tell.
    pub n_lies: u32,
    /// Time within which faults and lies occur.
    pub busy_ns: Nanos,
    /// The controller's invariants are checked after every so many events: a check takes longer the more engines there are.
    pub check_every: u64,
    /// Percentage of engines that end before their hello.
    pub bad_start_percent: u64,
    /// Percentage of attempts to start an engine in which no process can be created.
    pub no_process_percent: u64,
    /// The fault put in.
    pub mutation: Mutation,
}

impl Plan {
    /// The plan of a seed.
    pub fn of_seed(seed: u64, mutation: Mutation) -> Self {
        const MS: Nanos = 1_000_000;
        let mut random = Random::new(!seed);
        let calm = random.chance(30);
        Self {
            seed,
            config: Config {
                n_engines: 1 + random.below(5) as u32,
                restart_engines: random.chance(60),
                prefetch_max: 1 + random.below(20) as u32,
                prefetch_min: 1 + random.below(3) as u32,
                steal: random.chance(90),
                wake_cost_ns: Random::new(seed ^ 0xa3a4e).below(3) * 50 * MS,
                wake_after_ns: Random::new(seed ^ 0xaf7e5).below(4) * 40 * MS,
                n_cores: 1 + Random::new(seed ^ 0xc05e).below(3) as u32,
                history_tasks: 64,
                kept_results_bytes: if random.chance(30) {
                    0
                } else {
                    random.below(20_000)
                },
                interrupt_grace_ns: 200 * MS,
                seed,
                ..Config::default()
            },
            n_hosts: random.below(6).saturating_sub(2) as u32,
            engines_per_host: 1 + random.below(3) as u32,
            cores_per_host: 1 + Random::new(seed ^ 0xc0de).below(2) as u32,
            n_clients: 1 + random.below(4) as u32,
            n_functions: 1 + random.below(4) as u32,
            bursts: 12,
            nests: random.chance(60),
            n_faults: if calm { 0 } else { random.below(12) as u32 },
            breaking_link_percent: 40,
            n_stops: Random::new(seed ^ 0x5709).below(12).saturating_sub(5) as u32,
            n_lies: if random.chance(30) {
                random.below(40) as u32
            } else {
                0
            },
            busy_ns: 2_000 * MS,
            check_every: 1,
            bad_start_percent: if calm { 0 } else { 5 },
            no_process_percent: if calm { 0 } else { 5 },
            ending_host_percent: Random::new(seed ^ 0xe2d).below(3) * 40,
            n_worlds: Random::new(seed ^ 0x5eed).below(5).saturating_sub(2) as u32,
            mutation,
        }
    }
}

impl Plan {
    /// Many hosts, most of whose links break, and several processes that are stopped.
    pub fn of_many_hosts(seed: u64, n_hosts: u32) -> Self {
        let plan = Self::of_seed(seed, Mutation::None);
        Self {
            n_hosts,
            engines_per_host: 1,
            n_clients: 2,
            bursts: 6,
            n_worlds: 0,
            nests: false,
            n_faults: 10,
            n_lies: 0,
            breaking_link_percent: 70,
            n_stops: n_hosts / 10,
            check_every: 5000,
            ..plan
        }
    }
}

/// The problem that a run found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed} at {now_ns} ns: {what}")]
pub struct Failure {
    /// The seed that shows it.
    pub seed: u64,
    /// When, on the virtual clock.
    pub now_ns: Nanos,
    /// What.
    pub what: String,
}

/// The results of a successful run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Hash of its trace.
    pub trace_hash: u64,
    /// The controller's counters at its end.
    pub counters: Counters,
    /// The virtual clock at its end.
    pub took_ns: Nanos,
    /// The maximum number of tasks that one engine had begun at a time.
    pub max_levels: usize,
    /// Relays that were cut off because of their reports.
    pub expelled: u32,
    /// Ranks of worlds that became engines.
    pub seated: u32,
    /// Requests to drain engines, and hosts that were released.
    pub drained: (u32, u32),
    /// Links to hosts that went on after the host had been missed.
    pub rejoined: u32,
    /// Hosts that were given up.
    pub given_up: u32,
    /// Processes that were stopped for a while.
    pub stops: u32,
}

/// Runs one plan.
///
/// # Errors
/// The first [`Failure`].
pub fn run(plan: Plan, print: bool) -> Result<Outcome, Failure> {
    let mut cluster = Cluster::new(plan, Trace::new(print), false);
    cluster.run()?;
    Ok(outcome(&cluster))
}

/// Runs one plan; returns its results, and the recordings of the controller's node and of each relay.
///
/// # Errors
/// The first [`Failure`].
pub fn record(plan: Plan) -> Result<(Outcome, Vec<String>), Failure> {
    let mut cluster = Cluster::new(plan, Trace::new(false), true);
    cluster.run()?;
    let recordings = cluster.recordings.iter().flatten().map(replay::Text::read);
    Ok((outcome(&cluster), recordings.collect()))
}

fn outcome(cluster: &Cluster) -> Outcome {
    Outcome {
        trace_hash: cluster.trace.hash(),
        counters: cluster.counters(),
        took_ns: cluster.now,
        max_levels: cluster.max_levels,
        expelled: cluster.expelled,
        seated: cluster.seated,
        drained: (cluster.drained, cluster.released),
        rejoined: cluster.links_to_hosts.rejoined,
        given_up: cluster.links_to_hosts.lost,
        stops: cluster.links_to_hosts.stops,
    }
}
