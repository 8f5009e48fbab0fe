//! Tasks: the table of live ones, and what they name. A key names one placement: it changes when a task leaves an engine to run again, so late news of the earlier placement is recognized as stale.

pub(crate) mod dependencies;
pub(crate) mod functions;
pub(crate) mod options;
pub(crate) mod targets;

use std::collections::BTreeMap;

use broadleaf_proto::ids::{ClientId, EngineId, TaskKey, TaskSeq};
use broadleaf_proto::task::Payload;
use smallvec::SmallVec;

use crate::Nanos;
use crate::tasks::options::OptionSets;

/// The order of tasks: deeper ones first, so that tasks that wait for them can continue, and then by priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub depth: u16,
    pub priority: i32,
}

/// Slot of a group of tasks that may run on the same engines; 0 is the group of all engines.
pub(crate) type GroupId = u32;

/// The state of a task. Each live task is in exactly one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskState {
    /// The slot holds no task.
    Vacant,
    /// Waits for dependencies.
    Waiting,
    /// Queued for any engine of a group.
    Ready(GroupId),
    /// Queued for this engine (mode `Each`).
    Pinned(EngineId),
    /// On an engine's claim board, running, or done but not reported yet.
    Offered(EngineId, u32),
    /// Between two states, within one call.
    Detached,
    /// Was running on an engine that died; waits for the death certificate.
    Orphaned(EngineId),
}

/// Why a task is being stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopping {
    /// It is not being stopped.
    No,
    /// Aborted by its client, which lets it take its time; or its client is gone.
    Asked,
    /// Aborted by its client.
    Cancel,
    /// Outlived its timeout.
    Timeout,
}

impl Stopping {
    /// Whether its engine is killed if it runs and does not end in time.
    pub fn is_forced(self) -> bool {
        matches!(self, Self::Cancel | Self::Timeout)
    }
}

/// Engines that a task does not run on. Most tasks run anywhere, so it lies apart.
#[derive(Clone, Debug, Default)]
pub(crate) struct Restrictions {
    /// Engines that answered `Unmet`, sorted.
    pub tried: SmallVec<[u32; 0]>,
    /// What the last of them said.
    pub unmet: Option<Box<str>>,
    /// The only engines that `follow` allows.
    pub followed: Option<SmallVec<[u32; 0]>>,
    /// The engine it failed on last, which the next attempt avoids if there is another.
    pub avoid: Option<EngineId>,
}

impl Restrictions {
    /// Whether an engine may run the task, and should.
    pub fn allows(&self, engine: EngineId) -> bool {
        self.avoid != Some(engine)
            && !self.tried.contains(&engine.0)
            && (self.followed.as_ref()).is_none_or(|followed| followed.contains(&engine.0))
    }
}

/// One task.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent facts")]
pub(crate) struct Task {
    generation: u32,
    state: TaskState,
    /// `None` when its client left.
    client: Option<ClientId>,
    seq: TaskSeq,
    /// The request whose results it is coalesced with.
    reply_group: Option<u32>,
    /// Slot in the function cache; holds one reference.
    function: u32,
    /// Slot among the option sets; holds one reference.
    options: u32,
    /// Its nesting depth: 0, or one more than that of the task that submitted it.
    depth: u16,
    retries_left: u32,
    stopping: Stopping,
    /// An interrupt was sent to it: an error is then no reason to retry.
    interrupted: bool,
    /// Its time has run out once, on an engine that had not even started it.
    stalled: bool,
    /// Its arguments are on their way to the host of its engine. Its timeout starts when they have
    /// arrived.
    is_travelling: bool,
    /// Other tasks wait for it.
    has_dependents: bool,
    /// Clients that did not submit it wait for its result.
    is_awaited: bool,
    /// The engine it must run on (mode `Each`).
    pinned: Option<EngineId>,
    restrictions: Option<Box<Restrictions>>,
    /// Its share of the inline bytes of its submission.
    inline_bytes: u64,
    submitted_ns: Nanos,
    /// When it was last offered to an engine; 0 if it has not been.
    offered_ns: Nanos,
    /// Its timer in the set of timers; 0 for none.
    timer_at: Nanos,
    payload: Payload,
}

/// What a task begins with; see [`Task`].
pub(crate) struct NewTask {
    pub client: ClientId,
    pub seq: TaskSeq,
    pub reply_group: Option<u32>,
    pub function: u32,
    pub options: u32,
    pub depth: u16,
    pub retries: u32,
    pub pinned: Option<EngineId>,
    pub inline_bytes: u64,
    pub submitted_ns: Nanos,
    pub payload: Payload,
}

