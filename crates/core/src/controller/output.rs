//! What tasks write, on its way to their clients.

use broadleaf_proto::ids::{EngineId, TaskKey};
use broadleaf_proto::task::OutputRecord;

use super::Controller;
use crate::Output;
use crate::tasks::{Task, TaskState};

impl Controller {
    pub(super) fn on_output(
        &mut self,
        engine: EngineId,
        mut record: OutputRecord,
        out: &mut Vec<Output>,
    ) {
        let key = TaskKey(record.task);
        let task = self.tasks.get(key);
        let task = task.filter(|t| matches!(t.state(), TaskState::Offered(at, _) if at == engine));
        let Some(client) = task.and_then(Task::client) else {
            self.totals.ignored += 1;
            return;
        };
        let seq = task.map_or(0, |t| t.seq().0);
        record.engine = engine;
        let congested = self.clients.is_congested(client);
        let unread = self.engines[engine.0 as usize].unread_mut();
        if congested && unread.count(&record) {
            return;
        }
        let mut records = unread.take(key.0, engine);
        records.push(record);
        out.extend(records.into_iter().map(|mut record| {
            record.task = seq;
            Output::ClientOutput { client, record }
        }));
    }

    /// A task ends: tells its client how much of its output was dropped.
    pub(super) fn tell_unread(&mut self, engine: EngineId, key: TaskKey, out: &mut Vec<Output>) {
        let unread = self.engines[engine.0 as usize].unread_mut();
        if !unread.is_of(key.0) {
            return;
        }
        let notices = unread.take(key.0, engine);
        let Some((Some(client), seq)) = self.tasks.get(key).map(|t| (t.client(), t.seq())) else {
            return;
        };
        out.extend(notices.into_iter().map(|mut record| {
            record.task = seq.0;
            Output::ClientOutput { client, record }
        }));
    }
}
