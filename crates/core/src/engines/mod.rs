//! Engines and their hosts: what is known of each, and what it was offered.

mod awake;
pub(crate) mod given;
pub(crate) mod host_table;
pub(crate) mod observers;
pub(crate) mod offers;
pub(crate) mod preparations;
mod slots;
pub(crate) mod supervisor;
pub(crate) mod unclaimed;
pub(crate) mod worlds;

pub(crate) use self::awake::Choice;
pub(crate) use self::slots::Engines;

use std::collections::VecDeque;

use broadleaf_proto::control::{DeathCause, DeathCertificate, EngineInfo};
use broadleaf_proto::ids::{EngineId, HostId, TaskKey};
use broadleaf_proto::limits::CLAIM_SLOTS;

use crate::clients::unread::Unread;
use crate::counters::EngineCounters;
use crate::engines::offers::Offers;
use crate::lists::NumberSet;
use crate::placement::ready::ReadyQueue;
use crate::tasks::Task;
use crate::{Config, Nanos};

pub(crate) const SIGKILL: i32 = 9;

/// How long a host that refuses to create a process is asked again: it has reached a limit, which seldom passes by
/// itself, and the user waits.
const REFUSED_START_NS: Nanos = 5_000_000_000;

const MINUTE_NS: Nanos = 60_000_000_000;

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
struct Exit {
    cause: DeathCause,
    last_output: String,
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
pub(crate) struct Engine {
    id: EngineId,
    /// The host of its slot.
    host: HostId,
    state: State,
    /// Its host does not answer at the moment: it gets nothing new, and nothing is taken back from it.
    is_away: bool,
    /// Whether it received a task addressed to it, which may have left data in its memory.
    holds_data: bool,
    /// Whether it was noted that its oldest offer started long ago.
    is_late: bool,
    /// Revokes under way on its behalf.
    stealing: u32,
    window: u32,
    offers: Offers,
    /// When its oldest offer is believed to have started.
    head_since: Nanos,
    /// Number of offers that had been made to all engines when it was last given a task.
    last_used: u64,
    mean_task_ns: u64,
    completed: u64,
    busy_ns: u64,
    known_functions: NumberSet,
    /// Those of them that it has run.
    tried_functions: NumberSet,
    /// Tasks that must run here.
    pinned: ReadyQueue,
    /// Output of its task that was not sent to the client.
    unread: Unread,
    /// The rank that owns the slot as long as the cluster lasts; `None` for engines that fork servers start.
    guest: Option<Guest>,
    /// Its timer in the set of timers; 0 for none.
    timer_at: Nanos,
    /// The content of its hello, while it is alive.
    info: Option<EngineInfo>,
    /// The process that the fork server started for it; 0 for none.
    spawned_pid: u32,
    link_down: bool,
    exit: Option<Exit>,
    /// Why we ended it, if we did.
    ended_by_us: Option<DeathCause>,
    /// Whether the kill was sent.
    killed: bool,
    /// Whether to fill its slot again after its death; `None` leaves it to the settings.
    restart: Option<bool>,
    /// Dead, and included when all engines are restarted: it was not stopped for good.
    is_revivable: bool,
    /// Its last death, and when that was.
    last_death: Option<(DeathCertificate, Nanos)>,
    /// Number of consecutive failures to create a process for it.
    failed_starts: u32,
    /// When to stop retrying.
    start_by: Nanos,
    /// Times of its restarts within the last minute.
    restart_times: VecDeque<Nanos>,
    /// Tasks that ran on it when it died.
    orphans: Vec<TaskKey>,
    restarts: u64,
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
            is_away: false,
            last_death: None,
            failed_starts: 0,
            start_by: 0,
            restart_times: VecDeque::new(),
            orphans: Vec::new(),
            unread: Unread::default(),
            holds_data: false,
            pinned: ReadyQueue::default(),
            offers: Offers::default(),
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

    /// Its engine slot.
    pub fn id(&self) -> EngineId {
        self.id
    }

    /// The host of its slot.
    pub fn host(&self) -> HostId {
        self.host
    }

    /// Its slot belongs to another host from now on, which answers.
    pub fn move_to(&mut self, host: HostId) {
        if self.host != host {
            self.host = host;
            self.is_away = false;
        }
    }

    /// Whether its host does not answer at the moment.
    pub fn is_away(&self) -> bool {
        self.is_away
    }

