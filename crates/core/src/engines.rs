//! Engines: their places, what is offered to each, and their prefetch windows.

use std::collections::VecDeque;

use broadleaf_proto::control::{DeathCause, DeathCertificate, EngineInfo};
use broadleaf_proto::ids::{EngineId, HostId, TaskKey};
use broadleaf_proto::limits::CLAIM_SLOTS;

use crate::ready::ReadyQueue;
use crate::{Config, Nanos};

/// Places an engine may have; also the most targets of one request.
pub(crate) const MAX_ENGINES: u32 = 65_536;

/// Where an engine is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Wanted; its hello is awaited until its timer.
    Starting {
        /// Whether the present spawner was told.
        spawn_sent: bool,
    },
    /// Takes tasks.
    Up,
    /// Told to stop (or killed); takes none any more. Its timer is the next step of force.
    Leaving,
    /// Half of the news of its death is here; its timer ends the wait for the other half.
    Dying,
    /// Dead; started again at its timer.
    Restarting,
    /// Dead or never wanted, and nothing will start it.
    Gone,
}

/// How a process ended, as the spawner saw it.
#[derive(Clone, Debug)]
pub(crate) struct Exit {
    pub cause: DeathCause,
    pub last_output: String,
}

/// What is known of an offer's claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Perhaps claimed, perhaps not.
    Open,
    /// A revoke is under way, on behalf of this idle engine if any.
    Revoking(Option<EngineId>),
    /// A revoke was lost: the engine has it.
    Claimed,
}

/// One entry of an engine's sequence of offers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    /// `None` once done or taken back.
    pub key: Option<TaskKey>,
    pub claim: Claim,
    /// It may run elsewhere.
    pub movable: bool,
}

impl Offer {
    fn is_takeable(&self) -> bool {
        self.key.is_some() && self.movable && self.claim == Claim::Open
    }
}

/// One place.
#[derive(Debug)]
pub(crate) struct Engine {
    pub id: EngineId,
    /// Where its place is.
    pub host: HostId,
    pub state: State,
    /// Its timer in the set of timers; 0 for none.
    pub timer_at: Nanos,
    /// The timer of its limbo tasks; 0 for none.
    pub limbo_at: Nanos,
    /// What it said in its hello, while it lives.
    pub info: Option<EngineInfo>,
    /// The process that the spawner started for it; 0 for none.
    pub spawned_pid: u32,
    pub link_down: bool,
    pub exit: Option<Exit>,
    /// Why we ended it, if we did.
    pub ended_by_us: Option<DeathCause>,
    /// Whether the kill was sent.
    pub killed: bool,
    /// Whether its place is to be filled again after its death; `None` leaves it to the settings.
    pub restart: Option<bool>,
    /// When it was started again within the last minute.
    pub restart_times: VecDeque<Nanos>,
    /// Tasks that ran on it when it died.
    pub limbo: Vec<TaskKey>,
    /// Tasks that must run here.
    pub pinned: ReadyQueue,
    offers: VecDeque<Offer>,
    first_offer: u32,
    /// Offers neither done nor taken back.
    pub outstanding: u32,
    /// Those of them that could be taken back for another engine.
    takeable: u32,
    /// The scheduler's count when it was last given a task.
    pub last_used: u64,
    /// Revokes under way on its behalf.
    pub stealing: u32,
    /// When its oldest offer is believed to have started.
    pub head_since: Nanos,
    pub window: u32,
    pub mean_task_ns: u64,
    known_functions: Vec<u64>,
    pub completed: u64,
    pub busy_ns: u64,
    pub restarts: u64,
}

