//! Engines that are released: they take no new tasks, finish what they have, and leave. A host leaves with its last
//! engine if it is released or its time is nearly over.

use broadleaf_proto::control::{ControlReply, Event, TargetSet};
use broadleaf_proto::ids::{HostId, TaskKey};

use super::Controller;
use crate::engines::State;
use crate::tasks::targets::Targets;
use crate::{Nanos, Output};

/// Number of engines that a refusal lists individually.
const MAX_NAMED: usize = 16;

impl Controller {
    /// Releases engines, and hosts together with all their engines. All are released or none:
    /// without `stateless`, none of them may hold a client's data.
    pub(super) fn drain(
        &mut self,
        now: Nanos,
        targets: &TargetSet,
        hosts: &[HostId],
        within_ns: Option<Nanos>,
        stateless: bool,
        out: &mut Vec<Output>,
    ) -> ControlReply {
        if let Some(host) = hosts.iter().find(|host| !self.is_relay_up(**host)) {
            return ControlReply::Failed(format!("no such host: {}", host.0));
        }
        let listed = Targets::of(targets).unwrap_or_else(|| {
            let there = self.engines.iter().filter(|e| !e.is_gone());
            Targets::of_sorted(there.map(|e| e.id().0))
        });
        let n = self.engines.len();
        if let Some(stranger) = listed.iter().find(|id| *id as usize >= n) {
            return ControlReply::Failed(format!("no such engine: {stranger}"));
        }
        let of_hosts = (0..n).filter(|index| hosts.contains(&self.engines[*index].host()));
        let named = listed.iter().map(|id| id as usize).chain(of_hosts);
        let mut chosen: Vec<usize> = named.flat_map(|i| self.of_same_world(i)).collect();
        chosen.sort_unstable();
        chosen.dedup();
        if !stateless && let Some(refusal) = self.data_of(&chosen) {
            return ControlReply::Failed(refusal);
        }
        for host in hosts {
            self.hosts.release(*host);
        }
        let stop_by = within_ns.map(|ns| now.saturating_add(ns));
        for index in chosen {
            self.drain_engine(now, index, stop_by, out);
        }
        ControlReply::Done
    }

    /// Why these engines may not be released, if one holds data.
    fn data_of(&self, chosen: &[usize]) -> Option<String> {
        let engines = chosen.iter().map(|index| &self.engines[*index]);
        let holding = engines.filter(|e| e.is_up() && e.may_hold_data());
        let names: Vec<String> = holding.map(|e| e.id().0.to_string()).collect();
        if names.is_empty() {
            return None;
        }
        let more = names.len().saturating_sub(MAX_NAMED);
        let listed = names[..names.len() - more].join(", ");
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        Some(format!(
            "nothing was drained: clients may have left data on engines {listed}{more}, which were sent tasks by name \
             (push, scatter, execute, apply of a direct view); gather it, or pass stateless=True to discard it"
        ))
    }

    /// A host's time is nearly over: it leaves with its last engine.
    pub(super) fn on_host_timer(&mut self, now: Nanos, host: HostId, out: &mut Vec<Output>) {
        self.hosts.clear_timer(host);
        self.hosts.release(host);
        for index in 0..self.engines.len() {
            if self.engines[index].host() == host {
                self.drain_engine(now, index, None, out);
            }
        }
        // An MPI world that is partly on other hosts ends as a whole.
        for index in 0..self.engines.len() {
            if self.engines[index].state() == State::Draining {
                for other in self.of_same_world(index) {
                    self.drain_engine(now, other, None, out);
                }
            }
        }
    }

    /// An engine takes no new tasks from now on. At `stop_by` it is stopped even if it has not finished.
    fn drain_engine(
        &mut self,
        now: Nanos,
        index: usize,
        stop_by: Option<Nanos>,
        out: &mut Vec<Output>,
    ) {
        let engine = &mut self.engines[index];
        engine.release();
        match engine.state() {
            State::Up => {
                engine.begin_draining();
                let id = engine.id();
                // Latest first: each goes to the front of its queue, which thus keeps its order.
                let movable: Vec<(u32, TaskKey)> = engine.offers().movable().collect();
                for (offer, key) in movable.into_iter().rev() {
                    self.take_back(id, key, offer, out);
                }
                self.supervisor.note_draining();
                self.clients.announce(&Event::EngineLeaving(id), out);
            }
            State::Starting { .. } | State::Restarting => {
                self.supervisor.note_draining();
                self.stop_engine(now, index, false, out);
            }
            State::Gone => self.supervisor.note_draining(), // Perhaps the last of its host.
            State::Draining | State::Leaving | State::Dying => {}
        }
        let engine = &self.engines[index];
        let sooner = |at: &Nanos| engine.timer_at() == 0 || *at < engine.timer_at();
        if engine.state() == State::Draining
            && let Some(at) = stop_by.filter(sooner)
        {
            self.set_engine_timer(index, at);
        }
    }

    /// Makes engines leave that have finished, and hosts leave that have no engines left.
    pub(super) fn release_drained(&mut self, now: Nanos, out: &mut Vec<Output>) {
        if !self.supervisor.some_drain() {
            return;
        }
        let mut world = 0..0;
        for index in self.engines.drained() {
            let index = index as usize;
            if world.contains(&index) {
                continue;
            }
            // The ranks of a world end together.
            world = self.of_same_world(index);
            let is_done = |i: usize| {
                let engine = &self.engines[i];
                !engine.is_up() && engine.is_drained()
            };
            if world.clone().all(is_done) {
                for rank in world.clone() {
                    if self.engines[rank].state() == State::Draining {
                        self.stop_engine(now, rank, false, out);
                    }
                }
            }
        }
        let releasing: Vec<HostId> = self.hosts.releasing().collect();
        for host in releasing {
            if self.engines.n_present(Some(host)) == 0 {
                self.hosts.let_go(host);
                out.push(Output::Release { host });
            }
        }
        let some_drain = self.engines.n_draining() > 0 || self.hosts.releasing().next().is_some();
        self.supervisor.set_draining(some_drain);
    }
}
