//! Sets of task options.

use broadleaf_proto::control::{Mode, TargetSet, TaskOptions};
use broadleaf_proto::ids::ClientId;
use slab::Slab;

use crate::tasks::targets::Targets;

/// A set of options, shared by its tasks. Slot 0 holds the predefined set.
#[derive(Clone, Debug)]
pub(crate) struct OptionSet {
    /// Without its targets.
    pub options: TaskOptions,
    /// Its targets; `None` for all engines.
    pub targets: Option<Targets>,
    /// One for the client that defined it, and one for each live or stored task.
    pub references: u64,
    /// The client that it is charged to, while that is known.
    pub owner: Option<ClientId>,
}

impl OptionSet {
    pub fn new(owner: Option<ClientId>, mut options: TaskOptions) -> Self {
        let targets = Targets::of(&options.targets);
        options.targets = TargetSet::All;
        Self {
            options,
            targets,
            references: 1,
            owner,
        }
    }

    /// Memory that it takes besides its own record, in bytes.
    pub fn extra_bytes(&self) -> u64 {
        let targets = self.targets.as_ref().map_or(0, Targets::held_bytes);
        (self.options.label.len() + targets) as u64
    }

    /// The size charged for it.
    pub fn weight_bytes(&self) -> u64 {
        size_of::<Self>() as u64 + self.extra_bytes()
    }

    /// How many tasks one record with it stands for; `None` for one on each existing engine.
    pub fn n_parts(&self) -> Option<usize> {
        match (self.options.mode, &self.targets) {
            (Mode::Balanced, _) => Some(1),
            (Mode::Each, targets) => targets.as_ref().map(Targets::len),
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct OptionSets(Slab<OptionSet>);

impl OptionSets {
    pub fn new() -> Self {
        let mut sets = Self(Slab::new());
        sets.insert(OptionSet::new(None, TaskOptions::default()));
        sets
    }
    pub fn insert(&mut self, set: OptionSet) -> u32 {
        self.0.insert(set) as u32
    }
    pub fn at(&self, slot: u32) -> &OptionSet {
        &self.0[slot as usize]
    }
    pub fn retain(&mut self, slot: u32) {
        self.0[slot as usize].references += 1;
    }
    /// Releases a reference; returns the set if that was the last.
    pub fn release(&mut self, slot: u32) -> Option<OptionSet> {
        let set = &mut self.0[slot as usize];
        set.references -= 1;
        (set.references == 0).then(|| self.0.remove(slot as usize))
    }
    pub fn iter(&self) -> impl Iterator<Item = (u32, &OptionSet)> {
        self.0.iter().map(|(slot, set)| (slot as u32, set))
    }
    pub fn is_balanced(&self, slot: u32) -> bool {
        self.at(slot).options.mode == Mode::Balanced
    }
}
