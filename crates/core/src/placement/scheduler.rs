//! Placement: which ready task goes to which engine, and taking tasks back for idle engines.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use broadleaf_proto::ids::{EngineId, FunctionId, HostId, TaskKey};
use broadleaf_proto::task::AssignRecord;

use crate::engines::State;
use crate::placement::offers::Claim;
use crate::placement::ready::{GroupId, Rank};
use crate::tasks::TaskState;
use crate::tasks::options::ALL;
use crate::{Controller, Nanos, Output};

/// Engines with room, ordered by load and last use, least loaded first; loads may be outdated and are checked when
/// taken.
type Heap = BinaryHeap<Reverse<(u32, u64, u32)>>;

impl Controller {
    /// Places ready tasks; called once after a batch of inputs, and after [`Self::on_deadline`].
    pub fn schedule(&mut self, now: Nanos, out: &mut Vec<Output>) {
        self.place_pinned(now, out);
        self.release_drained(now, out);
        if self.groups.len() > 1 {
            self.place_groups(now, out);
            self.groups.prune();
        } else if self.groups.at(ALL).queue.len() > 0 {
            self.place_unrestricted(now, out);
        }
        if self.config.steal {
            self.steal(now, out);
        }
    }

    /// Tasks of mode `Each` go before load-balanced ones.
    fn place_pinned(&mut self, now: Nanos, out: &mut Vec<Output>) {
        for index in 0..self.engines.len() {
            while self.engines[index].pinned.len() > 0 && self.engines[index].has_room_for_pinned()
            {
                if !self.may_take_pinned(index) {
                    break;
                }
                let Some(key) = self.engines[index].pinned.pop(&self.tasks) else {
                    break; // All of its clients are congested.
                };
                self.offer(now, index as u32, key, out);
            }
        }
    }

    fn place_unrestricted(&mut self, now: Nanos, out: &mut Vec<Output>) {
        let (mut heap, some_wait) = self.heap_of_engines();
        loop {
            let depth = if some_wait {
                let top = self.groups.at(ALL).queue.top_rank();
                top.map_or(0, |rank| rank.depth)
            } else {
                u16::MAX // Every engine accepts any depth, so it is not checked.
            };
            let Some(engine) = self.least_loaded(&mut heap, depth) else {
                break;
            };
            let Some(key) = self.groups.queue(ALL).pop(&self.tasks) else {
                break;
            };
            self.offer(now, engine, key, out);
            self.put_back(&mut heap, engine);
        }
        self.heap = heap.into_vec();
    }

    /// Whether an engine may get the next of its own tasks: not while earlier ones are being taken back.
    fn may_take_pinned(&self, index: usize) -> bool {
        let engine = &self.engines[index];
        engine.returning == 0
            && (engine.stack.is_empty()
                || (engine.pinned.top_rank()).is_some_and(|rank| engine.accepts(rank.depth)))
    }

    /// With several groups, the highest rank goes first, and at equal rank the group of all engines goes last.
    fn place_groups(&mut self, now: Nanos, out: &mut Vec<Output>) {
        let (mut heap, _) = self.heap_of_engines();
        let mut candidates: Vec<(Rank, GroupId)> = self
            .groups
            .iter()
            .filter_map(|(id, group)| Some((group.queue.top_rank()?, id)))
            .collect();
        while let Some(best) = (0..candidates.len()).max_by_key(|i| candidates[*i]) {
            let (Rank { depth, .. }, group) = candidates[best];
            let engine = if group == ALL {
                self.least_loaded(&mut heap, depth)
            } else {
                self.least_loaded_of(now, group, depth)
            };
            let key = engine.and_then(|_| self.groups.queue(group).pop(&self.tasks));
            if let (Some(engine), Some(key)) = (engine, key) {
                self.offer(now, engine, key, out);
                self.put_back(&mut heap, engine);
            }
            match self.groups.at(group).queue.top_rank() {
                Some(rank) if engine.is_some() && key.is_some() => {
                    candidates[best].0 = rank;
                }
                _ => drop(candidates.swap_remove(best)),
            }
        }
        self.heap = heap.into_vec();
    }

    /// The engines with room, and whether some of them have waiting tasks.
    fn heap_of_engines(&mut self) -> (Heap, bool) {
        let mut entries = core::mem::take(&mut self.heap);
        entries.clear();
        let mut some_wait = false;
        for engine in self.engines.iter().filter(|e| e.has_room()) {
            some_wait |= !engine.stack.is_empty();
            entries.push(Reverse((engine.load(), engine.last_used, engine.id.0)));
        }
        (BinaryHeap::from(entries), some_wait)
    }

    /// Takes the engine with the fewest outstanding tasks, and among equals the least recently used. An engine that
    /// does not accept tasks of this depth is dropped from the heap, because later tasks are not deeper.
    fn least_loaded(&self, heap: &mut Heap, depth: u16) -> Option<u32> {
        while let Some(Reverse((load, last_used, id))) = heap.pop() {
            let engine = &self.engines[id as usize];
            if engine.has_room()
                && engine.accepts(depth)
                && (engine.load(), engine.last_used) == (load, last_used)
            {
                return Some(id);
            }
        }
        None
    }

    fn put_back(&self, heap: &mut Heap, id: u32) {
        let engine = &self.engines[id as usize];
        if engine.has_room() {
            heap.push(Reverse((engine.load(), engine.last_used, id)));
        }
    }

