//! Engine slots: which there are, and which may be taken.

use broadleaf_proto::control::EngineInfo;
use broadleaf_proto::ids::{EngineId, HostId};

use super::Controller;
use crate::Output;
use crate::engines::{Engine, State};
use crate::journal::Fact;
use crate::tasks::targets::{MAX_ENGINES, Targets};

impl Controller {
    /// Whether an engine on the controller's host may say hello for this slot: it is free, and the cluster is not
    /// stopping.
    pub fn expects(&self, engine: EngineId) -> bool {
        let taken = self
            .engines
            .get(engine.0 as usize)
            .is_some_and(|e| match e.state() {
                State::Up | State::Draining | State::Leaving | State::Dying => true,
                State::Starting { .. } | State::Restarting => false,
                State::Gone => e.guest().is_some(), // Only a rank of its world may.
            });
        let is_own = self.host_of(engine) == HostId::CONTROLLER;
        !taken && is_own && engine.0 < MAX_ENGINES && !self.supervisor.is_stopping()
    }

    /// A slot for an engine that was started by hand; the engine's `EngineUp` takes it.
    pub fn vacant_engine(&self) -> EngineId {
        let next = self.engines.len() as u32;
        let is_vacant =
            |e: &&Engine| e.is_gone() && e.host() == HostId::CONTROLLER && e.guest().is_none();
        let gone = self.engines.iter().find(is_vacant);
        match gone {
            Some(gone) if next >= MAX_ENGINES => gone.id(),
            _ => EngineId(next),
        }
    }

    /// The slot of an engine, created if necessary.
    pub(super) fn engine_index(&mut self, id: EngineId) -> Option<usize> {
        if id.0 >= MAX_ENGINES {
            return None;
        }
        while self.engines.len() <= id.0 as usize {
            let next = EngineId(self.engines.len() as u32);
            self.engines.push(Engine::new(next, &self.config));
        }
        Some(id.0 as usize)
    }

    pub(super) fn hopeful_engines(&self) -> impl Iterator<Item = u32> {
        let hopeful = self.engines.iter().filter(|e| e.takes_pinned());
        hopeful.map(|e| e.id().0)
    }

    /// Whether an engine exists or will come.
    pub(super) fn is_hopeful_slot(&self, engine: EngineId) -> bool {
        let engine = self.engines.get(engine.0 as usize);
        engine.is_some_and(Engine::takes_pinned)
    }

    /// Targets of mode `Each`, in target order.
    pub(super) fn targets_now(&self, options: u32) -> Targets {
        let targets = self.options.at(options).targets.clone();
        targets.unwrap_or_else(|| Targets::of_sorted(self.hopeful_engines()))
    }

    /// The host that an engine's slot belongs to.
    pub fn host_of(&self, engine: EngineId) -> HostId {
        let engine = self.engines.get(engine.0 as usize);
        engine.map_or(HostId::CONTROLLER, Engine::host)
    }

    /// Whether a relay with that name is connected.
    pub fn has_host_named(&self, name: &str) -> bool {
        self.hosts.has_named(name)
    }

    /// Whether an engine can be started on the host, and its end would be reported.
    pub(super) fn can_spawn(&self, host: HostId) -> bool {
        if host == HostId::CONTROLLER {
            self.supervisor.has_fork_server()
        } else {
            self.is_host_up(host)
        }
    }

    pub(super) fn is_host_up(&self, host: HostId) -> bool {
        host == HostId::CONTROLLER || self.hosts.is_up(host)
    }

    /// Whether this is a relay's host, and the relay is connected.
    pub(super) fn is_relay_up(&self, host: HostId) -> bool {
        self.hosts.is_up(host)
    }

    /// Whether anything can be started on the engine's host, now or later.
    pub(super) fn has_host(&self, index: usize) -> bool {
        let host = self.engines[index].host();
        host == HostId::CONTROLLER || self.hosts.is_wanted(host)
    }

    /// Whether the host of an engine is being released.
    pub(super) fn is_host_released(&self, index: usize) -> bool {
        self.is_host_up(self.engines[index].host()) && !self.has_host(index)
    }

    /// Says what a later controller has to know, if there may be one.
    pub(super) fn note(&self, out: &mut Vec<Output>, fact: impl FnOnce() -> Fact) {
        if self.config.journal {
            out.push(Output::Note(fact()));
        }
    }

    /// An engine is to be started in a slot of a relay's host.
    pub(super) fn note_slot(&self, index: usize, out: &mut Vec<Output>) {
        let engine = &self.engines[index];
        if engine.host() != HostId::CONTROLLER {
            self.note(out, || Fact::Slot(engine.id(), engine.host()));
        }
    }

    /// An engine of a relay's host is up.
    pub(super) fn note_engine(&self, info: &EngineInfo, out: &mut Vec<Output>) {
        if self.host_of(info.engine) != HostId::CONTROLLER {
            self.note(out, || Fact::EngineUp(info.clone()));
        }
    }

    /// Nothing will fill a slot of a relay's host.
    pub(super) fn note_slot_gone(&self, index: usize, out: &mut Vec<Output>) {
        let engine = &self.engines[index];
        if engine.host() != HostId::CONTROLLER {
            self.note(out, || Fact::SlotGone(engine.id()));
        }
    }
}
