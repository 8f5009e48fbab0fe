//! Who waits for the result of a task, besides the client that submitted it.

use broadleaf_proto::ids::{ClientId, TaskSeq};
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;

use crate::check::{Violation, ensure};

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Subscribers {
    /// By slot of a live task: who gets its result, and under which number.
    by_slot: IndexMap<u32, Vec<(ClientId, TaskSeq)>, FxBuildHasher>,
    /// Number of results that each client waits for.
    n_of: IndexMap<ClientId, u64, FxBuildHasher>,
}

impl Subscribers {
    /// Number of results that a client waits for.
    pub fn n_of(&self, client: ClientId) -> u64 {
        self.n_of.get(&client).copied().unwrap_or(0)
    }

    /// A client waits for the result of the task in a slot, and will know it by this number.
    pub fn add(&mut self, slot: u32, client: ClientId, seq: TaskSeq) {
        self.by_slot.entry(slot).or_default().push((client, seq));
        *self.n_of.entry(client).or_default() += 1;
    }

    /// The task in a slot ended: those who are told now.
    pub fn take(&mut self, slot: u32) -> Vec<(ClientId, TaskSeq)> {
        let told = self.by_slot.swap_remove(&slot).unwrap_or_default();
        for (client, _) in &told {
            if let Some(n) = self.n_of.get_mut(client) {
                *n -= 1;
                if *n == 0 {
                    self.n_of.swap_remove(client);
                }
            }
        }
        told
    }

    /// A client is gone.
    pub fn drop_client(&mut self, client: ClientId) {
        if self.n_of.swap_remove(&client).is_some() {
            for subscribers in self.by_slot.values_mut() {
                subscribers.retain(|(subscriber, _)| *subscriber != client);
            }
        }
    }

    /// Verifies that only clients that are here wait, for tasks that say so.
    pub fn check(
        &self,
        is_marked: impl Fn(u32) -> bool,
        is_here: impl Fn(ClientId) -> bool,
    ) -> Result<(), Violation> {
        for slot in self.by_slot.keys() {
            ensure(is_marked(*slot), || {
                format!("slot {slot} is subscribed to but not marked so")
            })?;
        }
        for (client, n) in &self.n_of {
            let of_client = self.by_slot.values().flatten();
            let n_found = of_client.filter(|(by, _)| by == client).count();
            ensure(n_found as u64 == *n && *n > 0, || {
                format!("client {} miscounts its subscriptions", client.0)
            })?;
            ensure(is_here(*client), || {
                format!("client {} is gone and waits for results", client.0)
            })?;
        }
        let n_found = self.by_slot.values().map(Vec::len).sum::<usize>();
        ensure(n_found as u64 == self.n_of.values().sum::<u64>(), || {
            "subscribers are miscounted".into()
        })
    }
}
