//! The lane to this host's engines: a task for many of them, which they get with one wake-up call and answer with one.
//! Whether tasks take it, and when to look for answers, [`broadleaf_core::Lane`] decides.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use broadleaf_core::Nanos;
use broadleaf_net::{Link, LinkError};
use broadleaf_proto::task::DoneRecord;
use broadleaf_proto::wire::Reader;
use broadleaf_proto::{AssignRecord, EngineId, FrameKind, TaskKey};
use broadleaf_shm::{ClaimBoard, LETTER_BYTES, Lane};
use rustix::event::{EventfdFlags, eventfd};

use crate::connections::peers::{Peer, Role};
use crate::error::{NodeError, io_error};
use crate::node::Node;

/// See the module.
pub struct HostLane {
    machine: broadleaf_core::Lane,
    shared: Lane,
    memory: OwnedFd,
    /// An eventfd that all engines of the host poll.
    bell: OwnedFd,
    /// Offered tasks of this batch that have all but key and offer in common.
    gathered: Vec<(EngineId, AssignRecord)>,
}

impl HostLane {
    pub fn create() -> Result<Self, NodeError> {
        let (shared, memory) = Lane::create()
            .map_err(std::io::Error::other)
            .map_err(io_error("making memory for engines"))?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(io_error("eventfd"))?;
        Ok(Self {
            machine: broadleaf_core::Lane::default(),
            shared,
            memory,
            bell,
            gathered: Vec::new(),
        })
    }

    /// Memory that is shared with the engines.
    pub fn len_bytes(&self) -> u64 {
        self.shared.len_bytes()
    }

    /// Whether a task has all but key and offer in common with those that were gathered.
    fn joins(&self, record: &AssignRecord) -> bool {
        self.gathered.last().is_none_or(|(_, last)| {
            last.function == record.function
                && last.depth == record.depth
                && last.payload.bytes.as_ptr() == record.payload.bytes.as_ptr()
                && last.payload.bytes.len() == record.payload.bytes.len()
        })
    }

    /// When answers must be looked for although nobody wakes the node.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.machine.next_deadline()
    }

    /// A task has ended or was taken back.
    pub fn on_end(&mut self, engine: EngineId, key: TaskKey) {
        self.machine.on_end(engine, key);
    }

    /// An engine is gone.
    pub fn on_gone(&mut self, engine: EngineId) {
        self.machine.on_gone(engine);
    }

    /// Wakes all engines of the host that wait.
    fn ring(&self) {
        // It fails only if its count is full, which is then enough for whoever polls it.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}

/// An engine's board and link.
fn engine_of(peer: &mut Peer) -> Option<(&ClaimBoard, &mut Link)> {
    match &peer.role {
        Role::Engine { board, .. } => Some((board, &mut peer.link)),
        _ => None,
    }
}

impl Node {
    /// Queues the welcome of an engine, which gets the lane with it.
    pub(crate) fn welcome_engine(&mut self, token: usize, body: &[u8]) -> Result<(), LinkError> {
        let fds = [self.lane.memory.as_fd(), self.lane.bell.as_fd()];
        (self.peers[token].link).send(FrameKind::Welcome, body, &fds)?;
        self.mark_dirty(token);
        Ok(())
    }

    /// Sends an offered task, together with the same task for others; see [`Node::deliver_gathered`].
    pub(crate) fn gather(&mut self, engine: EngineId, record: AssignRecord) {
        if !record.payload.segments.is_empty() {
            self.deliver_gathered();
            self.hand_over(engine, &record);
            return;
        }
        if !self.lane.joins(&record) {
            self.deliver_gathered();
        }
        self.lane.gathered.push((engine, record));
    }

    /// Sends the tasks that were gathered. Comes before anything else that is sent to their engines.
    pub(crate) fn deliver_gathered(&mut self) {
        if self.lane.gathered.is_empty() {
            return;
        }
        let mut tasks = std::mem::take(&mut self.lane.gathered);
        let is_for = (self.lane.machine).is_for(tasks.len(), self.engines.len());
        if !is_for || !self.take_lane(&tasks) {
            for (engine, record) in &tasks {
                self.hand_over(*engine, record);
            }
        }
        tasks.clear();
        self.lane.gathered = tasks;
    }

    /// Leaves tasks on the lane, and sends the rest; false if all have to be sent.
    fn take_lane(&mut self, tasks: &[(EngineId, AssignRecord)]) -> bool {
        let keys: BTreeMap<EngineId, TaskKey> =
            tasks.iter().map(|(id, record)| (*id, record.key)).collect();
        let is_free = |engine: &EngineId| self.board(*engine).is_some_and(|b| b.place().is_free());
        let fits = |record: &AssignRecord| record.payload.bytes.len() <= LETTER_BYTES / 2;
        let all_free = keys.keys().all(is_free);
        if keys.len() < tasks.len() || !all_free || !tasks.iter().all(|(_, r)| fits(r)) {
            return false;
        }
        let round = self.lane.shared.begin(tasks.len() as u32);
        self.lane.machine.begin(self.now_ns, keys);
        let mut body = Vec::with_capacity(LETTER_BYTES);
        for (engine, record) in tasks {
            let token = self.engine_token(*engine);
            let peer = token.and_then(|token| self.peers.get_mut(token));
            if let Some((board, link)) = peer.and_then(engine_of) {
                body.clear();
                record.encode(&mut body);
                let is_put = board.place().put_task(link.mark(), round, &body);
                debug_assert!(is_put, "invariant: it is free, and only the node fills it");
            }
        }
        self.lane.ring();
        true
    }

    /// Takes the answer in an engine's place, if it owes one and everything that it sent before was taken.
    pub(crate) fn take_answer(&mut self, token: usize) -> Result<(), LinkError> {
        let Some(peer) = self.peers.get_mut(token) else {
            return Ok(());
        };
        let Role::Engine { engine, board, .. } = &peer.role else {
            return Ok(());
        };
        let engine = *engine;
        if !self.lane.machine.owes(engine) {
            return Ok(());
        }
        let position = board.place().answer_position();
        if position.is_none_or(|position| position > peer.link.frames_taken()) {
            return Ok(());
        }
        let Some(letter) = board.place().take_answer() else {
            return Ok(());
        };
        let mut reader = Reader::new(letter.record.into());
        let record = DoneRecord::decode(&mut reader)?;
        self.on_done(token, engine, record);
        Ok(())
    }

    /// Looks for answers on the lane if it is time to.
    pub(crate) fn look_at_lane(&mut self) {
        let n_missing = self.lane.shared.n_missing();
        if !self.lane.machine.look(self.now_ns, n_missing) {
            return;
        }
        self.lane.shared.hurry();
        let owing: Vec<EngineId> = self.lane.machine.owing().collect();
        for engine in owing {
            if let Some(token) = self.engine_token(engine)
                && let Err(error) = self.take_answer(token)
            {
                self.on_link_error(token, &error);
            }
        }
    }
}
