//! Why a task waits, in a sentence.

use broadleaf_proto::ids::{ClientId, TaskKey, TaskSeq};

use super::Controller;
use crate::Nanos;
use crate::clients::history::Known;
use crate::engines::Engine;
use crate::engines::offers::Claim;
use crate::placement::groups::GroupKey;
use crate::placement::ready::ReadyQueue;
use crate::tasks::TaskState;

impl Controller {
    /// Why a task waits, in a sentence. Costs time proportional to the queue it waits in.
    pub fn explain(&self, now: Nanos, client: ClientId, seq: TaskSeq) -> String {
        let slot = match self.clients.known(client, seq) {
            Known::Unknown => {
                return format!(
                    "task {} is not known (never submitted, or resolved long ago)",
                    seq.0
                );
            }
            Known::Resolved(status, engine) => {
                let status = format!("{status:?}").to_lowercase();
                return if engine.0 == u32::MAX {
                    format!("resolved: {status}, without having run")
                } else {
                    format!("resolved: {status}, on engine {}", engine.0)
                };
            }
            Known::Live(slot) => slot,
        };
        let Some(key) = self.tasks.key_at(slot) else {
            return format!("task {} is not known", seq.0);
        };
        let Some(task) = self.tasks.get(key) else {
            return format!("task {} is not known", seq.0);
        };
        let congested = self.clients.is_congested(client);
        match task.state() {
            TaskState::Waiting => self.explain_wait(client, key),
            TaskState::Ready(_) | TaskState::Pinned(_) if congested => {
                "waits for its client to read the results it already has".into()
            }
            TaskState::Ready(group) => {
                let group = self.groups.at(group);
                let ahead = self.ahead(&group.queue, key);
                let up: Vec<_> = self
                    .engines
                    .iter()
                    .filter(|e| group.key.allows(e.id().0) && e.is_up())
                    .collect();
                let engines = engines_in_words(&group.key);
                let is_late = |e: &&Engine| !self.hosts.fits(e.host(), group.key.needs_ns, now);
                if !up.is_empty() && up.iter().all(is_late) {
                    format!("waits for {engines} whose batch job lasts longer than its timeout")
                } else if up.is_empty() {
                    format!("waits for {engines} to come up")
                } else if up.iter().all(|e| !e.has_room()) {
                    format!("waits for {engines}, all busy; {ahead}")
                } else {
                    format!("is about to be sent to {engines}; {ahead}")
                }
            }
            TaskState::Pinned(engine) => {
                let engine = &self.engines[engine.0 as usize];
                let ahead = self.ahead(engine.pinned(), key);
                if engine.is_up() {
                    let n = engine.offers().outstanding();
                    format!(
                        "waits for engine {}, which has {}; {ahead}",
                        engine.id().0,
                        tasks(u64::from(n))
                    )
                } else {
                    format!(
                        "waits for engine {}, which is {}; {ahead}",
                        engine.id().0,
                        engine.state_name()
                    )
                }
            }
            TaskState::Offered(engine, offer) => {
                explain_offer(&self.engines[engine.0 as usize], key, offer)
            }
            TaskState::Orphaned(engine) => {
                format!(
                    "was running on engine {}, which died; waits for the cause",
                    engine.0
                )
            }
            TaskState::Detached | TaskState::Vacant => format!("task {} is not known", seq.0),
        }
    }

    fn explain_wait(&self, client: ClientId, key: TaskKey) -> String {
        let Some(wait) = self.dependencies.get(key) else {
            return "waits for dependencies".into();
        };
        let first = wait
            .pending()
            .iter()
            .find(|seq| matches!(self.clients.known(client, **seq), Known::Live(_)));
        let others = u64::from(wait.n_pending());
        match first {
            Some(seq) if others > 1 => {
                format!("waits after task t{} and {} more", seq.0, others - 1)
            }
            Some(seq) => format!("waits after task t{}", seq.0),
            None => format!("waits after {}", tasks(others)),
        }
    }

    fn ahead(&self, queue: &ReadyQueue, key: TaskKey) -> String {
        let ahead = queue.keys(&self.tasks).take_while(|k| *k != key).count();
        match ahead {
            0 => "next in its queue".into(),
            n => format!("behind {}", tasks(n as u64)),
        }
    }
}

fn tasks(n: u64) -> String {
    if n == 1 {
        "1 task".into()
    } else {
        format!("{n} tasks")
    }
}

fn explain_offer(engine: &Engine, key: TaskKey, offer: u32) -> String {
    let at = engine.id().0;
    let offers = engine.offers();
    if offers.waits(offer) {
        return format!("waits on engine {at} for tasks that it submitted");
    }
    let is_ahead = |(number, _): &(u32, TaskKey)| !offers.waits(*number);
    let before = offers.iter().take_while(|(_, k)| *k != key);
    let ahead = before.filter(is_ahead).count();
    let asked = matches!(
        offers.claim(offer),
        Some(Claim::Revoking(_) | Claim::Returning)
    );
    match ahead {
        _ if asked => format!("is being taken back from engine {at}"),
        0 => format!("runs on engine {at}"),
        n => format!("is at engine {at}, behind {}", tasks(n as u64)),
    }
}

/// Number of engines that are listed individually.
const MAX_NAMED: usize = 64;

fn engines_in_words(key: &GroupKey) -> String {
    let list = |ids: &[u32]| {
        let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
        ids.join(", ")
    };
    let mut words = match &key.only {
        None => "any engine".to_string(),
        Some(only) => {
            let first: Vec<u32> = only.iter().take(MAX_NAMED).collect();
            match (first.as_slice(), only.len().saturating_sub(MAX_NAMED)) {
                ([one], 0) => format!("engine {one}"),
                (all, 0) => format!("one of engines {}", list(all)),
                (first, more) => format!("one of engines {} and {more} more", list(first)),
            }
        }
    };
    if !key.not.is_empty() {
        words = format!("{words} except {} (unmet there)", list(&key.not));
    }
    words
}