impl Engine {
    pub fn new(id: EngineId, config: &Config) -> Self {
        Self {
            id,
            host: HostId::CONTROLLER,
            state: State::Gone,
            timer_at: 0,
            limbo_at: 0,
            info: None,
            spawned_pid: 0,
            link_down: false,
            exit: None,
            ended_by_us: None,
            killed: false,
            restart: None,
            restart_times: VecDeque::new(),
            limbo: Vec::new(),
            pinned: ReadyQueue::default(),
            offers: VecDeque::new(),
            first_offer: 0,
            outstanding: 0,
            takeable: 0,
            last_used: 0,
            stealing: 0,
            head_since: 0,
            window: config.prefetch_min.max(1),
            mean_task_ns: 0,
            known_functions: Vec::new(),
            completed: 0,
            busy_ns: 0,
            restarts: 0,
        }
    }

    /// Forgets everything of the process before.
    pub fn reset(&mut self, config: &Config) {
        self.info = None;
        self.spawned_pid = 0;
        self.link_down = false;
        self.exit = None;
        self.ended_by_us = None;
        self.killed = false;
        self.restart = None;
        self.offers.clear();
        self.first_offer = 0;
        self.outstanding = 0;
        self.takeable = 0;
        self.stealing = 0;
        self.window = config.prefetch_min.max(1);
        self.mean_task_ns = 0;
        self.known_functions.clear();
    }

    /// Whether there is a process to send things to.
    pub fn is_connected(&self) -> bool {
        matches!(self.state, State::Up | State::Leaving | State::Dying) && !self.link_down
    }

    pub fn pid(&self) -> u32 {
        self.info.as_ref().map_or(self.spawned_pid, |i| i.pid)
    }

    /// Whether another task may be offered.
    pub fn has_room(&self) -> bool {
        self.state == State::Up && self.outstanding < self.window && self.offers.len() < CLAIM_SLOTS
    }

    /// Appends an offer and gives its number.
    pub fn offer(&mut self, key: TaskKey, movable: bool) -> u32 {
        let number = self.next_offer();
        self.offers.push_back(Offer {
            key: Some(key),
            claim: Claim::Open,
            movable,
        });
        self.outstanding += 1;
        self.takeable += u32::from(movable);
        number
    }

    pub fn next_offer(&self) -> u32 {
        self.first_offer.wrapping_add(self.offers.len() as u32)
    }

    fn index_of(&self, number: u32) -> Option<usize> {
        let index = number.wrapping_sub(self.first_offer) as usize;
        self.offers.get(index)?.key.map(|_| index)
    }

    /// What is known of an offer that is on the books.
    pub fn claim(&self, number: u32) -> Option<Claim> {
        self.index_of(number).map(|index| self.offers[index].claim)
    }

    /// Notes what was learnt of an offer's claim.
    pub fn set_claim(&mut self, number: u32, claim: Claim) {
        let Some(index) = self.index_of(number) else {
            return;
        };
        let offer = &mut self.offers[index];
        let before = offer.is_takeable();
        offer.claim = claim;
        let after = offer.is_takeable();
        self.takeable = self.takeable + u32::from(after) - u32::from(before);
    }

    /// Strikes an offer out; true when it was the head, so that the next is now believed to run.
    pub fn strike(&mut self, number: u32) -> bool {
        let Some(index) = self.index_of(number) else {
            return false;
        };
        let offer = &mut self.offers[index];
        self.takeable -= u32::from(offer.is_takeable());
        offer.key = None;
        self.outstanding -= 1;
        while self.offers.front().is_some_and(|o| o.key.is_none()) {
            self.offers.pop_front();
            self.first_offer = self.first_offer.wrapping_add(1);
        }
        index == 0
    }

    /// The offer believed to run.
    pub fn head(&self) -> Option<(TaskKey, u32)> {
        let key = self.offers.front()?.key?;
        Some((key, self.first_offer))
    }

    /// Every offer on the books, oldest first.
    pub fn offers(&self) -> impl Iterator<Item = (u32, TaskKey)> {
        self.offers
            .iter()
            .enumerate()
            .filter_map(|(i, o)| Some((self.first_offer.wrapping_add(i as u32), o.key?)))
    }

    /// Offers behind the head that could be taken back for another engine.
    pub fn n_stealable(&self) -> u32 {
        let head = self.offers.front().is_some_and(Offer::is_takeable);
        self.takeable - u32::from(head)
    }

