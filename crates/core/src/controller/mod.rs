//! The coordinator: it owns the components and moves data between them. Components know nothing of each other's state, nor of
//! the coordinator. Each file beside this one has the decisions about one subject; those of `inputs` and `schedule` are the
//! entry points, and no file uses one that uses it.

mod check;
mod clients;
mod counters;
mod deadlines;
mod deaths;
mod dependents;
mod draining;
mod explain;
mod fork_servers;
mod hosts;
mod inputs;
mod lifecycle;
mod observers;
mod offers;
mod output;
mod preparations;
mod queues;
mod records;
mod references;
mod reports;
mod requests;
mod resolve;
mod restarts;
mod results;
mod schedule;
mod slots;
mod stopping;
mod submit;
mod timeouts;
mod trust;
mod waits;
mod worlds;

use broadleaf_proto::ids::{EngineId, HostId};

use crate::clients::Clients;
use crate::engines::host_table::Hosts;
use crate::engines::observers::Observers;
use crate::engines::preparations::Preparations;
use crate::engines::supervisor::Supervisor;
use crate::engines::worlds::Worlds;
use crate::engines::{Engine, Engines};
use crate::placement::groups::Groups;
use crate::results::failures::Failures;
use crate::results::store::ResultStore;
use crate::tasks::TaskTable;
use crate::tasks::dependencies::Dependencies;
use crate::tasks::functions::Functions;
use crate::tasks::options::OptionSets;
use crate::tasks::targets::MAX_ENGINES;
use crate::timers::Timers;
use crate::{Config, Counters};

/// Routes and schedules tasks. See the crate's documentation.
#[derive(Clone, Debug)]
pub struct Controller {
    config: Config,
    tasks: TaskTable,
    options: OptionSets,
    functions: Functions,
    dependencies: Dependencies,
    /// Load-balanced tasks that are ready.
    groups: Groups,
    /// By id; an unused slot is `Gone`.
    engines: Engines,
    hosts: Hosts,
    worlds: Worlds,
    /// What engines do before they run a client's tasks.
    preparations: Preparations,
    supervisor: Supervisor,
    clients: Clients,
    observers: Observers,
    result_store: ResultStore,
    failures: Failures,
    timers: Timers,
    totals: Counters,
}

impl Controller {
    /// A controller that wants `config.n_engines` engines and knows no client.
    pub fn new(config: Config) -> Self {
        let n_engines = config.n_engines.min(MAX_ENGINES);
        let engines = (0..n_engines).map(|id| {
            let mut engine = Engine::new(EngineId(id), &config);
            engine.await_hello(false);
            engine
        });
        let mut engines: Engines = engines.collect();
        engines.set_cores(HostId::CONTROLLER, config.n_cores);
        Self {
            tasks: TaskTable::default(),
            options: OptionSets::new(),
            functions: Functions::default(),
            dependencies: Dependencies::default(),
            groups: Groups::new(),
            engines,
            hosts: Hosts::default(),
            worlds: Worlds::default(),
            preparations: Preparations::default(),
            supervisor: Supervisor::new(config.seed),
            clients: Clients::default(),
            observers: Observers::default(),
            result_store: ResultStore::new(config.kept_results_bytes),
            failures: Failures::default(),
            timers: Timers::default(),
            totals: Counters::default(),
            config,
        }
    }
}