    /// Its host does not answer, or does so again.
    pub fn set_away(&mut self, is_away: bool) {
        self.is_away = is_away;
    }

    pub fn state(&self) -> State {
        self.state
    }

    pub fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// Whether nothing will start it.
    pub fn is_gone(&self) -> bool {
        self.state == State::Gone
    }

    /// The rank that owns the slot; `None` for engines that fork servers start.
    pub fn guest(&self) -> Option<&Guest> {
        self.guest.as_ref()
    }

    /// A rank owns the slot from now on.
    pub fn reserve(&mut self, guest: Guest) {
        self.guest = Some(guest);
    }

    /// The content of its hello, while it is alive.
    pub fn info(&self) -> Option<&EngineInfo> {
        self.info.as_ref()
    }

    /// The process that the fork server started for it; 0 for none.
    pub fn spawned_pid(&self) -> u32 {
        self.spawned_pid
    }

    /// Nobody reports the end of its process.
    pub fn forget_process(&mut self) {
        self.spawned_pid = 0;
    }

    /// Whether it is known how its process ended.
    pub fn has_exited(&self) -> bool {
        self.exit.is_some()
    }

    pub fn is_link_down(&self) -> bool {
        self.link_down
    }

    pub fn is_killed(&self) -> bool {
        self.killed
    }

    /// Why we ended it, if we did.
    pub fn ended_by_us(&self) -> Option<&DeathCause> {
        self.ended_by_us.as_ref()
    }

    /// Whether a restart of all engines includes it: it has not been stopped for good, and is not being stopped for good.
    pub fn is_restarted_with_all(&self) -> bool {
        match self.state {
            State::Gone => self.is_revivable,
            State::Leaving | State::Dying => self.restart != Some(false),
            State::Starting { .. } | State::Up | State::Draining | State::Restarting => true,
        }
    }

    /// Its timer in the set of timers; 0 for none.
    pub fn timer_at(&self) -> Nanos {
        self.timer_at
    }

    pub fn set_timer_at(&mut self, at: Nanos) {
        self.timer_at = at;
    }

    /// It has no timer any more; returns the one that it had.
    pub fn take_timer_at(&mut self) -> Nanos {
        core::mem::take(&mut self.timer_at)
    }

    /// Tasks that must run here.
    pub fn pinned(&self) -> &ReadyQueue {
        &self.pinned
    }

    pub fn pinned_mut(&mut self) -> &mut ReadyQueue {
        &mut self.pinned
    }

    /// Output of its task that was not sent to the client.
    pub fn unread_mut(&mut self) -> &mut Unread {
        &mut self.unread
    }

    /// When its oldest offer is believed to have started.
    pub fn head_since(&self) -> Nanos {
        self.head_since
    }

    /// Whether that was noted to be long ago.
    pub fn is_late(&self) -> bool {
        self.is_late
    }

    pub fn mean_task_ns(&self) -> u64 {
        self.mean_task_ns
    }

    /// Number of tasks that ended on it.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Whether tasks are being taken back for it.
    pub fn is_stealing(&self) -> bool {
        self.stealing > 0
    }

    /// Revokes were sent on its behalf.
    pub fn begin_steals(&mut self, n: u32) {
        self.stealing += n;
    }

    /// One of them was answered.
    pub fn end_steal(&mut self) {
        self.stealing = self.stealing.saturating_sub(1);
    }

    /// It is offered a task as the `n`th offer of all; gives the offer's number.
    pub fn offer(&mut self, key: TaskKey, task: &Task, short_ns: u32, n: u64) -> u32 {
        let is_pinned = task.pinned().is_some();
        self.holds_data |= is_pinned;
        self.last_used = n;
        self.offers.push(key, !is_pinned, task.depth(), short_ns)
    }

    /// Its hello is awaited; `spawn_sent` says whether the fork server was told to start it.
    pub fn await_hello(&mut self, spawn_sent: bool) {
        self.state = State::Starting { spawn_sent };
    }

    /// A rank's process has asked for its slot.
    pub fn seat(&mut self, host: HostId, pid: u32) {
        self.move_to(host);
        self.spawned_pid = pid;
        self.await_hello(true);
    }

    /// The fork server has started a process for it. False if that is no longer wanted.
    pub fn on_spawned(&mut self, pid: u32) -> bool {
        let is_wanted = match self.state {
            State::Starting { spawn_sent } => spawn_sent,
            State::Up | State::Draining | State::Leaving | State::Dying => true,
            State::Restarting | State::Gone => false,
        };
        if is_wanted {
            self.spawned_pid = pid;
            self.failed_starts = 0;
        }
        is_wanted
    }

