//! Results of tasks that have ended: who asks for them, and tasks that are run again.

use broadleaf_proto::control::{RefusalReason, TaskName};
use broadleaf_proto::ids::{ClientId, TaskSeq};

use super::Controller;
use super::submit::{Part, Submission};
use crate::clients::history::Known;
use crate::results::Outcome;
use crate::results::store::Call;
use crate::{Nanos, Output};

impl Controller {
    /// Sends a client the results of these tasks, and those of live tasks once they end.
    pub(super) fn subscribe(
        &mut self,
        client: ClientId,
        first: TaskSeq,
        names: &[TaskName],
        out: &mut Vec<Output>,
    ) {
        let stored = self.result_store.find(names);
        let (mut answers, mut awaited) = (Vec::new(), Vec::new());
        let mut sent_bytes = 0_u64;
        for (name, seq) in names.iter().zip(first.0..) {
            let seq = TaskSeq(seq);
            if let Some(key) = self.live(*name) {
                awaited.push((key, seq));
            } else {
                let task = stored.get(name);
                let weight_bytes = task.map_or(0, |task| task.result_bytes());
                sent_bytes = sent_bytes.saturating_add(weight_bytes);
                if sent_bytes > self.config.max_outstanding_bytes {
                    let refused = Outcome::refused(&RefusalReason::OverLimit);
                    answers.push(refused.into_record(seq)); // One result, asked for again and again.
                    continue;
                }
                let result = task.and_then(|task| self.result_store.result(task, seq));
                let refused = || Outcome::refused(&RefusalReason::NotStored).into_record(seq);
                answers.push(result.unwrap_or_else(refused));
            }
        }
        for (key, seq) in awaited {
            let max_tasks = self.config.max_outstanding_tasks;
            let slot = key.slot() as u32;
            if self.clients.subscribe(client, slot, seq, max_tasks) {
                self.tasks.at(key).set_awaited(true);
            } else {
                let refused = Outcome::refused(&RefusalReason::OverLimit);
                answers.push(refused.into_record(seq));
            }
        }
        out.extend(
            answers
                .into_iter()
                .map(|record| Output::Result { client, record }),
        );
    }

    /// Runs these tasks again, as tasks of this client.
    pub(super) fn resubmit(
        &mut self,
        now: Nanos,
        client: ClientId,
        first: TaskSeq,
        (names, depth): (&[TaskName], u16),
        out: &mut Vec<Output>,
    ) {
        let stored = self.result_store.find(names);
        let mut copies = Vec::new();
        for (name, seq) in names.iter().zip(first.0..) {
            if self.clients.known(client, TaskSeq(seq)) != Known::Unknown {
                self.totals.ignored += 1;
                continue;
            }
            let live = self.live(*name).and_then(|key| self.tasks.get(key));
            let found = live
                .map(|t| Call {
                    function: t.function(),
                    options: t.options(),
                    pinned: t.pinned(),
                    payload: t.payload().clone(),
                })
                .or_else(|| self.result_store.call(stored.get(name)?));
            if let Some(call) = &found {
                // A copy that is refused is stored as well, and may displace the task that it was copied from.
                self.functions.retain(call.function);
                self.options.retain(call.options);
            }
            copies.push((TaskSeq(seq), found));
        }
        for (seq, found) in copies {
            let Some(call) = found else {
                let reason = RefusalReason::NotStored;
                self.refuse_unseen(client, seq, 1, reason, out);
                continue;
            };
            let Call {
                function,
                options,
                pinned,
                payload,
            } = call;
            let gone = pinned.filter(|engine| !self.is_hopeful_slot(*engine));
            let objection = self.objection(client, 1, &payload, 0);
            let objection = objection.or(gone.map(RefusalReason::NoSuchEngine));
            if let Some(reason) = objection {
                self.refuse_unseen(client, seq, 1, reason, out);
                self.release_function(function);
                self.release_options(options);
                continue;
            }
            let part = Part {
                seq,
                pinned,
                inline_bytes: payload.bytes.len() as u64,
                payload,
            };
            let whole = Submission::bare(client, options, function, depth);
            self.submit_part(now, &whole, part, out);
            self.release_function(function);
            self.release_options(options);
        }
    }

    pub(super) fn forget_kept(&mut self, names: Option<Vec<TaskName>>) {
        match names {
            None => while self.forget_oldest_kept() {},
            Some(names) => {
                for task in self.result_store.take(&names.into_iter().collect()) {
                    self.release_stored(&task);
                }
            }
        }
    }
}
