//! Control requests that the controller answers itself.

use broadleaf_proto::control::{ControlReply, ControlRequest, TargetSet};
use broadleaf_proto::ids::{ClientId, EngineId, TaskSeq};

use crate::engines::State;
use crate::history::Known;
use crate::options::targets_of;
use crate::{Controller, Nanos, Output};

impl Controller {
    pub(crate) fn on_request(
        &mut self,
        now: Nanos,
        client: ClientId,
        number: u64,
        request: ControlRequest,
        out: &mut Vec<Output>,
    ) {
        if !self.clients.contains_key(&client) {
            self.totals.ignored += 1;
            return;
        }
        let reply = match request {
            ControlRequest::Cancel(seqs) => {
                self.cancel_all(client, &seqs, out);
                ControlReply::Done
            }
            ControlRequest::Interrupt(targets) => self.at_engines(&targets, |this, index| {
                let engine = &this.engines[index];
                let connected = engine.is_connected();
                if let Some((key, offer)) = engine.head().filter(|_| connected) {
                    let id = engine.id;
                    this.interrupt(id, key, offer, out);
                }
                connected
            }),
            ControlRequest::Signal(targets, signal) => self.at_engines(&targets, |this, index| {
                let engine = &this.engines[index];
                let connected = engine.is_connected();
                if connected {
                    out.push(Output::Kill {
                        engine: engine.id,
                        pid: engine.pid(),
                        signal,
                    });
                }
                connected
            }),
            ControlRequest::AddEngines(_) | ControlRequest::RestartEngines(_)
                if self.supervisor.stopping =>
            {
                ControlReply::Failed("the cluster is stopping".into())
            }
            ControlRequest::AddEngines(n) => {
                if self.add_engines(now, n, out) {
                    ControlReply::Done
                } else {
                    ControlReply::Failed("that is more engines than there are places".into())
                }
            }
            ControlRequest::StopEngines(targets) => self.at_engines(&targets, |this, index| {
                let there = this.engines[index].state != State::Gone;
                this.stop_engine(now, index, false, out);
                there
            }),
            ControlRequest::RestartEngines(targets) => self.at_engines(&targets, |this, index| {
                this.stop_engine(now, index, true, out);
                true
            }),
            ControlRequest::Shutdown => {
                self.shutdown(now, out);
                ControlReply::Done
            }
            ControlRequest::Explain(seq) => ControlReply::Text(self.explain(client, seq)),
            ControlRequest::QueueStatus => ControlReply::Queues(self.queues()),
            ControlRequest::Leave => {
                if let Some(client) = self.clients.get_mut(&client) {
                    client.leaves = true;
                }
                ControlReply::Done
            }
            ControlRequest::Records(names) => ControlReply::Records {
                now_ns: now,
                records: self.records(names),
            },
            ControlRequest::Adopt { first, tasks } => {
                self.adopt(client, first, &tasks, out);
                ControlReply::Done
            }
            ControlRequest::Resubmit { first, tasks } => {
                self.resubmit(now, client, first, &tasks, out);
                ControlReply::Done
            }
            ControlRequest::Forget(names) => {
                self.forget_kept(names);
                ControlReply::Done
            }
            ControlRequest::Status
            | ControlRequest::Trace
            | ControlRequest::SetLog { .. }
            | ControlRequest::Config => {
                ControlReply::Failed("not answered by the controller".into())
            }
        };
        out.push(Output::Reply {
            client,
            number,
            reply,
        });
    }

    fn cancel_all(&mut self, client: ClientId, seqs: &[TaskSeq], out: &mut Vec<Output>) {
        for seq in seqs {
            if let Known::Live(slot) = self.known(client, *seq)
                && let Some(key) = self.tasks.key_at(slot)
            {
                self.cancel(key, out);
            }
        }
    }

    /// Does something to each engine of a target set; fails naming those it could not be done to.
    fn at_engines(
        &mut self,
        targets: &TargetSet,
        mut action: impl FnMut(&mut Self, usize) -> bool,
    ) -> ControlReply {
        let listed = targets_of(targets);
        let all = listed.is_none();
        let listed = listed.unwrap_or_else(|| {
            let there = self.engines.iter().filter(|e| e.state != State::Gone);
            there.map(|e| e.id.0).collect()
        });
        let mut missing = Vec::new();
        for id in listed {
            let known = (id as usize) < self.engines.len();
            let acted = known && action(self, id as usize);
            if !acted && !all {
                missing.push(id.to_string());
            }
        }
        if missing.is_empty() {
            ControlReply::Done
        } else {
            ControlReply::Failed(format!("no such engine: {}", missing.join(", ")))
        }
    }

    /// Queue of each engine that is there: (engine, queued, running, completed).
    fn queues(&self) -> Vec<(EngineId, u64, u64, u64)> {
        let there = self.engines.iter().filter(|e| e.state != State::Gone);
        there
            .map(|e| {
                let running = u64::from(e.outstanding.min(1));
                let queued = u64::from(e.outstanding) - running + e.pinned.len() as u64;
                (e.id, queued, running, e.completed)
            })
            .collect()
    }
}