    /// As [`Self::least_loaded`], within a restricted group.
    fn least_loaded_of(&self, now: Nanos, group: GroupId, depth: u16) -> Option<u32> {
        let key = &self.groups.at(group).key;
        let allowed = self.engines.iter();
        let allowed = allowed.filter(|e| key.allows(e.id.0) && self.fits(e.id, key.needs_ns, now));
        let elsewhere = allowed
            .clone()
            .any(|e| e.state == State::Up && key.avoid != Some(e.id.0));
        allowed
            .filter(|e| e.has_room() && e.accepts(depth))
            .filter(|e| !(elsewhere && key.avoid == Some(e.id.0)))
            .min_by_key(|e| (e.load(), e.last_used))
            .map(|e| e.id.0)
    }

    /// Offers a queued task to an engine that has room.
    fn offer(&mut self, now: Nanos, engine_index: u32, key: TaskKey, out: &mut Vec<Output>) {
        let task = self.tasks.at(key);
        let engine = &mut self.engines[engine_index as usize];
        let id = engine.id;
        task.is_travelling = engine.host != HostId::CONTROLLER && !task.payload.segments.is_empty();
        let offer = engine.offer(key, task.pinned.is_none(), task.depth);
        task.state = TaskState::Offered(id, offer);
        engine.holds_data |= task.pinned.is_some();
        let (function, options, depth) = (task.function, task.options, task.depth);
        let payload = task.payload.clone();
        self.tick += 1;
        engine.last_used = self.tick;
        if !engine.knows(function) {
            engine.learn(function);
            let record = self.functions.record(function);
            out.push(Output::Function { engine: id, record });
        }
        let is_head = if engine.stack.is_empty() {
            engine.outstanding == 1
        } else {
            engine.head() == Some((key, offer))
        };
        if is_head {
            engine.head_since = now;
            self.time_head(now, id);
        }
        self.totals.assigned += 1;
        let record = AssignRecord {
            key,
            offer,
            function: FunctionId(function),
            depth,
            payload,
        };
        let topology = self.options.at(options).options.topology;
        out.push(Output::Assign {
            engine: id,
            record,
            topology,
        });
    }

    /// For each idle engine, takes back about half of what waits behind the running task of the engine with the longest
    /// tail. So a long task never holds up those behind it. A tail that will be done before moving it pays off is left
    /// alone until its head has taken too long.
    fn steal(&mut self, now: Nanos, out: &mut Vec<Output>) {
        self.steal_at = None;
        for index in 0..self.engines.len() {
            let thief = &self.engines[index];
            if thief.state != State::Up || thief.outstanding > 0 || thief.stealing > 0 {
                continue;
            }
            let patience_ns = self.config.steal_after_ns;
            let mut tails: smallvec::SmallVec<[_; 16]> = smallvec::SmallVec::new();
            for engine in &self.engines {
                let n = if thief.stack.is_empty() {
                    engine.n_stealable()
                } else {
                    engine.n_stealable_nested()
                };
                if n == 0 {
                    continue;
                }
                let due = engine.head_since + patience_ns;
                if due <= now || engine.tail_ns() >= patience_ns {
                    tails.push((n, engine.id));
                } else {
                    self.steal_at = Some(self.steal_at.map_or(due, |at| at.min(due)));
                }
            }
            if tails.is_empty() {
                if thief.stack.is_empty() {
                    return;
                }
                continue;
            }
            tails.sort_unstable_by_key(|(n, id)| (Reverse(*n), *id));
            let thief = thief.id;
            for (_, victim) in tails {
                if self.steal_from(now, victim, thief, out) {
                    break;
                }
            }
        }
    }

    fn steal_from(
        &mut self,
        now: Nanos,
        victim: EngineId,
        thief: EngineId,
        out: &mut Vec<Output>,
    ) -> bool {
        let books = &self.engines[victim.0 as usize];
        let half = books.n_stealable().div_ceil(2) as usize;
        let taken: Vec<(u32, TaskKey)> = books
            .stealable()
            .filter(|(_, key)| self.may_move_to(now, *key, thief))
            .take(half)
            .collect();
        for (offer, key) in &taken {
            let books = &mut self.engines[victim.0 as usize];
            books.set_claim(*offer, Claim::Revoking(Some(thief)));
            out.push(Output::Revoke {
                engine: victim,
                key: *key,
                offer: *offer,
            });
        }
        self.totals.steals += taken.len() as u64;
        self.engines[thief.0 as usize].stealing += taken.len() as u32;
        !taken.is_empty()
    }

    /// Whether an offered load-balanced task could run on another engine, and its client can take the result.
    fn may_move_to(&self, now: Nanos, key: TaskKey, engine: EngineId) -> bool {
        let Some(task) = self.tasks.get(key) else {
            return false;
        };
        let congested = task
            .client
            .and_then(|c| self.clients.get(&c))
            .is_some_and(|c| c.congested);
        let set = self.options.at(task.options);
        let targets = set.targets.as_ref();
        !congested
            && self.fits(engine, set.options.timeout_ns, now)
            && self.engines[engine.0 as usize].accepts(task.depth)
            && task.avoid != Some(engine)
            && !task.tried.contains(&engine.0)
            && (!task.follows || task.followed.contains(&engine.0))
            && targets.is_none_or(|t| t.contains(engine.0))
    }
}
