//! Placement: which ready task goes to which engine, and taking tasks back for idle engines.

use broadleaf_proto::ids::{EngineId, FunctionId, HostId, TaskKey};
use broadleaf_proto::task::AssignRecord;

use crate::engines::{Engine, State};
use crate::placement::offers::Claim;
use crate::placement::ready::{GroupId, Rank};
use crate::tasks::TaskState;
use crate::tasks::options::ALL;
use crate::tasks::targets::Targets;
use crate::{Controller, Nanos, Output};

/// Idle engines for which nothing is found to take back, before looking at others is left for another time.
const MAX_VAIN_THIEVES: usize = 16;
/// Engines with tasks to take back that are looked at for an idle one.
const MAX_VICTIMS: usize = 16;

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
        while let Some(index) = self.engines.next_for_pinned() {
            let key = self.engines[index as usize].pinned.pop(&self.tasks);
            let key = key.expect("invariant: an engine that may get a task of its own has one");
            self.offer(now, index, key, out);
        }
    }

    fn place_unrestricted(&mut self, now: Nanos, out: &mut Vec<Output>) {
        loop {
            let depth = if self.engines.some_wait() {
                let top = self.groups.at(ALL).queue.top_rank();
                top.map_or(0, |rank| rank.depth)
            } else {
                u16::MAX // Every engine accepts any depth, so it is not checked.
            };
            let Some(engine) = self.engines.least_loaded(depth) else {
                break;
            };
            let Some(key) = self.groups.queue(ALL).pop(&self.tasks) else {
                break;
            };
            self.offer(now, engine, key, out);
        }
    }

    /// With several groups, the highest rank goes first, and at equal rank the group of all engines goes last.
    fn place_groups(&mut self, now: Nanos, out: &mut Vec<Output>) {
        let mut candidates: Vec<(Rank, GroupId)> = self
            .groups
            .iter()
            .filter_map(|(id, group)| Some((group.queue.top_rank()?, id)))
            .collect();
        while let Some(best) = (0..candidates.len()).max_by_key(|i| candidates[*i]) {
            let (Rank { depth, .. }, group) = candidates[best];
            let engine = if group == ALL {
                self.engines.least_loaded(depth)
            } else {
                self.least_loaded_of(now, group, depth)
            };
            let key = engine.and_then(|_| self.groups.queue(group).pop(&self.tasks));
            if let (Some(engine), Some(key)) = (engine, key) {
                self.offer(now, engine, key, out);
            }
            match self.groups.at(group).queue.top_rank() {
                Some(rank) if engine.is_some() && key.is_some() => {
                    candidates[best].0 = rank;
                }
                _ => drop(candidates.swap_remove(best)),
            }
        }
    }

    /// As [`crate::engines::Engines::least_loaded`], within a restricted group.
    fn least_loaded_of(&mut self, now: Nanos, group: GroupId, depth: u16) -> Option<u32> {
        let key = &self.groups.at(group).key;
        // Tried again, a task goes to another engine if there is one.
        let avoid = key.avoid.filter(|avoid| {
            let others = self.engines.iter().filter(|e| e.id.0 != *avoid);
            let mut up = others.filter(|e| e.state == State::Up);
            up.any(|e| key.allows(e.id.0) && self.hosts.fits(e.host, key.needs_ns, now))
        });
        let hosts = &self.hosts;
        let allows = |engine: &Engine| {
            avoid != Some(engine.id.0)
                && key.allows(engine.id.0)
                && hosts.fits(engine.host, key.needs_ns, now)
        };
        let n_only = key.only.as_ref().map_or(usize::MAX, Targets::len);
        let mut only = key.only.as_ref().map(Targets::iter);
        let only = only
            .as_mut()
            .map(|only| only as &mut dyn Iterator<Item = u32>);
        self.engines.least_loaded_of(depth, only, n_only, allows)
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
        if !self.engines.may_steal() {
            return;
        }
        let patience_ns = self.config.steal_after_ns;
        let mut n_vain = 0;
        let mut previous = None;
        while let Some(index) = self.engines.idle_after(previous) {
            previous = Some(index);
            let mut due_at: Option<Nanos> = None;
            let mut is_done = false;
            for victim in self.engines.longest_tails(MAX_VICTIMS) {
                let engine = &self.engines[victim as usize];
                let due = engine.head_since + patience_ns;
                if due > now && engine.tail_ns() < patience_ns {
                    due_at = Some(due_at.map_or(due, |at| at.min(due)));
                } else if self.steal_from(now, EngineId(victim), EngineId(index), out) {
                    is_done = true;
                    break;
                }
            }
            if !is_done {
                n_vain += 1;
                // The rest, too, is looked at again then.
                let again = due_at.unwrap_or(now + patience_ns);
                self.steal_at = Some(self.steal_at.map_or(again, |at| at.min(again)));
                if n_vain == MAX_VAIN_THIEVES {
                    return;
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
            && (self.hosts).fits(self.host_of(engine), set.options.timeout_ns, now)
            && self.engines[engine.0 as usize].accepts(task.depth)
            && (task.restrictions()).is_none_or(|restrictions| restrictions.allows(engine))
            && targets.is_none_or(|t| t.contains(engine.0))
    }
}
