//! Control requests that the controller answers itself.

use broadleaf_proto::control::{ControlReply, ControlRequest, RefusalReason, TargetSet};
use broadleaf_proto::host::EngineOrder;
use broadleaf_proto::ids::{ClientId, EngineId, TaskSeq};
use broadleaf_proto::limits::{MAX_COALESCED_PARTS, MAX_NESTING};

use super::Controller;
use super::submit::LAST_SEQ;
use crate::clients::history::Known;
use crate::engines::State;
use crate::tasks::Stopping;
use crate::tasks::targets::Targets;
use crate::{Nanos, Output};

/// Number of engines that a reply lists individually.
const MAX_NAMED: usize = 64;

impl Controller {
    pub(super) fn on_request(
        &mut self,
        now: Nanos,
        client: ClientId,
        number: u64,
        request: ControlRequest,
        out: &mut Vec<Output>,
    ) {
        if !self.clients.contains(client) {
            self.totals.ignored += 1;
            return;
        }
        let reply = match request {
            ControlRequest::Cancel(seqs) => {
                self.cancel_all(now, client, &seqs, Stopping::Cancel, out);
                ControlReply::Done
            }
            ControlRequest::InterruptTasks(seqs) => {
                self.cancel_all(now, client, &seqs, Stopping::Asked, out);
                ControlReply::Done
            }
            ControlRequest::Interrupt(targets) => self.interrupt_engines(&targets, out),
            ControlRequest::Signal(targets, signal) => self.signal_engines(&targets, signal, out),
            ControlRequest::AddEngines(_) | ControlRequest::RestartEngines(_)
                if self.supervisor.is_stopping() =>
            {
                ControlReply::Failed("the cluster is stopping".into())
            }
            ControlRequest::AddEngines(n) => self.start_engines(now, n, out),
            ControlRequest::StopEngines(targets) => self.stop_engines(now, &targets, out),
            ControlRequest::Drain {
                targets,
                hosts,
                within_ns,
                stateless,
            } => self.drain(now, &targets, &hosts, within_ns, stateless, out),
            ControlRequest::AwaitEngines(awaits) => {
                self.await_engines(client, awaits, out);
                ControlReply::Done
            }
            ControlRequest::RestartEngines(targets) => self.restart_engines(now, &targets, out),
            ControlRequest::Shutdown => {
                self.shutdown(now, out);
                ControlReply::Done
            }
            ControlRequest::Explain(seq) => ControlReply::Text(self.explain(now, client, seq)),
            ControlRequest::QueueStatus => ControlReply::Queues(self.queues()),
            ControlRequest::Leave => {
                self.clients.let_leave(client);
                ControlReply::Done
            }
            ControlRequest::Prepare {
                name,
                function,
                reload,
            } => self.prepare(client, name, function, reload, out),
            ControlRequest::Records(names) => ControlReply::Records {
                now_ns: now,
                records: self.records(names),
            },
            ControlRequest::Subscribe { first, tasks }
            | ControlRequest::Resubmit { first, tasks, .. }
                if first > LAST_SEQ || tasks.len() as u64 > self.config.max_outstanding_tasks =>
            {
                let n = tasks.len().min(MAX_COALESCED_PARTS);
                let first = first.min(LAST_SEQ);
                self.refuse_unseen(client, first, n, RefusalReason::OverLimit, out);
                ControlReply::Done
            }
            ControlRequest::Subscribe { first, tasks } => {
                self.subscribe(client, first, &tasks, out);
                ControlReply::Done
            }
            ControlRequest::Resubmit {
                first,
                tasks,
                depth,
            } => {
                self.resubmit(now, client, first, (&tasks, depth.min(MAX_NESTING)), out);
                ControlReply::Done
            }
            ControlRequest::Forget(names) => {
                self.forget_kept(names);
                ControlReply::Done
            }
            ControlRequest::Notice { about, text } => self.clients.keep_notice(about, text),
            ControlRequest::Written { engine, seen } => {
                match self.read_written(client, number, engine, seen, out) {
                    Some(reply) => reply,
                    None => return, // The host of the engine answers.
                }
            }
            ControlRequest::Noticed(about) => ControlReply::Text(self.clients.notice_about(&about)),
            ControlRequest::Status
            | ControlRequest::Trace
            | ControlRequest::Watch { .. }
            | ControlRequest::SetLog { .. }
            | ControlRequest::Recording { .. }
            | ControlRequest::Recorded { .. }
            | ControlRequest::Config => ControlReply::Failed("only a node answers this".into()),
        };
        out.push(Output::Reply {
            client,
            number,
            reply,
        });
    }

