//! Queues of tasks that are ready to start: by rank, and round-robin among clients.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use broadleaf_proto::ids::{ClientId, TaskKey};
use smallvec::SmallVec;

use crate::tasks::{Rank, TaskState, TaskTable};

/// Tasks of one client at one rank; once it is empty, another client may have it. Tasks removed from the middle leave
/// their stale key behind.
#[derive(Clone, Debug)]
struct Lane {
    client: ClientId,
    congested: bool,
    live: usize,
    keys: VecDeque<TaskKey>,
}

#[derive(Clone, Debug, Default)]
struct Level {
    lanes: SmallVec<[Lane; 1]>,
    live: usize,
    /// Index of the lane served last.
    turn: usize,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadyQueue {
    levels: BTreeMap<Reverse<Rank>, Level>,
    len: usize,
}

fn is_queued(tasks: &TaskTable, key: TaskKey) -> bool {
    tasks
        .get(key)
        .is_some_and(|t| matches!(t.state(), TaskState::Ready(_) | TaskState::Pinned(_)))
}

impl ReadyQueue {
    pub fn len(&self) -> usize {
        self.len
    }

    /// The lane for a key, with the key counted; the caller adds it.
    fn lane_for_push(&mut self, rank: Rank, client: ClientId, congested: bool) -> &mut Lane {
        self.len += 1;
        let level = self.levels.entry(Reverse(rank)).or_default();
        level.live += 1;
        let index = level.lanes.iter().position(|l| l.client == client);
        let free = || level.lanes.iter().position(|l| l.live == 0);
        let index = index.or_else(free).unwrap_or_else(|| {
            level.lanes.push(Lane {
                client,
                congested,
                live: 0,
                keys: VecDeque::new(),
            });
            level.lanes.len() - 1
        });
        let lane = &mut level.lanes[index];
        if lane.live == 0 {
            // An empty lane may be another client's, and nobody kept it up to date.
            lane.client = client;
            lane.congested = congested;
            lane.keys.clear();
        }
        lane.live += 1;
        lane
    }

    pub fn push_back(&mut self, rank: Rank, client: ClientId, congested: bool, key: TaskKey) {
        self.lane_for_push(rank, client, congested)
            .keys
            .push_back(key);
    }

    pub fn push_front(&mut self, rank: Rank, client: ClientId, congested: bool, key: TaskKey) {
        self.lane_for_push(rank, client, congested)
            .keys
            .push_front(key);
    }

    /// Puts a task back that was just taken: it is the next again.
    pub fn put_back(&mut self, rank: Rank, client: ClientId, key: TaskKey) {
        self.push_front(rank, client, false, key);
        if let Some(level) = self.levels.get_mut(&Reverse(rank)) {
            let n = level.lanes.len();
            let index = level.lanes.iter().position(|lane| lane.client == client);
            level.turn = (index.unwrap_or(0) + n - 1) % n;
        }
    }

    /// Highest rank of a task whose client can be served.
    pub fn top_rank(&self) -> Option<Rank> {
        if self.len == 0 {
            return None;
        }
        self.levels
            .iter()
            .find(|(_, level)| level.lanes.iter().any(|l| l.live > 0 && !l.congested))
            .map(|(rank, _)| rank.0)
    }

    /// Takes the next task; `tasks` distinguishes live keys from stale ones.
    pub fn pop(&mut self, tasks: &TaskTable) -> Option<TaskKey> {
        if self.len == 0 {
            return None;
        }
        for (rank, level) in &mut self.levels {
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
                            let rank = *rank;
                            self.prune(rank);
                        }
                        return Some(key);
                    }
                }
            }
        }
        None
    }

    /// Drops an empty level unless it is the only one, so that ranks used once do not pile up.
    fn prune(&mut self, rank: Reverse<Rank>) {
        if self.levels.len() > 1 {
            self.levels.remove(&rank);
        }
    }

    /// Accounts for a task that is no longer queued; call it once the task's state says so.
    pub fn removed(&mut self, rank: Rank, client: ClientId, tasks: &TaskTable) {
        let rank = Reverse(rank);
        let Some(level) = self.levels.get_mut(&rank) else {
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
            self.prune(rank);
        }
    }

    pub fn set_congested(&mut self, client: ClientId, congested: bool) {
        for level in self.levels.values_mut() {
            for lane in level.lanes.iter_mut().filter(|l| l.client == client) {
                lane.congested = congested;
            }
        }
    }

    /// Every queued key: highest rank first, then client by client.
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
            .all(|l| l.live == l.lanes.iter().map(|lane| lane.live).sum::<usize>());
        lanes_agree && levels_agree && total == self.len
    }
}