    /// No process could be created for it. False if none is awaited.
    pub fn on_not_started(&mut self, reason: String) -> bool {
        let is_awaited =
            self.state == (State::Starting { spawn_sent: true }) && self.spawned_pid == 0;
        if is_awaited {
            self.failed_starts += 1;
            self.note_exit(DeathCause::NotStarted, reason);
        }
        is_awaited
    }

    /// It said hello: it is up. Returns what others are told of it.
    pub fn on_hello(&mut self, now: Nanos, mut info: EngineInfo, config: &Config) -> EngineInfo {
        let spawned_pid = match (self.state, self.spawned_pid) {
            (State::Starting { spawn_sent: true }, 0) => info.pid,
            (State::Starting { spawn_sent: true }, pid) => pid,
            _ => 0,
        };
        if let Some(guest) = &self.guest {
            // These are named like the relays of blocks, so that the engines of a set are
            // identified by their hosts.
            let host = info.host.split(':').next().unwrap_or_default();
            info.host = format!("{host}:{}", guest.world);
        }
        self.reset(config);
        self.failed_starts = 0;
        self.spawned_pid = spawned_pid;
        self.info = Some(info.clone());
        self.begin_head(now);
        self.state = State::Up;
        info
    }

    /// It takes no new tasks from now on.
    pub fn begin_draining(&mut self) {
        self.state = State::Draining;
    }

    /// Its slot is not filled again after its end.
    pub fn release(&mut self) {
        self.restart = Some(false);
        self.is_revivable = false;
    }

    /// Its successor is here before its death was reported.
    pub fn expect_successor(&mut self) {
        self.restart = Some(true);
    }

    /// Whether its slot is to be filled again after its end; a released engine does not come back. Returns which it is.
    pub fn set_restart(&mut self, restart: bool) -> bool {
        let restart = restart && self.state != State::Draining;
        self.restart = Some(restart);
        self.is_revivable &= restart;
        restart
    }

    /// It is told to stop. Returns whether it was up.
    pub fn begin_leaving(&mut self, cause: DeathCause) -> bool {
        let was_up = self.state == State::Up;
        self.state = State::Leaving;
        self.ended_by_us.get_or_insert(cause);
        was_up
    }

    /// Its process is ended. Returns whether it was up; `None` if it is not alive, or was killed before.
    pub fn kill(&mut self, cause: DeathCause) -> Option<bool> {
        let is_alive = matches!(self.state, State::Up | State::Draining | State::Leaving);
        if self.killed || !is_alive {
            return None;
        }
        self.killed = true;
        Some(self.begin_leaving(cause))
    }

    /// Its link is closed.
    pub fn drop_link(&mut self) {
        self.link_down = true;
    }

    /// How its process ended, unless that is known.
    pub fn note_exit(&mut self, cause: DeathCause, last_output: String) {
        self.exit.get_or_insert(Exit { cause, last_output });
    }

    /// One notice of its death has arrived.
    pub fn begin_dying(&mut self) {
        self.state = State::Dying;
    }

    /// These tasks ran on it when it died.
    pub fn add_orphans(&mut self, keys: impl IntoIterator<Item = TaskKey>) {
        self.orphans.extend(keys);
    }

    pub fn orphans(&self) -> &[TaskKey] {
        &self.orphans
    }

    pub fn take_orphans(&mut self) -> Vec<TaskKey> {
        core::mem::take(&mut self.orphans)
    }

    pub fn drop_orphan(&mut self, key: TaskKey) {
        self.orphans.retain(|k| *k != key);
    }

    /// Its death is certified.
    pub fn note_death(&mut self, now: Nanos, certificate: DeathCertificate) {
        self.last_death = Some((certificate, now));
        self.is_revivable = self.is_spawned() && self.restart != Some(false);
    }

    /// Whether to fill its slot again after its death; `None` leaves it to the settings.
    pub fn restart(&self) -> Option<bool> {
        self.restart
    }

    /// Number of consecutive failures to create a process for it.
    pub fn failed_starts(&self) -> u32 {
        self.failed_starts
    }

    /// Whether its host may be asked again at this time, after it has failed to create a process.
    pub fn may_retry_at(&self, at: Nanos) -> bool {
        at < self.start_by
    }

