//! MPI worlds: engines that no fork server started. Their slots are adjacent, in the order of ranks, and they end
//! together.

use std::collections::BTreeMap;
use std::ops::Range;

/// The slots of one world. They stay with the world, so it has the same engines when it is started
/// again.
#[derive(Clone, Copy, Debug)]
struct World {
    first: u32,
    size: u32,
    /// The rank that died first, since the world was last started.
    ended_by: Option<u32>,
}

/// Worlds by name: all that have had a slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Worlds(BTreeMap<String, World>);

impl Worlds {
    /// The slots of a world.
    pub fn slots(&self, name: &str) -> Option<Range<u32>> {
        let world = self.0.get(name)?;
        Some(world.first..world.first + world.size)
    }

    /// A new world has these slots.
    pub fn add(&mut self, name: String, slots: Range<u32>) {
        let world = World {
            first: slots.start,
            size: slots.end - slots.start,
            ended_by: None,
        };
        self.0.insert(name, world);
    }

    /// A rank has started: the world has not ended.
    pub fn begin(&mut self, name: &str) {
        if let Some(world) = self.0.get_mut(name) {
            world.ended_by = None;
        }
    }

    /// A rank has died, and with it its world. The first one is remembered.
    pub fn end(&mut self, name: &str, rank: u32) {
        if let Some(world) = self.0.get_mut(name) {
            world.ended_by.get_or_insert(rank);
        }
    }

    /// The rank that died first, if the world has ended.
    pub fn ended_by(&self, name: &str) -> Option<u32> {
        self.0.get(name)?.ended_by
    }
}
