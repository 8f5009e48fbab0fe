//! Queues of tasks that could start now: by priority, and in turn among clients.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use broadleaf_proto::ids::{ClientId, TaskKey};
use smallvec::SmallVec;

use crate::tasks::{Place, TaskTable};

/// Slot of a group of tasks that may run on the same engines; 0 is the group of all engines.
pub(crate) type GroupId = u32;

/// Tasks of one client at one priority. Tasks removed from the middle leave their stale key behind.
#[derive(Debug)]
struct Lane {
    client: ClientId,
    congested: bool,
    live: usize,
    keys: VecDeque<TaskKey>,
}

#[derive(Debug, Default)]
struct Level {
    lanes: SmallVec<[Lane; 1]>,
    live: usize,
    /// Whose turn it was last.
    turn: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ReadyQueue {
    levels: BTreeMap<Reverse<i32>, Level>,
    len: usize,
}

fn is_queued(tasks: &TaskTable, key: TaskKey) -> bool {
    tasks
        .get(key)
        .is_some_and(|t| matches!(t.place, Place::Ready(_) | Place::Pinned(_)))
}

impl ReadyQueue {
    pub fn len(&self) -> usize {
        self.len
    }

    /// The lane a key is to be put on, which the caller does.
    fn lane_for_push(&mut self, priority: i32, client: ClientId, congested: bool) -> &mut Lane {
        self.len += 1;
        let level = self.levels.entry(Reverse(priority)).or_default();
        level.live += 1;
        let index = level.lanes.iter().position(|l| l.client == client);
        let index = index.unwrap_or_else(|| {
            level.lanes.push(Lane {
                client,
                congested,
                live: 0,
                keys: VecDeque::new(),
            });
            level.lanes.len() - 1
        });
        let lane = &mut level.lanes[index];
        lane.live += 1;
        lane
    }

    pub fn push_back(&mut self, priority: i32, client: ClientId, congested: bool, key: TaskKey) {
        self.lane_for_push(priority, client, congested)
            .keys
            .push_back(key);
    }

    pub fn push_front(&mut self, priority: i32, client: ClientId, congested: bool, key: TaskKey) {
        self.lane_for_push(priority, client, congested)
            .keys
            .push_front(key);
    }

    /// Highest priority of a task whose client may be served.
    pub fn top_priority(&self) -> Option<i32> {
        if self.len == 0 {
            return None;
        }
        self.levels
            .iter()
            .find(|(_, level)| level.lanes.iter().any(|l| l.live > 0 && !l.congested))
            .map(|(priority, _)| priority.0)
    }

    /// Takes the next task; `tasks` tells live keys from stale ones.
    pub fn pop(&mut self, tasks: &TaskTable) -> Option<TaskKey> {
        if self.len == 0 {
            return None;
        }
        for (priority, level) in &mut self.levels {
            let n = level.lanes.len();
            for _ in 0..n {
                level.turn = if level.turn + 1 < n {
                    level.turn + 1
                } else {
                    0
                };
                let lane = &mut level.lanes[level.turn];
                if lane.live == 0 || lane.congested {
                    continue;
                }
                while let Some(key) = lane.keys.pop_front() {
                    if is_queued(tasks, key) {
                        lane.live -= 1;
                        level.live -= 1;
                        self.len -= 1;
                        if level.live == 0 {
                            let priority = *priority;
                            self.prune(priority);
                        }
                        return Some(key);
                    }
                }
            }
        }
        None
    }

    /// Drops an empty level unless it is the only one, so that priorities used once do not pile up.
    fn prune(&mut self, priority: Reverse<i32>) {
        if self.levels.len() > 1 {
            self.levels.remove(&priority);
        }
    }

    /// Accounts for a task that is no longer queued; to be called once its place says so.
    pub fn removed(&mut self, priority: i32, client: ClientId, tasks: &TaskTable) {
        let priority = Reverse(priority);
        let Some(level) = self.levels.get_mut(&priority) else {
            return;
        };
        let Some(lane) = level.lanes.iter_mut().find(|l| l.client == client) else {
            return;
        };
        lane.live -= 1;
        level.live -= 1;
        self.len -= 1;
        if lane.keys.len() > 64 && lane.keys.len() > 2 * lane.live {
            lane.keys.retain(|key| is_queued(tasks, *key));
        }
        if level.live == 0 {
            self.prune(priority);
        }
    }

    pub fn set_congested(&mut self, client: ClientId, congested: bool) {
        for level in self.levels.values_mut() {
            for lane in level.lanes.iter_mut().filter(|l| l.client == client) {
                lane.congested = congested;
            }
        }
    }

    /// Forgets a client whose tasks were all removed.
    pub fn drop_client(&mut self, client: ClientId) {
        for level in self.levels.values_mut() {
            level.lanes.retain(|l| l.client != client);
            level.live = level.lanes.iter().map(|l| l.live).sum();
            level.turn = 0;
        }
        self.levels.retain(|_, level| !level.lanes.is_empty());
    }

    /// Every queued key, in the order of one client's turns, highest priority first.
    pub fn keys<'a>(&'a self, tasks: &'a TaskTable) -> impl Iterator<Item = TaskKey> + 'a {
        self.levels
            .values()
            .flat_map(|level| level.lanes.iter().flat_map(|l| l.keys.iter().copied()))
            .filter(|key| is_queued(tasks, *key))
    }

    /// Whether the counts agree with the keys.
    pub fn is_consistent(&self, tasks: &TaskTable) -> bool {
        let mut total = 0;
        let lanes_agree = self.levels.values().flat_map(|l| &l.lanes).all(|lane| {
            let live = lane.keys.iter().filter(|k| is_queued(tasks, **k)).count();
            total += live;
            live == lane.live
        });
        let levels_agree = self
            .levels
            .values()
            .all(|l| l.live == l.lanes.iter().map(|lane| lane.live).sum());
        lanes_agree && levels_agree && total == self.len
    }
}
