//! A simulated engine process with its claim board.

use std::collections::{BTreeMap, VecDeque};

use broadleaf_core::Nanos;
use broadleaf_engine::{Batching, Flushing, LastTask, Next, Outer, Stack, Turn, Work};
use broadleaf_proto::ids::{ClientId, EngineId, HostId, TaskKey};
use broadleaf_proto::task::DoneRecord;

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

/// Tasks below a quarter of this are short. That is longer than by default, so that many are.
const BATCHING: Batching = Batching {
    delay_ns: 40_000_000,
    max_bytes: 8,
};
/// No result is held back longer: by a task that was expected to be short, and is not.
pub(crate) const MAX_HELD_NS: Nanos = BATCHING.delay_ns + 11_000_000;

/// A task that runs or waits.
#[derive(Debug)]
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
    /// What was so before it began.
    pub outer: Outer,
    /// The tasks that it waits for.
    pub wait: Option<Wait>,
}

/// One process.
#[derive(Debug)]
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
    /// Its claim board.
    pub board: BTreeMap<u32, Slot>,
    /// The driver's answers to revokes, held back.
    pub answers: VecDeque<(TaskKey, bool)>,
    /// The number after the last offer that it got.
    pub next_offer: u32,
    /// What it was sent and has not begun.
    pub work: Work,
    /// Ended, but not sent yet.
    pub finished: Vec<DoneRecord>,
    /// When they are.
    pub flushing: Flushing,
    /// What its flusher does next, and its number: another follows if it is woken.
    pub flusher: (Turn, u64),
    /// What it expects of the next task.
    pub last_task: LastTask,
    /// Bodies of functions that it knows.
    pub functions: BTreeMap<u32, u64>,
    /// Versions of the preparations it has made.
    pub prepared: BTreeMap<(ClientId, u16), u32>,
    /// The task that it runs.
    pub running: Option<Running>,
    /// The waiting tasks below that.
    pub stack: Vec<Running>,
    /// What it knows of all of these.
    pub nesting: Stack,
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
            board: BTreeMap::new(),
            answers: VecDeque::new(),
            next_offer: 0,
            work: Work::default(),
            finished: Vec::new(),
            flushing: Flushing::new(BATCHING),
            flusher: (Turn::Sleep, 0),
            last_task: LastTask::default(),
            functions: BTreeMap::new(),
            prepared: BTreeMap::new(),
            running: None,
            stack: Vec::new(),
            nesting: Stack::new(),
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

    /// What it does next, if no task runs.
    pub fn next_step(&mut self) -> Next {
        match self.nesting.running_depth() {
            Some(depth) => self.work.next_step_above(depth),
            None => self.work.next_step(),
        }
    }

    /// Claims an offer; returns whether it got it.
    pub fn claim(&mut self, offer: u32) -> bool {
        match self.board.get_mut(&offer) {
            Some(slot @ Slot::Offered) => {
                *slot = Slot::Claimed;
                true
            }
            _ => false,
        }
    }

    /// The task that ran begins to wait; whether the controller must be told.
    pub fn begin_wait(&mut self) -> Option<TaskKey> {
        let said = self.nesting.begin_wait();
        let board = &self.board;
        (self.work).forget_revoked(|task| board.get(&task.offer) == Some(&Slot::Offered));
        said
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
