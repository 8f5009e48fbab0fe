//! Hosts: which engines live where, and what the loss of a host means for them.
//!
//! The controller's own host is number 0 and has a fork server of its own; every other one is a relay, which starts
//! engines as long as it is connected.

use broadleaf_proto::control::{DeathCause, RefusalReason};
use broadleaf_proto::ids::{EngineId, HostId, TaskKey};
use broadleaf_proto::limits::{MAX_HOST_ENGINES, MAX_HOST_NAME_BYTES};

use super::Controller;
use crate::engines::host_table::NewHost;
use crate::engines::unclaimed::Unclaimed;
use crate::engines::{Engine, State};
use crate::journal::Fact;
use crate::tasks::TaskState;
use crate::tasks::targets::MAX_ENGINES;
use crate::timers::Timer;
use crate::{Nanos, Output};

impl Controller {
    /// A relay has connected and wants engines. It first fills slots left by a host of the same
    /// name.
    pub(super) fn on_host_up(
        &mut self,
        now: Nanos,
        host: HostId,
        NewHost {
            name,
            n_engines,
            n_cores,
            ends_in_ns,
        }: NewHost,
        out: &mut Vec<Output>,
    ) {
        if self.supervisor.is_stopping() || host == HostId::CONTROLLER || self.is_host_up(host) {
            self.totals.ignored += 1;
            return;
        }
        if name.len() > MAX_HOST_NAME_BYTES {
            self.expel(host, out);
            return;
        }
        let n_engines = n_engines.min(MAX_HOST_ENGINES);
        self.engines.set_cores(host, n_cores);
        self.note(out, || Fact::HostUp(host, name.clone()));
        let former = self.hosts.add(now, host, name, ends_in_ns);
        self.expect_end(now, host, out);
        let mut slots: Vec<usize> = (0..self.engines.len())
            .filter(|index| former.contains(&self.engines[*index].host()))
            .collect();
        for index in &slots {
            self.engines[*index].move_to(host);
        }
        slots.retain(|index| self.engines[*index].guest().is_none());
        let room = MAX_ENGINES as usize - self.engines.len() + slots.len();
        while slots.len() < (n_engines as usize).min(room) {
            let index = self.engines.len();
            let mut engine = Engine::new(EngineId(index as u32), &self.config);
            engine.move_to(host);
            self.engines.push(engine);
            slots.push(index);
        }
        for index in slots.into_iter().take(n_engines as usize) {
            if self.engines[index].state() == State::Gone {
                self.start(now, index, out);
            }
        }
    }

    /// If the host ends by itself, its engines are drained before that, and queued long tasks go to other hosts.
    pub(super) fn expect_end(&mut self, now: Nanos, host: HostId, out: &mut Vec<Output>) {
        let Some((ends_at, had_ns)) = self.hosts.time_of(host) else {
            return;
        };
        let notice_ns = self.config.drain_ns.min(had_ns / 10);
        let at = ends_at.saturating_sub(notice_ns).max(now + 1);
        self.hosts.set_timer(host, at);
        self.timers.set(at, Timer::Host(host));
        if self.hosts.n_ending() == 1 {
            self.regroup_timed(out);
        }
    }

    /// The host was told that it will be ended, perhaps before its time: its engines are drained now.
    pub(super) fn on_notice(
        &mut self,
        now: Nanos,
        host: HostId,
        ends_in_ns: Nanos,
        out: &mut Vec<Output>,
    ) {
        let ended_by_itself = self.hosts.time_of(host).is_some();
        let timer_at = self.hosts.end_within(now, host, ends_in_ns);
        if timer_at != 0 {
            self.timers.cancel(timer_at, Timer::Host(host));
        }
        if !ended_by_itself && self.hosts.n_ending() == 1 {
            self.regroup_timed(out);
        }
        self.on_host_timer(now, host, out);
    }

    /// A relay does not answer, or does so again. Its engines keep what they have; what could be begun elsewhere stays with
    /// them, since nobody can say what they have begun.
    pub(super) fn on_host_away(&mut self, host: HostId, is_away: bool) {
        if !self.hosts.is_up(host) {
            self.totals.ignored += 1;
            return;
        }
        for index in 0..self.engines.len() {
            if self.engines[index].host() == host {
                self.engines[index].set_away(is_away);
            }
        }
    }

    /// A relay's link is gone, and with it every engine there. Their offers count as started: nobody can say what they
    /// claimed, and losing a task is better than running it twice.
    pub(super) fn on_host_down(&mut self, now: Nanos, host: HostId, out: &mut Vec<Output>) {
        let Some(timer_at) = self.hosts.lose(host) else {
            self.totals.ignored += 1;
            return;
        };
        self.note(out, || Fact::HostDown(host));
        if timer_at != 0 {
            self.timers.cancel(timer_at, Timer::Host(host));
        }
        for index in 0..self.engines.len() {
            let engine = &mut self.engines[index];
            if engine.host() == host {
                engine.set_away(false);
            }
            if engine.host() != host || engine.is_gone() {
                continue;
            }
            engine.note_exit(DeathCause::HostGone, String::new());
            if engine.state() == State::Restarting {
                self.give_up(index, out); // Its death was reported before.
                continue;
            }
            if engine.is_connected() {
                self.drop_link(now, index, &Unclaimed::default(), out);
            }
            self.bury(now, index, out);
        }
        self.engines.forget_host(host);
        // After the deaths: with a reply, a client knows which engines there are.
        self.observers.drop_host(host, out);
        // Without slots there is nothing for a later host of its name to take over.
        if self.engines.iter().all(|engine| engine.host() != host) {
            self.hosts.forget(host);
        }
    }

    /// The arguments of an offered task have arrived on its engine's host.
    pub(super) fn on_delivered(&mut self, now: Nanos, engine: EngineId, key: TaskKey) {
        match self.tasks.state(key) {
            Some(TaskState::Offered(at, _)) if at == engine => {
                self.tasks.at(key).arrive();
                let state = &mut self.engines[engine.0 as usize];
                if state.head().is_some_and(|(head, _)| head == key) {
                    state.begin_head(now);
                    self.time_head(now, engine);
                }
            }
            _ => self.totals.ignored += 1,
        }
    }

    /// Payload of an offered task could not be moved: it will not run, or its value is not available.
    pub(super) fn on_undeliverable(
        &mut self,
        now: Nanos,
        engine: EngineId,
        key: TaskKey,
        reason: String,
        out: &mut Vec<Output>,
    ) {
        let offered = self.tasks.get(key).map(|t| (t.state(), t.client()));
        match offered {
            Some((TaskState::Offered(at, offer), client)) if at == engine => {
                self.unoffer(now, key, engine, offer);
                if client.is_some() {
                    self.refuse(key, &RefusalReason::Undeliverable(reason), out);
                } else {
                    self.discard(key, out);
                }
            }
            _ => self.totals.ignored += 1,
        }
    }
}
