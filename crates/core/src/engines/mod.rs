//! Engines and their hosts: what is offered to each, how they come and go, and what becomes of their tasks.

mod awake;
pub(crate) mod deaths;
pub(crate) mod draining;
pub(crate) mod given;
pub(crate) mod hosts;
mod lists;
pub(crate) mod observers;
pub(crate) mod preparations;
pub(crate) mod reports;
mod slots;
pub(crate) mod supervisor;
pub(crate) mod worlds;

pub(crate) use self::awake::Choice;
pub(crate) use self::lists::NumberSet;
pub(crate) use self::slots::Engines;

use std::collections::VecDeque;

use broadleaf_proto::control::{DeathCause, DeathCertificate, EngineInfo};
use broadleaf_proto::ids::{EngineId, HostId, TaskKey};
use broadleaf_proto::limits::CLAIM_SLOTS;

use crate::clients::unread::Unread;
use crate::placement::offers::Offer;
use crate::placement::ready::ReadyQueue;
use crate::tasks::nesting::Suspended;
use crate::{Config, Nanos};

/// Maximum number of engine slots, and of targets of one request.
pub(crate) const MAX_ENGINES: u32 = 65_536;

/// How long a host that refuses to create a process is asked again: it has reached a limit, which seldom passes by
/// itself, and the user waits.
const REFUSED_START_NS: Nanos = 5_000_000_000;

/// The state of an engine's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Requested; its hello is awaited until its timer expires.
    Starting {
        /// Whether the current fork server was told.
        spawn_sent: bool,
    },
    /// Takes tasks.
    Up,
    /// Takes no new tasks, and is told to stop once it has finished. Its timer, if any, ends the wait for that.
    Draining,
    /// Told to stop (or killed); takes no more tasks. Its timer triggers the next step of force.
    Leaving,
    /// One notice of its death has arrived; its timer ends the wait for the other.
    Dying,
    /// Dead; started again when its timer expires.
    Restarting,
    /// Dead or never requested, and nothing will start it.
    Gone,
}

/// How a process ended, as the fork server saw it.
#[derive(Clone, Debug)]
pub(crate) struct Exit {
    pub cause: DeathCause,
    pub last_output: String,
}

/// Which rank of which MPI world has a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Guest {
    pub world: String,
    pub rank: u32,
}

/// One engine slot.
///
/// What every task reads and writes comes first and lies together: long tasks are spread over all engines, and with
/// thousands of them none of this is in the processor's cache.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
#[expect(clippy::struct_excessive_bools, reason = "they are independent facts")]
pub(crate) struct Engine {
    pub id: EngineId,
    /// The host of its slot.
    pub host: HostId,
    pub state: State,
    /// Whether it received a task addressed to it, which may have left data in its memory.
    pub holds_data: bool,
    /// Whether it was noted that its oldest offer started long ago.
    pub is_late: bool,
    pub(crate) first_offer: u32,
    /// Offers that are neither done nor taken back nor waiting for other tasks.
    pub outstanding: u32,
    /// Offers that could be taken back for another engine.
    pub(crate) takeable: u32,
    /// Unfinished offers whose tasks are not known to be short.
    pub(crate) n_long: u32,
    /// Offers being taken back that later ones must not overtake: those of mode `Each`.
    pub returning: u32,
    /// Revokes under way on its behalf.
    pub stealing: u32,
    pub window: u32,
    /// Its offers in order, without those of `stack`.
    pub(crate) offers: VecDeque<Offer>,
    /// Its unfinished tasks that have waited for others, each started while the previous one waited.
    pub(crate) stack: Vec<Suspended>,
    /// How long the offers that `n_long` does not count take, estimated from earlier tasks of their functions.
    pub(crate) short_ns: Nanos,
    /// When its oldest offer is believed to have started.
    pub head_since: Nanos,
    /// The scheduler's counter when it was last given a task.
    pub last_used: u64,
    pub mean_task_ns: u64,
    pub completed: u64,
    pub busy_ns: u64,
    known_functions: NumberSet,
    /// Those of them that it has run.
    tried_functions: NumberSet,
    /// Tasks that must run here.
    pub pinned: ReadyQueue,
    /// Output of its task that was not sent to the client.
    pub unread: Unread,
    /// The rank that owns the slot as long as the cluster lasts; `None` for engines that fork servers start.
    pub guest: Option<Guest>,
    /// Its timer in the set of timers; 0 for none.
    pub timer_at: Nanos,
    /// The content of its hello, while it is alive.
    pub info: Option<EngineInfo>,
    /// The process that the fork server started for it; 0 for none.
    pub spawned_pid: u32,
    pub link_down: bool,
    pub exit: Option<Exit>,
    /// Why we ended it, if we did.
    pub ended_by_us: Option<DeathCause>,
    /// Whether the kill was sent.
    pub killed: bool,
    /// Whether to fill its slot again after its death; `None` leaves it to the settings.
    pub restart: Option<bool>,
    /// Dead, and included when all engines are restarted: it was not stopped for good.
    pub is_revivable: bool,
    /// Its last death, and when that was.
    pub last_death: Option<(DeathCertificate, Nanos)>,
    /// Number of consecutive failures to create a process for it.
    pub failed_starts: u32,
    /// When to stop retrying.
    pub start_by: Nanos,
    /// Times of its restarts within the last minute.
    pub restart_times: VecDeque<Nanos>,
    /// Tasks that ran on it when it died.
    pub orphans: Vec<TaskKey>,
    pub restarts: u64,
}