    /// Its host will not be asked again because of earlier failures.
    pub fn forget_failed_starts(&mut self) {
        self.failed_starts = 0;
    }

    /// Number of its restarts within the last minute.
    pub fn recent_restarts(&mut self, now: Nanos) -> u32 {
        while let Some(at) = self.restart_times.front() {
            if now.saturating_sub(*at) < MINUTE_NS {
                break;
            }
            self.restart_times.pop_front();
        }
        self.restart_times.len() as u32
    }

    /// It is started again later.
    pub fn begin_restart(&mut self, now: Nanos, config: &Config) {
        self.reset(config);
        self.state = State::Restarting;
        if self.failed_starts == 0 {
            self.restart_times.push_back(now);
            self.restarts += 1;
        }
    }

    /// A client has it started again.
    pub fn count_restart(&mut self) {
        self.restarts += u64::from(self.last_death.is_some());
    }

    /// Nothing will start it again.
    pub fn give_up(&mut self) {
        self.failed_starts = 0;
        self.state = State::Gone;
    }

    /// Its counters, without what it is running.
    pub fn counters(&self) -> EngineCounters {
        EngineCounters {
            engine: self.id,
            up: self.state == State::Up,
            state: self.state_name(),
            pid: self.pid(),
            outstanding: self.offers.n_unfinished() as u64,
            waiting: self.offers.n_waiting() as u64,
            queued: self.pinned.len() as u64,
            completed: self.completed,
            window: self.window,
            mean_task_ns: self.mean_task_ns,
            busy_ns: self.busy_ns,
            restarts: self.restarts,
            last_death: self.last_death.clone(),
            host: (self.info.as_ref()).map_or_else(String::new, |i| i.host.clone()),
            holds_data: self.holds_data,
            idle_since: self.idle_since(),
            running: None,
        }
    }

    /// Whether the counts agree with the offers, and these are within the window.
    pub fn is_consistent(&self, config: &Config) -> bool {
        let max_window = config.prefetch_max.max(config.prefetch_min).max(1);
        self.offers.is_consistent()
            && (1..=max_window).contains(&self.window)
            && self.offers.outstanding() <= max_window + self.offers.n_stacked() as u32
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
        let is_free = self.offers.outstanding() == 0 && self.stealing == 0;
        self.state == State::Up && !self.is_away && is_free
    }

    /// Whether another task may be offered. One that drains takes those that a task of its own may wait for.
    pub fn has_room(&self) -> bool {
        match self.state {
            State::Up => self.is_within_window(),
            State::Draining => self.offers.floor().is_some() && self.is_within_window(),
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
            && !self.offers.some_return()
            && (self.pinned.top_rank()).is_some_and(|rank| self.offers.accepts(rank.depth))
    }

    fn is_within_window(&self) -> bool {
        !self.is_away && self.offers.outstanding() < self.window && self.offers.has_slot()
    }

    /// What it was offered.
    pub fn offers(&self) -> &Offers {
        &self.offers
    }

    /// To change what it was offered.
    pub fn offers_mut(&mut self) -> &mut Offers {
        &mut self.offers
    }

    /// Offers behind the head that could be taken back for another engine. While its host does not answer, none is.
    pub fn n_stealable(&self) -> u32 {
        if self.is_away {
            0
        } else {
            self.offers.n_stealable()
        }
    }

    /// How long those will take if each takes this long.
    pub fn tail_ns(&self, task_ns: Nanos) -> Nanos {
        u64::from(self.n_stealable()).saturating_mul(task_ns)
    }

    /// The offer believed to run.
    pub fn head(&self) -> Option<(TaskKey, u32)> {
        self.offers.head()
    }

    /// Whether it has finished everything that only it can finish.
    pub fn is_drained(&self) -> bool {
        self.offers.is_empty() && self.pinned.len() == 0
    }

    /// Since when it has been idle.
    pub fn idle_since(&self) -> Option<Nanos> {
        (self.state == State::Up && self.is_drained()).then_some(self.head_since)
    }

    /// Whether a client may have left data in its memory: it has received a task addressed to it, or one is queued.
    pub fn may_hold_data(&self) -> bool {
        self.holds_data || self.pinned.len() > 0
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
            State::Up if self.is_away => "away",
            State::Up => "up",
            State::Draining => "draining",
            State::Leaving => "leaving",
            State::Dying => "dying",
            State::Restarting => "restarting",
            State::Gone => "gone",
        }
    }
}