impl From<NewTask> for Task {
    fn from(new: NewTask) -> Self {
        Self {
            generation: 0,
            state: TaskState::Detached,
            client: Some(new.client),
            seq: new.seq,
            reply_group: new.reply_group,
            function: new.function,
            options: new.options,
            depth: new.depth,
            retries_left: new.retries,
            stopping: Stopping::No,
            interrupted: false,
            stalled: false,
            is_travelling: false,
            has_dependents: false,
            is_awaited: false,
            pinned: new.pinned,
            restrictions: None,
            inline_bytes: new.inline_bytes,
            submitted_ns: new.submitted_ns,
            offered_ns: 0,
            timer_at: 0,
            payload: new.payload,
        }
    }
}

impl Task {
    /// To change which engines it runs on.
    fn restrict(&mut self) -> &mut Restrictions {
        self.restrictions.get_or_insert_default()
    }

    pub fn state(&self) -> TaskState {
        self.state
    }

    /// It is in this state from now on; returns the one that it was in.
    pub fn enter(&mut self, state: TaskState) -> TaskState {
        core::mem::replace(&mut self.state, state)
    }

    /// `None` when its client left.
    pub fn client(&self) -> Option<ClientId> {
        self.client
    }

    /// Its client left. A task that runs may finish; one that does not is taken back.
    pub fn lose_client(&mut self) {
        self.client = None;
        if self.stopping == Stopping::No {
            self.stopping = Stopping::Asked;
        }
    }

    pub fn seq(&self) -> TaskSeq {
        self.seq
    }

    /// The request whose results it is coalesced with.
    pub fn reply_group(&self) -> Option<u32> {
        self.reply_group
    }

    /// Slot in the function cache.
    pub fn function(&self) -> u32 {
        self.function
    }

    /// Slot among the option sets.
    pub fn options(&self) -> u32 {
        self.options
    }

    /// Its nesting depth.
    pub fn depth(&self) -> u16 {
        self.depth
    }

    /// The engine it must run on (mode `Each`).
    pub fn pinned(&self) -> Option<EngineId> {
        self.pinned
    }

    pub fn payload(&self) -> &Payload {
        &self.payload
    }

    /// Its share of the inline bytes of its submission.
    pub fn inline_bytes(&self) -> u64 {
        self.inline_bytes
    }

    pub fn submitted_ns(&self) -> Nanos {
        self.submitted_ns
    }

    /// When it was last offered to an engine; 0 if it has not been.
    pub fn offered_ns(&self) -> Nanos {
        self.offered_ns
    }

    /// It is offered to an engine; `is_travelling` says whether its arguments are on their way there.
    pub fn offer(&mut self, engine: EngineId, offer: u32, now: Nanos, is_travelling: bool) {
        self.state = TaskState::Offered(engine, offer);
        self.offered_ns = now;
        self.is_travelling = is_travelling;
    }

    /// Whether its arguments are on their way to the host of its engine.
    pub fn is_travelling(&self) -> bool {
        self.is_travelling
    }

    /// Its arguments have arrived.
    pub fn arrive(&mut self) {
        self.is_travelling = false;
    }

    pub fn stopping(&self) -> Stopping {
        self.stopping
    }

    /// It is being stopped from now on, or no longer.
    pub fn stop(&mut self, how: Stopping) {
        self.stopping = how;
    }

    /// An interrupt is sent to it.
    pub fn note_interrupt(&mut self) {
        self.interrupted = true;
    }

    pub fn was_interrupted(&self) -> bool {
        self.interrupted
    }

    /// Its time has run out on an engine that had not even started it: its next attempt is elsewhere if possible.
    pub fn stall(&mut self, engine: EngineId) {
        self.stalled = true;
        self.stopping = Stopping::No;
        self.restrict().avoid = Some(engine);
    }

    pub fn has_stalled(&self) -> bool {
        self.stalled
    }

    /// Whether it may be started again after a failure.
    pub fn may_retry(&self) -> bool {
        self.retries_left > 0
    }

    /// It is started again after it has failed on an engine, elsewhere if possible.
    pub fn use_retry(&mut self, failed_on: EngineId) {
        self.retries_left -= 1;
        self.restrict().avoid = Some(failed_on);
    }

    /// An engine does not meet its conditions.
    pub fn note_unmet(&mut self, engine: EngineId, said: String) {
        let restrictions = self.restrict();
        restrictions.unmet = Some(said.into());
        if let Err(index) = restrictions.tried.binary_search(&engine.0) {
            restrictions.tried.insert(index, engine.0);
        }
    }

    /// It runs only on these engines, which are sorted.
    pub fn follow(&mut self, engines: SmallVec<[u32; 0]>) {
        self.restrict().followed = Some(engines);
    }

    /// Whether other tasks wait for it.
    pub fn has_dependents(&self) -> bool {
        self.has_dependents
    }

    pub fn note_dependents(&mut self) {
        self.has_dependents = true;
    }

    /// No other task waits for it any more; whether one did.
    pub fn take_dependents(&mut self) -> bool {
        core::mem::take(&mut self.has_dependents)
    }

