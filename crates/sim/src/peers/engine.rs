//! A simulated engine process with its claim board.

use std::collections::{BTreeMap, VecDeque};

use broadleaf_core::Nanos;
use broadleaf_proto::ids::{ClientId, EngineId, HostId, TaskKey};
use broadleaf_proto::task::{AssignRecord, DoneRecord};

use crate::work::nested::Wait;

/// The state of an offer on the board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// Neither claimed nor taken back.
    Offered,
    /// The engine has it, or had it.
    Claimed,
    /// Taken back.
    Revoked,
}

/// A task that runs or waits.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    /// The task.
    pub key: TaskKey,
    /// Its offer.
    pub offer: u32,
    /// Its job.
    pub job: u64,
    /// Its function, as the controller names it.
    pub function: u32,
    /// When it started.
    pub started_ns: Nanos,
    /// Tells its end from that of an interrupted or earlier task.
    pub run: u64,
    /// Whether it was interrupted.
    pub interrupted: bool,
    /// Whether the board says that it is to be interrupted.
    pub is_to_stop: bool,
    /// Signals that had no effect.
    pub lost_signals: u32,
    /// Its nesting depth.
    pub depth: u16,
    /// The tasks that it waits for.
    pub wait: Option<Wait>,
}

/// One process.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent facts")]
pub(crate) struct EngineProcess {
    /// Its engine slot.
    pub engine: EngineId,
    /// Where it runs.
    pub host: HostId,
    /// Its number, never used again.
    pub pid: u32,
    /// Whether it is alive.
    pub alive: bool,
    /// Whether its fork server still watches it.
    pub watched: bool,
    /// Whether its link is open at its end.
    pub linked: bool,
    /// Whether it was told to stop.
    pub stopping: bool,
    /// Its claim board.
    pub board: BTreeMap<u32, Slot>,
    /// The driver's answers to revokes, held back.
    pub answers: VecDeque<(TaskKey, bool)>,
    /// The number after the last offer that it got.
    pub next_offer: u32,
    /// Assigned, but not examined yet.
    pub inbox: VecDeque<AssignRecord>,
    /// Ended, but not sent yet.
    pub finished: Vec<DoneRecord>,
    /// Bodies of functions that it knows.
    pub functions: BTreeMap<u32, u64>,
    /// Versions of the preparations it has made.
    pub prepared: BTreeMap<(ClientId, u16), u32>,
    /// The task that it runs.
    pub running: Option<Running>,
    /// The waiting tasks below that.
    pub stack: Vec<Running>,
}

impl EngineProcess {
    /// A process that is alive but not connected.
    pub fn new(engine: EngineId, pid: u32) -> Self {
        Self {
            engine,
            host: HostId::CONTROLLER,
            pid,
            alive: true,
            watched: true,
            linked: false,
            stopping: false,
            board: BTreeMap::new(),
            answers: VecDeque::new(),
            next_offer: 0,
            inbox: VecDeque::new(),
            finished: Vec::new(),
            functions: BTreeMap::new(),
            prepared: BTreeMap::new(),
            running: None,
            stack: Vec::new(),
        }
    }

    /// Takes an offer back; returns true if it had not been claimed.
    pub fn revoke(&mut self, offer: u32) -> bool {
        match self.board.get_mut(&offer) {
            Some(slot @ Slot::Offered) => {
                *slot = Slot::Revoked;
                true
            }
            _ => false,
        }
    }

    /// Claims the next offer that it may claim.
    pub fn claim_next(&mut self) -> Option<AssignRecord> {
        let floor = self.stack.last().map(|top| top.depth);
        let may_start = |record: &AssignRecord| floor.is_none_or(|floor| record.depth > floor);
        while let Some(index) = self.inbox.iter().position(may_start) {
            let record = self.inbox.remove(index)?;
            if let Some(slot @ Slot::Offered) = self.board.get_mut(&record.offer) {
                *slot = Slot::Claimed;
                return Some(record);
            }
        }
        None
    }

    /// The tasks that it has begun.
    pub fn tasks(&self) -> impl Iterator<Item = &Running> {
        self.stack.iter().chain(&self.running)
    }

    /// The task of an offer that it has begun.
    pub fn task_of(&mut self, offer: u32) -> Option<&mut Running> {
        let mut tasks = self.stack.iter_mut().chain(&mut self.running);
        tasks.find(|task| task.offer == offer)
    }

    /// The number after the last offer that reached its board.
    pub fn next_on_board(&self) -> u32 {
        self.board.last_key_value().map_or(0, |(n, _)| n + 1)
    }

    /// Offers on the board that nobody took.
    pub fn unclaimed(&self) -> Vec<u32> {
        let open = self.board.iter().filter(|(_, s)| **s == Slot::Offered);
        open.map(|(offer, _)| *offer).collect()
    }
}