    fn start_engines(&mut self, now: Nanos, n: u32, out: &mut Vec<Output>) -> ControlReply {
        if self.add_engines(now, n, out) {
            ControlReply::Done
        } else {
            ControlReply::Failed("that is more engines than there are slots".into())
        }
    }

    fn stop_engines(
        &mut self,
        now: Nanos,
        targets: &TargetSet,
        out: &mut Vec<Output>,
    ) -> ControlReply {
        self.at_engines(targets, false, |this, index| {
            let there = this.engines[index].state() != State::Gone;
            for index in this.of_same_world(index) {
                this.stop_engine(now, index, false, out);
            }
            there
        })
    }

    fn restart_engines(
        &mut self,
        now: Nanos,
        targets: &TargetSet,
        out: &mut Vec<Output>,
    ) -> ControlReply {
        self.at_engines(targets, true, |this, index| {
            // Only the process that started a world can start it again.
            if this.engines[index].guest().is_none() {
                this.stop_engine(now, index, true, out);
            }
            true
        })
    }

    fn interrupt_engines(&mut self, targets: &TargetSet, out: &mut Vec<Output>) -> ControlReply {
        self.at_engines(targets, false, |this, index| {
            let engine = &this.engines[index];
            let connected = engine.is_connected();
            if let Some((key, offer)) = engine.offers().current().filter(|_| connected) {
                let id = engine.id();
                this.interrupt(id, key, offer, out);
            }
            connected
        })
    }

    fn signal_engines(
        &mut self,
        targets: &TargetSet,
        signal: i32,
        out: &mut Vec<Output>,
    ) -> ControlReply {
        self.at_engines(targets, false, |this, index| {
            let engine = &this.engines[index];
            let connected = engine.is_connected();
            if connected {
                out.push(Output::Order(EngineOrder::Kill {
                    engine: engine.id(),
                    pid: engine.pid(),
                    signal,
                }));
            }
            connected
        })
    }

    fn cancel_all(
        &mut self,
        now: Nanos,
        client: ClientId,
        seqs: &[TaskSeq],
        how: Stopping,
        out: &mut Vec<Output>,
    ) {
        for seq in seqs {
            if let Known::Live(slot) = self.clients.known(client, *seq)
                && let Some(key) = self.tasks.key_at(slot)
            {
                self.cancel(now, key, how, out);
            }
        }
    }

    /// Applies an action to each engine of a target set; the error names those for which it failed. "All" means all
    /// existing engines or, to restart them, those that are not stopped for good, dead ones as well.
    fn at_engines(
        &mut self,
        targets: &TargetSet,
        is_restart: bool,
        mut action: impl FnMut(&mut Self, usize) -> bool,
    ) -> ControlReply {
        let listed = Targets::of(targets);
        let all = listed.is_none();
        let listed = listed.unwrap_or_else(|| {
            let meant = self.engines.iter().filter(|e| {
                if is_restart {
                    e.is_restarted_with_all()
                } else {
                    !e.is_gone()
                }
            });
            Targets::of_sorted(meant.map(|e| e.id().0))
        });
        let mut missing = Vec::new();
        let mut n_unnamed = 0;
        for id in listed.iter() {
            let known = (id as usize) < self.engines.len();
            let acted = known && action(self, id as usize);
            if acted || all {
                continue;
            }
            if missing.len() < MAX_NAMED {
                missing.push(id.to_string());
            } else {
                n_unnamed += 1;
            }
        }
        if n_unnamed > 0 {
            missing.push(format!("and {n_unnamed} more"));
        }
        if missing.is_empty() {
            ControlReply::Done
        } else {
            ControlReply::Failed(format!("no such engine: {}", missing.join(", ")))
        }
    }

    /// The queue of each existing engine: (engine, queued, running, completed).
    fn queues(&self) -> Vec<(EngineId, u64, u64, u64)> {
        let there = self.engines.iter().filter(|e| !e.is_gone());
        there
            .map(|e| {
                let outstanding = u64::from(e.offers().outstanding());
                let running = outstanding.min(1);
                let queued = outstanding - running + e.pinned().len() as u64;
                let n_waiting = e.offers().n_waiting() as u64;
                (e.id(), queued, running + n_waiting, e.completed())
            })
            .collect()
    }
}