    /// Whether clients that did not submit it wait for its result.
    pub fn is_awaited(&self) -> bool {
        self.is_awaited
    }

    pub fn set_awaited(&mut self, is_awaited: bool) {
        self.is_awaited = is_awaited;
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

    /// Which engines it does not run on; `None` if it runs anywhere.
    pub fn restrictions(&self) -> Option<&Restrictions> {
        self.restrictions.as_deref()
    }

    /// Its rank in a queue. Tasks of mode `Each` keep the order of submission whatever their priority.
    pub fn rank(&self, options: &OptionSets) -> Rank {
        Rank {
            depth: self.depth,
            priority: match self.pinned {
                Some(_) => 0,
                None => options.at(self.options).options.priority,
            },
        }
    }
}

/// The part of a generation that says how many controllers there were before, so that their keys are not those of this one.
const OF_CONTROLLER: u32 = 0xff00_0000;

fn next_generation(generation: u32) -> u32 {
    generation & OF_CONTROLLER | generation.wrapping_add(1) & !OF_CONTROLLER
}

/// Slots with generations and a free list.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskTable {
    slots: Vec<Task>,
    free: Vec<u32>,
    first_generation: u32,
    /// Tasks that earlier controllers began, by the keys that those gave them.
    adopted: BTreeMap<TaskKey, TaskKey>,
    /// The other way round.
    former: BTreeMap<TaskKey, TaskKey>,
}

impl TaskTable {
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// There were so many controllers before this one. Comes before the first task.
    pub fn begin_after(&mut self, n_controllers: u32) {
        self.first_generation = n_controllers << OF_CONTROLLER.trailing_zeros();
    }

    /// A task has another key at its engine: an earlier controller's.
    pub fn adopt(&mut self, former: TaskKey, key: TaskKey) {
        self.adopted.insert(former, key);
        self.former.insert(key, former);
    }

    /// A task is over, or has another key from now on.
    fn forget_former(&mut self, key: TaskKey) {
        if !self.former.is_empty()
            && let Some(former) = self.former.remove(&key)
        {
            self.adopted.remove(&former);
        }
    }

    /// The key of a task that an engine names.
    pub fn named(&self, key: TaskKey) -> TaskKey {
        if self.adopted.is_empty() {
            return key;
        }
        self.adopted.get(&key).copied().unwrap_or(key)
    }

    /// Adds a task.
    pub fn insert(&mut self, task: NewTask) -> TaskKey {
        let mut task = Task::from(task);
        if let Some(slot) = self.free.pop() {
            let old = &mut self.slots[slot as usize];
            task.generation = old.generation;
            let key = TaskKey::new(slot, task.generation);
            *old = task;
            return key;
        }
        let slot = self.slots.len() as u32;
        task.generation = self.first_generation;
        self.slots.push(task);
        TaskKey::new(slot, self.first_generation)
    }

    /// Frees a live task's slot and returns its payload.
    pub fn remove(&mut self, key: TaskKey) -> Payload {
        self.forget_former(key);
        let task = self.at(key);
        task.state = TaskState::Vacant;
        task.generation = next_generation(task.generation);
        task.restrictions = None;
        let payload = core::mem::take(&mut task.payload);
        self.free.push(key.slot() as u32);
        payload
    }

    /// Gives a live task a new key, which makes the old one stale.
    pub fn rename(&mut self, key: TaskKey) -> TaskKey {
        self.forget_former(key);
        let task = self.at(key);
        task.generation = next_generation(task.generation);
        TaskKey::new(key.slot() as u32, task.generation)
    }

    /// The task, unless the key is stale.
    pub fn get(&self, key: TaskKey) -> Option<&Task> {
        self.slots
            .get(key.slot())
            .filter(|t| t.generation == key.generation() && t.state != TaskState::Vacant)
    }

    /// The task's state, unless the key is stale.
    pub fn state(&self, key: TaskKey) -> Option<TaskState> {
        self.get(key).map(Task::state)
    }

    /// A task that the caller knows to be live.
    pub fn at(&mut self, key: TaskKey) -> &mut Task {
        let task = &mut self.slots[key.slot()];
        debug_assert!(task.generation == key.generation() && task.state != TaskState::Vacant);
        task
    }

    /// The current key of the task in a slot.
    pub fn key_at(&self, slot: u32) -> Option<TaskKey> {
        self.slots
            .get(slot as usize)
            .filter(|t| t.state != TaskState::Vacant)
            .map(|t| TaskKey::new(slot, t.generation))
    }

    /// Every live task.
    pub fn iter(&self) -> impl Iterator<Item = (TaskKey, &Task)> {
        self.slots
            .iter()
            .enumerate()
            .filter(|(_, t)| t.state != TaskState::Vacant)
            .map(|(slot, t)| (TaskKey::new(slot as u32, t.generation), t))
    }
}
