//! Sets of task options, and the groups of engines they allow.

use broadleaf_proto::control::{Mode, TargetSet, TaskOptions};
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;
use slab::Slab;

use crate::engines::MAX_ENGINES;
use crate::ready::{GroupId, ReadyQueue};

/// A set of options as its tasks share it. Slot 0 is the predefined set.
#[derive(Debug)]
pub(crate) struct OptionSet {
    pub options: TaskOptions,
    /// Its targets in order; `None` for all engines.
    pub targets: Option<Vec<u32>>,
    /// One for the client that defined it, and one for each live or kept task.
    pub references: u64,
}

/// Engines of a target set in target order, or the first place that cannot exist.
fn expand(targets: &TargetSet) -> Result<Option<Vec<u32>>, u32> {
    let TargetSet::Ranges(ranges) = targets else {
        return Ok(None);
    };
    let mut list = Vec::new();
    for (first, end) in ranges {
        if end.0 > MAX_ENGINES
            || list.len() + (end.0.saturating_sub(first.0)) as usize > MAX_ENGINES as usize
        {
            return Err(MAX_ENGINES);
        }
        list.extend(first.0..end.0);
    }
    Ok(Some(list))
}

/// Engines of a target set that could exist, in target order; `None` for all.
pub(crate) fn targets_of(targets: &TargetSet) -> Option<Vec<u32>> {
    expand(targets).unwrap_or_else(|beyond| Some(vec![beyond]))
}

/// See the module.
#[derive(Debug)]
pub(crate) struct OptionSets(Slab<OptionSet>);

impl OptionSets {
    pub fn new() -> Self {
        let mut sets = Self(Slab::new());
        sets.define(TaskOptions::default());
        sets
    }
    pub fn define(&mut self, options: TaskOptions) -> u32 {
        let targets = targets_of(&options.targets);
        self.0.insert(OptionSet {
            options,
            targets,
            references: 1,
        }) as u32
    }
    pub fn at(&self, slot: u32) -> &OptionSet {
        &self.0[slot as usize]
    }
    pub fn retain(&mut self, slot: u32) {
        self.0[slot as usize].references += 1;
    }
    pub fn release(&mut self, slot: u32) {
        let set = &mut self.0[slot as usize];
        set.references -= 1;
        if set.references == 0 {
            self.0.remove(slot as usize);
        }
    }
    pub fn iter(&self) -> impl Iterator<Item = (u32, &OptionSet)> {
        self.0.iter().map(|(slot, set)| (slot as u32, set))
    }
    pub fn is_balanced(&self, slot: u32) -> bool {
        self.at(slot).options.mode == Mode::Balanced
    }
}

/// Which engines a balanced task may run on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct GroupKey {
    /// These alone, sorted; `None` for all.
    pub only: Option<Vec<u32>>,
    /// But not these, sorted.
    pub not: Vec<u32>,
    /// And not this one while there is another.
    pub avoid: Option<u32>,
}

impl GroupKey {
    pub fn allows(&self, engine: u32) -> bool {
        self.only
            .as_ref()
            .is_none_or(|only| only.binary_search(&engine).is_ok())
            && self.not.binary_search(&engine).is_err()
    }
}

/// Tasks that may run on the same engines.
#[derive(Debug)]
pub(crate) struct Group {
    pub key: GroupKey,
    pub queue: ReadyQueue,
}

/// The queues of balanced tasks, one for each set of engines. Slot 0 is that of all engines.
#[derive(Debug)]
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
    /// Drops empty groups but that of all engines.
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
