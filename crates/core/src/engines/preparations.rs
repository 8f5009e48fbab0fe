//! Preparations: functions that every engine, even one that starts later, calls before it runs what the client submits
//! afterwards.

use broadleaf_proto::ids::ClientId;
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;

/// Maximum number of preparations of one client.
pub(crate) const MAX_PREPARATIONS: usize = 1024;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Preparations {
    /// Slots in the function cache by client and name, the latest last: engines make them in this order.
    slots: IndexMap<(ClientId, String), u32, FxBuildHasher>,
}

impl Preparations {
    /// Whether a client's preparation of this name is this function already.
    pub fn is(&self, name: &(ClientId, String), slot: u32) -> bool {
        self.slots.get(name) == Some(&slot)
    }

    /// Whether a client may have a preparation of this name.
    pub fn has_room(&self, name: &(ClientId, String)) -> bool {
        let own = self.slots.keys().filter(|(id, _)| *id == name.0);
        self.slots.contains_key(name) || own.count() < MAX_PREPARATIONS
    }

    /// Makes a function the latest preparation; returns the one of that name before.
    pub fn set(&mut self, name: (ClientId, String), slot: u32) -> Option<u32> {
        let before = self.slots.shift_remove(&name);
        self.slots.insert(name, slot);
        before
    }

    /// Drops the preparations of a client that is gone; returns their functions.
    pub fn drop_client(&mut self, client: ClientId) -> Vec<u32> {
        let mut dropped = Vec::new();
        self.slots.retain(|(id, _), slot| {
            let stays = *id != client;
            if !stays {
                dropped.push(*slot);
            }
            stays
        });
        dropped
    }

    /// Their functions, in the order in which engines make them.
    pub fn slots(&self) -> impl Iterator<Item = u32> {
        self.slots.values().copied()
    }
}
