//! The deaths of engines: each is certified; the engine's tasks are moved, retried or lost; its
//! slot is filled again.
//!
//! A death arrives as two notices in either order: the link closes, and the fork server sees the process exit. Each
//! waits for the other for a limited time.

use broadleaf_proto::control::{Event, RefusalReason};
use broadleaf_proto::ids::{EngineId, TaskKey};
use broadleaf_proto::task::Status;

use super::Controller;
use crate::engines::Engine;
use crate::engines::unclaimed::Unclaimed;
use crate::results::Outcome;
use crate::tasks::dependencies::NOWHERE;
use crate::tasks::{Stopping, TaskState};
use crate::{Nanos, Output};

impl Controller {
    pub(super) fn on_engine_down(
        &mut self,
        now: Nanos,
        id: EngineId,
        unclaimed: &Unclaimed,
        out: &mut Vec<Output>,
    ) {
        let index = id.0 as usize;
        if !self.engines.get(index).is_some_and(Engine::is_connected) {
            self.totals.ignored += 1;
            return;
        }
        self.drop_link(now, index, unclaimed, out);
        self.note_end_of_world(index);
        let told = self.can_spawn(self.engines[index].host());
        let engine = &mut self.engines[index];
        let no_events = engine.has_exited() || engine.spawned_pid() == 0 || !told;
        if no_events {
            self.bury(now, index, out); // Nothing more will be reported.
            return;
        }
        engine.begin_dying();
        let told_by = now.saturating_add(self.config.certificate_wait_ns);
        self.set_engine_timer(index, told_by);
    }

    /// The link is gone: offers that were never started are queued again; started ones are retried, ended or put into
    /// kept as orphans until the cause is known.
    pub(super) fn drop_link(
        &mut self,
        now: Nanos,
        index: usize,
        unclaimed: &Unclaimed,
        out: &mut Vec<Output>,
    ) {
        self.engines[index].drop_link();
        let id = self.engines[index].id();
        let offers: Vec<(u32, TaskKey)> = self.engines[index].offers().iter().collect();
        let mut orphans = Vec::new();
        // Latest first: each goes to the front of its queue, which thus keeps its order.
        for (offer, key) in offers.into_iter().rev() {
            self.unoffer(now, key, id, offer);
            let task = self.tasks.at(key);
            let started = !unclaimed.contains(offer);
            match (task.stopping(), started) {
                _ if task.client().is_none() => self.discard(key, out),
                (Stopping::Asked | Stopping::Cancel, _) => {
                    let at = if started { id } else { NOWHERE };
                    self.resolve(key, Outcome::bare(Status::Cancelled, at), out);
                }
                (Stopping::Timeout, true) => {
                    self.resolve(key, Outcome::bare(Status::Timeout, id), out);
                }
                (_, true) if task.may_retry() && !self.supervisor.is_stopping() => {
                    self.retry(key, id, out);
                }
                (_, true) => {
                    task.enter(TaskState::Orphaned(id));
                    orphans.push(key);
                }
                (_, false) => {
                    task.stop(Stopping::No);
                    let key = self.tasks.rename(key);
                    self.make_ready(key, true, out);
                }
            }
        }
        self.engines[index].add_orphans(orphans.into_iter().rev());
    }

    fn lose_orphans(&mut self, index: usize, out: &mut Vec<Output>) {
        let engine = &mut self.engines[index];
        let id = engine.id();
        for key in engine.take_orphans() {
            self.lose(key, id, true, out);
        }
    }

    /// No process could be created for an engine: memory or the number of processes is exhausted,
    /// perhaps only for now.
    pub(super) fn on_not_started(
        &mut self,
        now: Nanos,
        id: EngineId,
        reason: String,
        out: &mut Vec<Output>,
    ) {
        let index = id.0 as usize;
        let engine = self.engines.get_mut(index);
        if engine.is_some_and(|engine| engine.on_not_started(reason)) {
            self.bury(now, index, out);
        } else {
            self.totals.ignored += 1;
        }
    }

    /// The engine is dead and no more will be known: certifies the death and decides what comes next.
    pub(super) fn bury(&mut self, now: Nanos, index: usize, out: &mut Vec<Output>) {
        self.clear_engine_timer(index);
        self.lose_orphans(index, out);
        let engine = &mut self.engines[index];
        let mut certificate = engine.certificate(false);
        if certificate.host.is_empty() {
            // It was never up to say so itself.
            certificate.host = self.hosts.name(engine.host());
        }
        engine.note_death(now, certificate.clone());
        self.clients.announce(&Event::EngineDown(certificate), out);
        self.end_world(now, index, out);
        match self.restart_delay_ns(now, index) {
            Some(delay_ns) => {
                self.engines[index].begin_restart(now, &self.config);
                self.set_engine_timer(index, now.saturating_add(delay_ns));
            }
            None => self.give_up(index, out),
        }
    }

    /// How long to wait before a dead engine is started again; `None` if it is not.
    fn restart_delay_ns(&mut self, now: Nanos, index: usize) -> Option<Nanos> {
        let has_host = self.has_host(index);
        let engine = &mut self.engines[index];
        if self.supervisor.is_stopping() || !has_host || engine.guest().is_some() {
            return None;
        }
        if engine.restart() == Some(false) {
            return None;
        }
        let failed_starts = engine.failed_starts();
        if failed_starts > 0 {
            let delay_ns = self.backoff_ns(failed_starts - 1);
            let engine = &mut self.engines[index];
            if engine.may_retry_at(now.saturating_add(delay_ns)) {
                return Some(delay_ns);
            }
            engine.forget_failed_starts();
        }
        let engine = &mut self.engines[index];
        if engine.restart() == Some(true) {
            return Some(0);
        }
        // Nobody can restart one that was started by hand.
        if !engine.is_spawned() || !self.config.restart_engines {
            return None;
        }
        let n = engine.recent_restarts(now);
        if n >= self.config.max_restarts_per_minute {
            return None;
        }
        Some(self.backoff_ns(n))
    }

    /// The delay before a retry after `n` failures.
    fn backoff_ns(&mut self, n: u32) -> Nanos {
        let backoff_ns = self
            .config
            .restart_backoff_ns
            .saturating_mul(1 << n.min(31))
            .min(self.config.restart_backoff_max_ns);
        // Up to a quarter longer, so that engines that died together do not start together.
        backoff_ns.saturating_add(self.supervisor.below(backoff_ns / 4))
    }

    /// Nothing will start this engine again: ends the tasks that waited for it.
    pub(super) fn give_up(&mut self, index: usize, out: &mut Vec<Output>) {
        self.clear_engine_timer(index);
        let id = self.engines[index].id();
        self.note_slot_gone(index, out);
        self.engines[index].give_up();
        let waiting: Vec<TaskKey> = self.engines[index].pinned().keys(&self.tasks).collect();
        for key in waiting {
            self.detach(key);
            let engine = &self.engines[index];
            if self.supervisor.is_stopping() {
                self.refuse(key, &RefusalReason::Stopping, out);
            } else if engine.info().is_none() && !engine.has_exited() {
                // It never existed: there is no death to certify.
                self.refuse(key, &RefusalReason::NoSuchEngine(id), out);
            } else {
                self.lose(key, id, false, out);
            }
        }
        self.engines[index].reset(&self.config);
        self.refuse_hopeless(out);
        self.try_finish(out);
    }
}
