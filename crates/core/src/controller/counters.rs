//! What status and metrics are told.

use broadleaf_proto::control::EngineInfo;
use broadleaf_proto::ids::{ClientId, TaskKey};
use bytes::Bytes;

use super::Controller;
use crate::clients::Client;
use crate::engines::Engine;
use crate::results::failures::Failure;
use crate::tasks::functions::FunctionTimes;
use crate::{Counters, Course, EngineCounters, Nanos};

impl Controller {
    /// Counters of the controller and its engines.
    pub fn counters(&self) -> Counters {
        let engines = self.engines.iter().map(|e| EngineCounters {
            running: self.running_on(e),
            ..e.counters()
        });
        Counters {
            waiting: self.dependencies.n_waiting() as u64,
            ready: self.groups.n_queued() as u64,
            pinned: self.engines.iter().map(|e| e.pinned().len() as u64).sum(),
            offered: (self.engines.iter())
                .map(|e| e.offers().n_unfinished() as u64)
                .sum(),
            live: self.tasks.len() as u64,
            clients: self.clients.n_here() as u64,
            kept_tasks: self.result_store.len() as u64,
            kept_bytes: self.result_store.held_bytes(),
            functions: self.functions.len() as u64,
            function_bytes: self.functions.bytes(),
            engines: engines.collect(),
            hosts: self.hosts.counters().collect(),
            ..self.totals.clone()
        }
    }

    fn running_on(&self, engine: &Engine) -> Option<(Bytes, Nanos)> {
        let (key, _) = engine.offers().current()?;
        let task = self.tasks.get(key)?;
        self.is_running(key, task)
            .then(|| (self.functions.name(task.function()), engine.head_since()))
    }

    /// At most this many functions: first those with unfinished tasks, then by the total time of their tasks.
    pub fn busiest_functions(&self, max_functions: usize) -> Vec<FunctionTimes> {
        let mut called: Vec<_> = self.functions.called().collect();
        called.sort_by_key(|f| core::cmp::Reverse((f.unfinished > 0, f.times.total_ns, f.tag)));
        called.truncate(max_functions);
        called
    }

    /// All functions that tasks have called.
    pub fn called_functions(&self) -> impl Iterator<Item = FunctionTimes> {
        self.functions.called()
    }

    /// What tasks raised, by kind, the latest first.
    pub fn failures(&self) -> Vec<&Failure> {
        let mut failures: Vec<_> = self.failures.iter().collect();
        failures.sort_by_key(|f| core::cmp::Reverse((f.last_ns, f.tag, f.kind)));
        failures
    }

    /// What the event of a live task's end tells of it; all zero if there is no such task.
    pub fn course(&self, key: TaskKey) -> Course {
        let Some(task) = self.tasks.get(key) else {
            return Course::default();
        };
        Course {
            function: self.functions.tag(task.function()),
            received_ns: task.submitted_ns(),
            sent_ns: task.offered_ns(),
            in_bytes: task.payload().weight_bytes(),
        }
    }

    /// How often an engine was looked at, for an input or for a decision: a measure of work that must not grow with the
    /// number of engines.
    pub fn engine_visits(&self) -> u64 {
        self.engines.visits()
    }

    /// The engines that take tasks, by id, as a new client is told.
    pub fn engines(&self) -> Vec<EngineInfo> {
        let up = self.engines.iter().filter(|e| e.is_up());
        up.filter_map(|e| e.info().cloned()).collect()
    }

    /// The name a client gave itself.
    pub fn client_name(&self, client: ClientId) -> Option<&str> {
        self.clients.get(client).map(Client::name)
    }
}
