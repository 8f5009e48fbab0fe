//! MPI worlds whose ranks ask for slots and die: see [`crate::engines::worlds`].

use broadleaf_proto::control::{DeathCause, ForkServerOrder};
use broadleaf_proto::host::EngineOrder;
use broadleaf_proto::ids::{EngineId, HostId};
use broadleaf_proto::limits::MAX_HOST_NAME_BYTES;

use super::Controller;
use crate::engines::{Engine, Guest, SIGKILL, State};
use crate::tasks::targets::MAX_ENGINES;
use crate::{Nanos, Output};

impl Controller {
    /// A rank requests its slot. Returns false if the request is impossible: a world always has the same number of
    /// ranks.
    #[expect(clippy::too_many_arguments, reason = "the fields of a message")]
    pub(super) fn on_guest(
        &mut self,
        now: Nanos,
        host: HostId,
        world: String,
        size: u32,
        rank: u32,
        pid: u32,
        out: &mut Vec<Output>,
    ) -> bool {
        if rank >= size || pid == 0 || world.len() > MAX_HOST_NAME_BYTES {
            return false;
        }
        if self.supervisor.is_stopping() {
            return true;
        }
        let Some(first) = self.first_slot(&world, size) else {
            return false;
        };
        let index = (first + rank) as usize;
        if self.engines[index].state() != State::Gone {
            // The previous process of this rank seems to be alive still. The fork server will ask
            // again.
            self.totals.ignored += 1;
            return true;
        }
        self.worlds.begin(&world);
        let engine = &mut self.engines[index];
        engine.seat(host, pid);
        engine.begin_start(now, self.config.start_timeout_ns);
        let engine = engine.id();
        self.set_engine_timer(index, now.saturating_add(self.config.start_timeout_ns));
        let order = ForkServerOrder::Seat {
            engine,
            world,
            rank,
        };
        out.push(Output::Order(EngineOrder::ForkServer(order)));
        true
    }

    /// The slot of a world's rank 0, created with the others if the world is new.
    fn first_slot(&mut self, name: &str, size: u32) -> Option<u32> {
        if let Some(slots) = self.worlds.slots(name) {
            return (slots.len() == size as usize).then_some(slots.start);
        }
        let first = self.engines.len() as u32;
        if size > MAX_ENGINES - first {
            return None;
        }
        for rank in 0..size {
            let mut engine = Engine::new(EngineId(first + rank), &self.config);
            engine.reserve(Guest {
                world: name.to_owned(),
                rank,
            });
            self.engines.push(engine);
        }
        self.worlds.add(name.to_owned(), first..first + size);
        Some(first)
    }

    /// The slots of the engine's world; only its own if it has none.
    pub(super) fn of_same_world(&self, index: usize) -> core::ops::Range<usize> {
        let guest = self.engines[index].guest();
        let slots = guest.and_then(|guest| self.worlds.slots(&guest.world));
        slots.map_or(index..index + 1, |slots| {
            slots.start as usize..slots.end as usize
        })
    }

    /// The rank that died first in an engine's world.
    fn ended_by(&self, index: usize) -> Option<u32> {
        let guest = self.engines[index].guest()?;
        self.worlds.ended_by(&guest.world)
    }

    /// Whether an engine has ended in a way that its world does not survive.
    fn ends_its_world(&self, index: usize) -> bool {
        let asked = self.engines[index].ended_by_us();
        let is_asked =
            asked.is_some_and(|c| matches!(c, DeathCause::Stopped | DeathCause::RankDied(_)));
        !is_asked && !self.supervisor.is_stopping()
    }

    /// Records which rank died first, at the first sign of it.
    pub(super) fn note_end_of_world(&mut self, index: usize) {
        if !self.ends_its_world(index) {
            return;
        }
        if let Some(guest) = self.engines[index].guest() {
            self.worlds.end(&guest.world, guest.rank);
        }
    }

    /// Nobody knows how a rank ended, because it was the process manager's child. What is known is which one died
    /// first.
    pub(super) fn cause_in_world(&mut self, index: usize, cause: DeathCause) -> DeathCause {
        if cause != DeathCause::Disconnected {
            return cause;
        }
        self.note_end_of_world(index);
        self.ended_by(index).map_or(cause, DeathCause::RankDied)
    }

    /// An engine is dead, so the others of its world are dead or will be now.
    pub(super) fn end_world(&mut self, now: Nanos, index: usize, out: &mut Vec<Output>) {
        if self.engines[index].guest().is_none() || !self.ends_its_world(index) {
            return;
        }
        self.note_end_of_world(index);
        let Some(first) = self.ended_by(index) else {
            return;
        };
        for other in self.of_same_world(index) {
            if other == index {
                continue;
            }
            let engine = &self.engines[other];
            let (id, pid) = (engine.id(), engine.spawned_pid());
            if matches!(engine.state(), State::Starting { .. }) && pid != 0 {
                // Nobody reports its end: its process id may belong to another process by the time its start has
                // failed.
                self.engines[other].forget_process();
                out.push(Output::Order(EngineOrder::Kill {
                    engine: id,
                    pid,
                    signal: SIGKILL,
                }));
            } else {
                self.kill(now, id, DeathCause::RankDied(first), out);
            }
        }
    }
}
