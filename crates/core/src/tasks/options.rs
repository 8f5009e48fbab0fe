//! Sets of task options, and the groups of engines they allow.

use broadleaf_proto::control::{Mode, TargetSet, TaskOptions};
use broadleaf_proto::ids::ClientId;
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;
use slab::Slab;

use crate::Nanos;
use crate::placement::ready::{GroupId, ReadyQueue};
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

/// Which engines a load-balanced task may run on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct GroupKey {
    /// Only these engines, sorted; `None` for all.
    pub only: Option<Targets>,
    /// Except these engines, sorted.
    pub not: Vec<u32>,
    /// Preferably not this one.
    pub avoid: Option<u32>,
    /// Only where at least this much time is left.
    pub needs_ns: Option<Nanos>,
}

impl GroupKey {
    pub fn allows(&self, engine: u32) -> bool {
        self.only
            .as_ref()
            .is_none_or(|only| only.sorted_contains(engine))
            && self.not.binary_search(&engine).is_err()
    }
}

/// Tasks that may run on the same engines.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub key: GroupKey,
    pub queue: ReadyQueue,
}

/// The queues of load-balanced tasks, one for each set of engines. Slot 0 is for all engines.
#[derive(Clone, Debug)]
pub(crate) struct Groups {
    slots: Slab<Group>,
    by_key: IndexMap<GroupKey, GroupId, FxBuildHasher>,
}

/// The group of all engines.
pub(crate) const ALL: GroupId = 0;

impl Groups {
    pub fn new() -> Self {
        let mut groups = Self {
            slots: Slab::new(),
            by_key: IndexMap::default(),
        };
        groups.intern(GroupKey::default());
        groups
    }
    pub fn intern(&mut self, key: GroupKey) -> GroupId {
        if let Some(id) = self.by_key.get(&key) {
            return *id;
        }
        let id = self.slots.insert(Group {
            key: key.clone(),
            queue: ReadyQueue::default(),
        }) as GroupId;
        self.by_key.insert(key, id);
        id
    }
    pub fn len(&self) -> usize {
        self.slots.len()
    }
    pub fn at(&self, id: GroupId) -> &Group {
        &self.slots[id as usize]
    }
    pub fn queue(&mut self, id: GroupId) -> &mut ReadyQueue {
        &mut self.slots[id as usize].queue
    }
    pub fn iter(&self) -> impl Iterator<Item = (GroupId, &Group)> {
        self.slots.iter().map(|(id, group)| (id as GroupId, group))
    }
    pub fn queues_mut(&mut self) -> impl Iterator<Item = &mut ReadyQueue> {
        self.slots.iter_mut().map(|(_, group)| &mut group.queue)
    }
    /// Tasks queued in all groups.
    pub fn n_queued(&self) -> usize {
        self.slots.iter().map(|(_, g)| g.queue.len()).sum()
    }
    /// Drops empty groups except that of all engines.
    pub fn prune(&mut self) {
        let by_key = &mut self.by_key;
        self.slots.retain(|id, group| {
            let keep = id as GroupId == ALL || group.queue.len() > 0;
            if !keep {
                by_key.swap_remove(&group.key);
            }
            keep
        });
    }
}
