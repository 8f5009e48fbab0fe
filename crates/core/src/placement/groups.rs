//! Ready tasks by the engines that they may run on.

use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;
use slab::Slab;

use crate::Nanos;
use crate::placement::ready::ReadyQueue;
use crate::tasks::GroupId;
use crate::tasks::targets::Targets;

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