    /// Time that the tail of those will take, from what tasks took here; 0 while that is unknown.
    pub fn tail_ns(&self) -> Nanos {
        u64::from(self.n_stealable()).saturating_mul(self.mean_task_ns)
    }

    /// Those offers, latest first.
    pub fn stealable(&self) -> impl Iterator<Item = (u32, TaskKey)> {
        self.offers
            .iter()
            .enumerate()
            .skip(1)
            .rev()
            .filter(|(_, o)| o.is_takeable())
            .filter_map(|(i, o)| Some((self.first_offer.wrapping_add(i as u32), o.key?)))
    }

    /// Offers that no revoke was sent for, oldest first.
    pub fn open_offers(&self) -> impl Iterator<Item = (u32, TaskKey)> {
        let open = |(_, o): &(usize, &Offer)| o.claim == Claim::Open;
        self.offers
            .iter()
            .enumerate()
            .filter(open)
            .filter_map(|(i, o)| Some((self.first_offer.wrapping_add(i as u32), o.key?)))
    }

    /// Whether the counts agree with the offers.
    pub fn is_consistent(&self) -> bool {
        let live = self.offers.iter().filter(|o| o.key.is_some()).count();
        let takeable = self.offers.iter().filter(|o| o.is_takeable()).count();
        live == self.outstanding as usize
            && takeable == self.takeable as usize
            && self.offers.front().is_none_or(|o| o.key.is_some())
    }

    /// Learns from a task that ran: its time sets the window.
    pub fn observe(&mut self, task_ns: u64, config: &Config) {
        self.completed += 1;
        self.busy_ns = self.busy_ns.saturating_add(task_ns);
        self.mean_task_ns = if self.completed == 1 || self.mean_task_ns == 0 {
            task_ns
        } else {
            self.mean_task_ns - self.mean_task_ns / 8 + task_ns / 8
        };
        let least = config.prefetch_min.max(1);
        let most = config.prefetch_max.clamp(least, CLAIM_SLOTS as u32);
        let wanted = config.prefetch_target_ns / self.mean_task_ns.max(1);
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        // At most doubled by each task, so one short task does not draw in a whole queue.
        self.window = wanted.clamp(least, most).min(self.window.saturating_mul(2));
    }

    pub fn knows(&self, function: u32) -> bool {
        let word = self.known_functions.get(function as usize / 64);
        word.is_some_and(|w| w >> (function % 64) & 1 == 1)
    }

    pub fn learn(&mut self, function: u32) {
        let index = function as usize / 64;
        if self.known_functions.len() <= index {
            self.known_functions.resize(index + 1, 0);
        }
        self.known_functions[index] |= 1 << (function % 64);
    }

    pub fn forget(&mut self, function: u32) {
        if let Some(word) = self.known_functions.get_mut(function as usize / 64) {
            *word &= !(1 << (function % 64));
        }
    }

    /// What is known of its death so far.
    pub fn certificate(&self, task_started: bool) -> DeathCertificate {
        let cause = self.ended_by_us.clone();
        let cause = cause.or_else(|| self.exit.as_ref().map(|e| e.cause.clone()));
        let info = self.info.as_ref();
        DeathCertificate {
            engine: self.id,
            uuid: info.map(|i| i.uuid.clone()).unwrap_or_default(),
            pid: self.pid(),
            host: info.map(|i| i.host.clone()).unwrap_or_default(),
            cause: cause.unwrap_or(DeathCause::Disconnected),
            last_output: self
                .exit
                .as_ref()
                .map(|e| e.last_output.clone())
                .unwrap_or_default(),
            task_started,
        }
    }

    pub fn state_name(&self) -> &'static str {
        match self.state {
            State::Starting { .. } => "starting",
            State::Up => "up",
            State::Leaving => "leaving",
            State::Dying => "dying",
            State::Restarting => "restarting",
            State::Gone => "gone",
        }
    }
}
