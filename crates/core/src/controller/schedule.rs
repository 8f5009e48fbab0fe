//! Placement: which ready task goes to which engine, and taking tasks back for idle engines.

use broadleaf_proto::host::EngineOrder;
use broadleaf_proto::ids::{EngineId, FunctionId, HostId, TaskKey};
use broadleaf_proto::task::AssignRecord;
use smallvec::SmallVec;

use super::Controller;
use crate::engines::offers::Claim;
use crate::engines::{Choice, Engine};
use crate::placement::groups::ALL;
use crate::tasks::targets::Targets;
use crate::tasks::{GroupId, Rank};
use crate::{Nanos, Output};

/// Idle engines for which nothing is found to take back, before looking at others is left for another time.
const MAX_VAIN_THIEVES: usize = 16;
/// Engines with tasks to take back that are looked at for an idle one.
const MAX_VICTIMS: usize = 16;

/// Who may take tasks from an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Robbed {
    /// Any idle engine.
    Always,
    /// One that may be woken for short tasks.
    IfAnotherMayWake,
}

impl Controller {
    /// Places ready tasks; called once after a batch of inputs, and after [`Self::on_deadline`].
    pub fn schedule(&mut self, now: Nanos, out: &mut Vec<Output>) {
        self.timers.end_look(Nanos::MAX);
        self.place_pinned(now, out);
        self.release_drained(now, out);
        if self.config.steal {
            self.engines.note_late(now, self.config.steal_after_ns);
        }
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
            let key = self.engines[index as usize].pinned_mut().pop(&self.tasks);
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
            let Some(least_loaded) = self.engines.least_loaded(depth) else {
                break;
            };
            let Some(key) = self.groups.queue(ALL).pop(&self.tasks) else {
                break;
            };
            let Some(engine) = self.engine_for(key, least_loaded) else {
                self.put_back(key);
                break;
            };
            self.offer(now, engine, key, out);
        }
    }

    /// The engine for a task that may run anywhere: the least loaded one, unless it is short. `None` if it had better wait
    /// until an engine that is awake has room, or is found to be stuck.
    fn engine_for(&mut self, key: TaskKey, least_loaded: u32) -> Option<u32> {
        let function = self.tasks.at(key).function();
        if self.short_ns(function) == 0 {
            let telling = self.functions.tells_more(function).filter(|id| {
                let engine = &self.engines[id.0 as usize];
                engine.is_idle() && engine.offers().is_empty() && engine.has_room()
            });
            return Some(telling.map_or(least_loaded, |id| id.0));
        }
        match self.engines.choose_for_short(self.config.wake_after_ns) {
            Choice::Engine(engine) => Some(engine),
            Choice::Any => Some(least_loaded),
            Choice::Wait => None,
        }
    }

    /// How long a function's tasks take if that is known to be less than a wake-up costs; 0 if not. Without stealing none
    /// counts as short: nobody could help those behind one that is not.
    fn short_ns(&self, function: u32) -> u32 {
        if self.config.steal {
            (self.functions).short_ns(function, self.config.wake_cost_ns)
        } else {
            0
        }
    }

    /// Puts a task back that no engine is to get yet.
    fn put_back(&mut self, key: TaskKey) {
        let task = self.tasks.at(key);
        let rank = task.rank(&self.options);
        if let Some(client) = task.client() {
            self.groups.queue(ALL).put_back(rank, client, key);
        }
        let late_at = self.engines.next_late_at(self.config.steal_after_ns);
        self.timers.look_again(late_at);
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
            let engine = match (engine, key) {
                (Some(least_loaded), Some(key)) if group == ALL => {
                    self.engine_for(key, least_loaded)
                }
                (engine, _) => engine,
            };
            match (engine, key) {
                (Some(engine), Some(key)) => self.offer(now, engine, key, out),
                (None, Some(key)) => self.put_back(key),
                (_, None) => {}
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
        let hosts = &self.hosts;
        let avoid = key.avoid.filter(|avoid| {
            let is_other = |e: &Engine| {
                e.id().0 != *avoid
                    && key.allows(e.id().0)
                    && hosts.fits(e.host(), key.needs_ns, now)
            };
            self.engines.some_up(key.only.as_ref(), is_other)
        });
        let allows = |engine: &Engine| {
            avoid != Some(engine.id().0)
                && key.allows(engine.id().0)
                && hosts.fits(engine.host(), key.needs_ns, now)
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
        let function = self.tasks.at(key).function();
        let short_ns = self.short_ns(function);
        let task = self.tasks.at(key);
        let engine = &mut self.engines[engine_index as usize];
        let id = engine.id();
        let is_travelling =
            engine.host() != HostId::CONTROLLER && !task.payload().segments.is_empty();
        self.totals.assigned += 1;
        let offer = engine.offer(key, task, short_ns, self.totals.assigned);
        task.offer(id, offer, now, is_travelling);
        let (options, depth) = (task.options(), task.depth());
        let payload = task.payload().clone();
        if !engine.knows(function) {
            engine.learn(function);
            self.functions.note_taught(function, id.0);
            let record = self.functions.record(function);
            out.push(Output::Function { engine: id, record });
        }
        if engine.offers().is_head(key, offer) {
            engine.begin_head(now);
            self.time_head(now, id);
        }
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
    /// alone until its head has taken too long, and so is one of short tasks if no more engines are to be awake.
    fn steal(&mut self, now: Nanos, out: &mut Vec<Output>) {
        if !self.engines.may_steal() {
            return;
        }
        let patience_ns = self.config.steal_after_ns;
        let mut n_vain = 0;
        let mut previous = None;
        while let Some(thief) = self.engines.idle_after(previous) {
            previous = Some(thief);
            let mut victims = self.engines.longest_tails(true, MAX_VICTIMS);
            let others = self.engines.longest_tails(false, MAX_VICTIMS);
            let wakes = self.engines.can_wake(Some(thief));
            let worth = others.into_iter().filter_map(|victim| {
                let when = self.is_worth_robbing(&self.engines[victim as usize])?;
                Some((victim, when == Robbed::Always || wakes))
            });
            let worth: SmallVec<[(u32, bool); 16]> = worth.collect();
            let is_any_for_others = !worth.is_empty() && self.engines.can_wake(None);
            let for_this = worth.into_iter().filter(|(_, is_for_this)| *is_for_this);
            victims.extend(for_this.map(|(victim, _)| victim));
            if victims.is_empty() && !is_any_for_others {
                break;
            }
            let mut victims = victims.into_iter().map(EngineId);
            if !victims.any(|victim| self.steal_from(now, victim, EngineId(thief), out)) {
                n_vain += 1;
                // The rest, too, is looked at again then.
                self.timers.look_again(Some(now + patience_ns));
                if n_vain == MAX_VAIN_THIEVES {
                    break;
                }
            }
        }
        if self.engines.may_steal() {
            let late_at = self.engines.next_late_at(patience_ns);
            self.timers.look_again(late_at);
        }
    }

    /// Whether an engine has enough waiting behind its task that moving some of it pays off, although that task has not
    /// run for long; and for whom.
    fn is_worth_robbing(&self, engine: &Engine) -> Option<Robbed> {
        let patience_ns = self.config.steal_after_ns;
        if engine.offers().n_long() > 0 {
            let is_worth = engine.tail_ns(engine.mean_task_ns()) >= patience_ns;
            return is_worth.then_some(Robbed::Always);
        }
        // They were short when they were placed; what counts is what will become of them once they are taken back.
        let (_, latest) = engine.offers().stealable().next()?;
        let function = self.tasks.get(latest)?.function();
        let tail_ns = engine.tail_ns(self.functions.recent_ns(function));
        if self.short_ns(function) == 0 {
            return (tail_ns >= patience_ns).then_some(Robbed::Always);
        }
        // Below the bound they would come back to an engine that is awake.
        let is_worth = tail_ns >= patience_ns.max(2 * self.config.wake_after_ns);
        is_worth.then_some(Robbed::IfAnotherMayWake)
    }

    fn steal_from(
        &mut self,
        now: Nanos,
        victim: EngineId,
        thief: EngineId,
        out: &mut Vec<Output>,
    ) -> bool {
        let victim_engine = &self.engines[victim.0 as usize];
        let half = victim_engine.n_stealable().div_ceil(2) as usize;
        let taken: Vec<(u32, TaskKey)> = victim_engine
            .offers()
            .stealable()
            .filter(|(_, key)| self.may_move_to(now, *key, thief))
            .take(half)
            .collect();
        for (offer, key) in &taken {
            let offers = self.engines[victim.0 as usize].offers_mut();
            offers.set_claim(*offer, Claim::Revoking(Some(thief)));
            out.push(Output::Order(EngineOrder::Revoke {
                engine: victim,
                key: *key,
                offer: *offer,
            }));
        }
        self.totals.steals += taken.len() as u64;
        self.engines[thief.0 as usize].begin_steals(taken.len() as u32);
        !taken.is_empty()
    }

    /// Whether an offered load-balanced task could run on another engine, and its client can take the result.
    pub(super) fn may_move_to(&self, now: Nanos, key: TaskKey, engine: EngineId) -> bool {
        let Some(task) = self.tasks.get(key) else {
            return false;
        };
        let congested = task.client().is_some_and(|c| self.clients.is_congested(c));
        let set = self.options.at(task.options());
        let targets = set.targets.as_ref();
        !congested
            && (self.hosts).fits(self.host_of(engine), set.options.timeout_ns, now)
            && self.engines[engine.0 as usize]
                .offers()
                .accepts(task.depth())
            && (task.restrictions()).is_none_or(|restrictions| restrictions.allows(engine))
            && targets.is_none_or(|t| t.contains(engine.0))
    }
}