impl Engine {
    pub fn new(id: EngineId, config: &Config) -> Self {
        Self {
            id,
            host: HostId::CONTROLLER,
            state: State::Gone,
            guest: None,
            timer_at: 0,
            info: None,
            spawned_pid: 0,
            link_down: false,
            exit: None,
            ended_by_us: None,
            killed: false,
            restart: None,
            is_revivable: false,
            last_death: None,
            failed_starts: 0,
            start_by: 0,
            restart_times: VecDeque::new(),
            orphans: Vec::new(),
            unread: Unread::default(),
            holds_data: false,
            pinned: ReadyQueue::default(),
            offers: VecDeque::new(),
            first_offer: 0,
            stack: Vec::new(),
            outstanding: 0,
            takeable: 0,
            n_long: 0,
            short_ns: 0,
            returning: 0,
            last_used: 0,
            stealing: 0,
            head_since: 0,
            is_late: false,
            window: config.prefetch_min.max(1),
            mean_task_ns: 0,
            known_functions: NumberSet::default(),
            tried_functions: NumberSet::default(),
            completed: 0,
            busy_ns: 0,
            restarts: 0,
        }
    }

    /// Forgets everything about the previous process.
    pub fn reset(&mut self, config: &Config) {
        self.info = None;
        self.spawned_pid = 0;
        self.link_down = false;
        self.exit = None;
        self.ended_by_us = None;
        self.killed = false;
        self.restart = None;
        self.holds_data = false;
        self.offers.clear();
        self.first_offer = 0;
        self.stack.clear();
        self.outstanding = 0;
        self.takeable = 0;
        self.n_long = 0;
        self.short_ns = 0;
        self.returning = 0;
        self.stealing = 0;
        self.is_late = false;
        self.window = config.prefetch_min.max(1);
        self.mean_task_ns = 0;
        self.forget_functions();
    }

    /// The engine is to be started now, for the first time or after attempts that failed.
    pub fn begin_start(&mut self, now: Nanos, timeout_ns: Nanos) {
        if self.failed_starts == 0 {
            self.start_by = now.saturating_add(timeout_ns.min(REFUSED_START_NS));
        }
    }

    /// Whether it said hello, and its death was not certified.
    pub fn has_process(&self) -> bool {
        matches!(
            self.state,
            State::Up | State::Draining | State::Leaving | State::Dying
        )
    }

    /// Whether there is a process to send things to.
    pub fn is_connected(&self) -> bool {
        self.has_process() && !self.link_down
    }

    pub fn pid(&self) -> u32 {
        self.info.as_ref().map_or(self.spawned_pid, |i| i.pid)
    }

    /// Whether a fork server started it, or is to; if not, it was started by hand.
    pub fn is_spawned(&self) -> bool {
        self.spawned_pid != 0 || self.info.is_none()
    }

    /// Whether it takes tasks that must run here, now or later.
    pub fn takes_pinned(&self) -> bool {
        !matches!(self.state, State::Gone | State::Draining)
    }

    /// Whether it has nothing to do. A task of its own may wait, and it then takes only deeper ones.
    pub fn is_idle(&self) -> bool {
        self.state == State::Up && self.outstanding == 0 && self.stealing == 0
    }

    /// Whether another task may be offered. One that drains takes those that a task of its own may wait for.
    pub fn has_room(&self) -> bool {
        match self.state {
            State::Up => self.is_within_window(),
            State::Draining => self.floor().is_some() && self.is_within_window(),
            _ => false,
        }
    }

    /// Whether a task that must run here may be offered.
    pub fn has_room_for_pinned(&self) -> bool {
        matches!(self.state, State::Up | State::Draining) && self.is_within_window()
    }

    /// Whether the next of the tasks that must run here may be offered now: not while earlier ones are being taken back.
    pub fn can_take_pinned(&self) -> bool {
        self.pinned.len() > 0
            && self.has_room_for_pinned()
            && self.returning == 0
            && (self.pinned.top_rank())
                .is_some_and(|rank| self.stack.is_empty() || self.accepts(rank.depth))
    }

    fn is_within_window(&self) -> bool {
        self.outstanding < self.window && self.offers.len() < CLAIM_SLOTS
    }

    /// It is believed to run another task from now on.
    pub fn begin_head(&mut self, now: Nanos) {
        self.head_since = now;
        self.is_late = false;
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
        let min_window = config.prefetch_min.max(1);
        let max_window = config.prefetch_max.clamp(min_window, CLAIM_SLOTS as u32);
        let wanted = config.prefetch_target_ns / self.mean_task_ns.max(1);
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        // At most doubled by each task, so one short task does not draw in a whole queue.
        self.window = wanted
            .clamp(min_window, max_window)
            .min(self.window.saturating_mul(2));
    }

    pub fn knows(&self, function: u32) -> bool {
        self.known_functions.contains(function)
    }

    pub fn learn(&mut self, function: u32) {
        self.known_functions.insert(function);
    }

    /// It has run a function; true if that was the first time.
    pub fn try_function(&mut self, function: u32) -> bool {
        self.tried_functions.insert(function)
    }

    pub fn forget(&mut self, function: u32) {
        self.known_functions.remove(function);
        self.tried_functions.remove(function);
    }

    /// Has every function sent anew before the next task that names it.
    pub fn forget_functions(&mut self) {
        self.known_functions.clear();
        self.tried_functions.clear();
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
            State::Draining => "draining",
            State::Leaving => "leaving",
            State::Dying => "dying",
            State::Restarting => "restarting",
            State::Gone => "gone",
        }
    }
}
