//! A controller that was started again: its predecessor's hosts, and what they have when they are back.
//!
//! At first each of them is away, so nothing is offered there, and one that does not come back is lost like any other. Tasks
//! that an engine has begun for an earlier controller occupy it until they end; nobody waits for them.

use std::collections::BTreeMap;

use broadleaf_proto::host::EngineReport;
use broadleaf_proto::ids::{ClientId, EngineId, FunctionHash, HostId, TaskKey, TaskSeq};
use broadleaf_proto::relay::{HeldEngine, HeldLink, Holdings};
use broadleaf_proto::task::Payload;
use bytes::Bytes;

use super::Controller;
use super::trust::is_believable;
use crate::engines::State;
use crate::engines::offers::Offers;
use crate::engines::unclaimed::Unclaimed;
use crate::journal::Members;
use crate::tasks::NewTask;
use crate::{Nanos, Output};

/// What observers see as the function of tasks that were begun for an earlier controller.
const FORMER: &[u8] = b"(begun before the restart)";

impl Controller {
    /// Comes before everything else.
    pub(super) fn on_restored(&mut self, now: Nanos, members: Members) {
        self.tasks.begin_after(members.n_before);
        for member in members.hosts {
            self.hosts.inherit(now, member.host, member.name);
            for (id, info) in member.slots {
                let Some(index) = self.engine_index(id) else {
                    continue;
                };
                self.clear_engine_timer(index);
                let engine = &mut self.engines[index];
                if let Some(info) = info {
                    engine.seat(member.host, info.pid);
                    engine.on_hello(now, info, &self.config);
                } else {
                    engine.move_to(member.host);
                    self.await_start(now, index, false);
                }
                self.engines[index].set_away(true);
            }
        }
    }

    fn await_start(&mut self, now: Nanos, index: usize, spawn_sent: bool) {
        let engine = &mut self.engines[index];
        engine.await_hello(spawn_sent);
        engine.begin_start(now, self.config.start_timeout_ns);
        self.set_engine_timer(index, now.saturating_add(self.config.start_timeout_ns));
    }

    /// A host says what it has from the time of an earlier controller.
    pub(super) fn on_host_rejoined(
        &mut self,
        now: Nanos,
        host: HostId,
        holdings: &Holdings,
        out: &mut Vec<Output>,
    ) {
        if !self.hosts.take_inherited(host) {
            self.expel(host, out);
            return;
        }
        let held = holdings.engines.iter().map(|held| (held.engine, held));
        let held: BTreeMap<EngineId, &HeldEngine> = held.collect();
        for index in 0..self.engines.len() {
            let engine = &self.engines[index];
            if engine.host() != host {
                continue;
            }
            let (id, state, is_connected) = (engine.id(), engine.state(), engine.is_connected());
            let held = held.get(&id);
            let link = held.and_then(|held| held.link.as_ref());
            if is_connected && !link.is_some_and(|link| self.is_same(index, link)) {
                self.on_engine_down(now, id, &Unclaimed::default(), out);
            } else if matches!(state, State::Starting { .. }) && held.is_none() {
                self.start(now, index, out); // The order was lost with the earlier controller.
            }
        }
        self.engines.set_cores(host, holdings.n_cores);
        if let Some(ends_in_ns) = holdings.ends_in_ns {
            self.hosts.end_within(now, host, ends_in_ns);
            self.expect_end(now, host, out);
        }
        for held in held.values() {
            if !self.hold(now, host, held, out) {
                self.expel(host, out);
                return;
            }
        }
        for end in &holdings.ends {
            // A slot that was given up may belong to another host by now.
            if end
                .engine()
                .is_some_and(|engine| self.host_of(engine) == host)
            {
                self.on_report(now, host, EngineReport::ForkServer(end.clone()), out);
            }
        }
    }

    fn is_same(&self, index: usize, link: &HeldLink) -> bool {
        let info = self.engines[index].info();
        info.is_some_and(|info| info.uuid == link.info.uuid)
    }

    /// Takes over an engine. False if the host cannot have it.
    fn hold(&mut self, now: Nanos, host: HostId, held: &HeldEngine, out: &mut Vec<Output>) -> bool {
        let Some(index) = self.engine_index(held.engine) else {
            return false;
        };
        let engine = &self.engines[index];
        if engine.host() != host {
            let is_free = engine.is_gone() && engine.guest().is_none();
            if !is_free || self.hosts.is_up(engine.host()) {
                return false;
            }
            self.engines[index].move_to(host);
        }
        let Some(link) = &held.link else {
            if !self.engines[index].has_process() {
                self.note_slot(index, out);
                self.engines[index].seat(host, held.pid);
                self.await_start(now, index, true);
            }
            return true;
        };
        let numbers = || link.unfinished.iter().map(|(offer, _)| *offer);
        if link.info.engine != held.engine
            || !is_believable(&link.info)
            || !Offers::may_have_begun(numbers(), link.next_offer)
        {
            return false;
        }
        if !(self.engines[index].is_connected() && self.is_same(index, link)) {
            self.note_slot(index, out);
            self.on_engine_up(now, link.info.clone(), out);
        }
        let adopted: Vec<(u32, TaskKey)> = (link.unfinished.iter())
            .map(|(offer, former)| (*offer, self.adopt(now, *former, held.engine, *offer)))
            .collect();
        let engine = &mut self.engines[index];
        if held.pid != 0 {
            engine.on_spawned(held.pid);
        }
        engine.offers_mut().adopt(&adopted, link.next_offer);
        engine.begin_head(now);
        true
    }

    /// A task that an engine has begun, and that nobody waits for.
    fn adopt(&mut self, now: Nanos, former: TaskKey, engine: EngineId, offer: u32) -> TaskKey {
        let name = Bytes::from_static(FORMER);
        let function = self
            .functions
            .define(FunctionHash::default(), &name, &Bytes::new());
        self.functions.begin(function);
        self.options.retain(0);
        let key = self.tasks.insert(NewTask {
            client: ClientId(u32::MAX),
            seq: TaskSeq(u64::MAX),
            reply_group: None,
            function,
            options: 0,
            depth: 0,
            retries: 0,
            pinned: None,
            inline_bytes: 0,
            submitted_ns: now,
            payload: Payload::default(),
        });
        let task = self.tasks.at(key);
        task.lose_client();
        task.offer(engine, offer, now, false);
        self.tasks.adopt(former, key);
        key
    }
}
