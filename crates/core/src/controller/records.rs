//! What the controller reports about tasks: live ones, and ended ones in the result store.

use std::collections::BTreeSet;

use broadleaf_proto::control::{TaskName, TaskRecord};
use broadleaf_proto::ids::TaskKey;

use super::Controller;
use crate::clients::history::Known;
use crate::tasks::dependencies::NOWHERE;
use crate::tasks::{Task, TaskState};

impl Controller {
    /// What is known about these tasks, or about all.
    pub(super) fn records(&self, names: Option<Vec<TaskName>>) -> Vec<TaskRecord> {
        let Some(names) = names else {
            let live = self
                .tasks
                .iter()
                .filter_map(|(key, t)| self.live_record(key, t));
            let stored = self
                .result_store
                .iter()
                .map(|task| task.record(self.label(task.options())));
            return live.chain(stored).collect();
        };
        let stored = self.result_store.find(&names);
        let in_order: BTreeSet<_> = names.into_iter().collect();
        let record = |name: TaskName| {
            let live = self
                .live(name)
                .and_then(|key| Some((key, self.tasks.get(key)?)));
            live.and_then(|(key, task)| self.live_record(key, task))
                .or_else(|| {
                    stored
                        .get(&name)
                        .map(|task| task.record(self.label(task.options())))
                })
        };
        in_order.into_iter().filter_map(record).collect()
    }

    fn live_record(&self, key: TaskKey, task: &Task) -> Option<TaskRecord> {
        let engine = match task.state() {
            TaskState::Offered(engine, _)
            | TaskState::Pinned(engine)
            | TaskState::Orphaned(engine) => engine,
            _ => NOWHERE,
        };
        Some(TaskRecord {
            client: task.client()?,
            seq: task.seq(),
            status: None,
            engine,
            is_running: self.is_running(key, task),
            submitted_ns: task.submitted_ns(),
            started_ns: 0,
            completed_ns: 0,
            label: self.label(task.options()),
            has_result: true,
            can_run_again: true,
        })
    }

    fn label(&self, options: u32) -> String {
        self.options.at(options).options.label.clone()
    }

    /// Whether a task has started and not ended: it waits for others, or it is first on its engine's board and its
    /// arguments have arrived. For an idle engine that is about to claim it, this is true a moment too early.
    pub(super) fn is_running(&self, key: TaskKey, task: &Task) -> bool {
        let TaskState::Offered(engine, offer) = task.state() else {
            return false;
        };
        let engine = &self.engines[engine.0 as usize];
        let is_first = engine.head() == Some((key, offer));
        !task.is_travelling() && (is_first || engine.offers().has_waited(offer))
    }

    pub(super) fn live(&self, (client, seq): TaskName) -> Option<TaskKey> {
        match self.clients.known(client, seq) {
            Known::Live(slot) => self.tasks.key_at(slot),
            _ => None,
        }
    }
}
