//! One host's node, its engines and their lane, step by step: each access to shared memory, each read and each wake-up is
//! an event of its own, and any other process may come in between, however long.
//!
//! A task ends once, whatever way it took: answered, taken back, or with its engine. An engine's tasks run in the order
//! in which they were sent, and end after their output. No answer waits behind a long task's. Once nothing is left to happen, nothing is left to end.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use broadleaf_core::{Lane, Nanos};
use broadleaf_engine::{Arrived, LaneTask, Look, Turns};
use broadleaf_proto::LaneWord;
use broadleaf_proto::ids::{EngineId, TaskKey};

use crate::random::Random;

const MS: Nanos = 1_000_000;
/// Broadcasts and other tasks are submitted in this time.
const BUSY_NS: Nanos = 60 * MS;
/// An answer waits for others that come soon, and not for a long task's.
const HELD_NS: Nanos = 20 * MS;

/// The result of a run of one seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneOutcome {
    /// Number of tasks that were answered.
    pub answered: u64,
    /// Number of them whose answer came by the lane.
    pub by_lane: u64,
    /// Number of tasks that were taken back.
    pub revoked: u64,
    /// Number of engines that died.
    pub deaths: u64,
    /// Number of broadcasts that took the lane.
    pub rounds: u64,
    /// Number of answers that were counted in a later round.
    pub late_counts: u64,
    /// The longest time from an answer that its node could read to its end.
    pub longest_ns: Nanos,
}

/// A fault put into the engines or the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LaneMutation {
    /// None.
    #[default]
    None,
    /// An engine that hears the bell while its task waits for another one does not look at the lane.
    ForgetsTheBell,
    /// The node does not look at the places when the last answer is counted.
    LooksAtSocketsOnly,
    /// The node looks at the places, and does not say that it is in a hurry.
    SaysNoHurry,
    /// The node takes no timer for the lane.
    TakesNoTimer,
    /// The engine takes what is in its place before what was sent earlier.
    IgnoresTheOrder,
    /// The node takes an answer before what the engine sent earlier.
    IgnoresTheOrderOfAnswers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Task {
    key: TaskKey,
    /// How long it runs.
    run_ns: Nanos,
    /// It writes something at its end.
    writes: bool,
    /// It waits for others, and its engine hears the bell meanwhile.
    waits: bool,
    /// Its answer fits into a place.
    is_small: bool,
}

#[derive(Clone, Copy, Debug)]
enum ToEngine {
    Task(Task),
    Other,
}

#[derive(Clone, Copy, Debug)]
enum ToNode {
    Output(TaskKey),
    Done(TaskKey),
    Answered,
}

/// One direction of a socket.
#[derive(Debug)]
struct Socket<T> {
    /// Frames that were queued so far.
    n_queued: u64,
    queued: VecDeque<T>,
    /// What the kernel has.
    sent: VecDeque<T>,
    /// What was received and not taken.
    received: VecDeque<T>,
    n_taken: u64,
}

impl<T> Socket<T> {
    fn new() -> Self {
        Self {
            n_queued: 0,
            queued: VecDeque::new(),
            sent: VecDeque::new(),
            received: VecDeque::new(),
            n_taken: 0,
        }
    }

    fn queue(&mut self, frame: T) {
        self.n_queued += 1;
        self.queued.push_back(frame);
    }

    fn flush(&mut self) {
        self.sent.append(&mut self.queued);
    }

    fn fill(&mut self) {
        self.received.append(&mut self.sent);
    }

    fn take(&mut self) -> Option<T> {
        let frame = self.received.pop_front()?;
        self.n_taken += 1;
        Some(frame)
    }
}

/// What an engine does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Sleep,
    Wake,
    Look(Look),
    Next,
    Waits,
    Ends,
    Answer,
    Count,
    Flush,
}

#[derive(Debug)]
struct Engine {
    is_alive: bool,
    step: Step,
    inbox: Socket<ToEngine>,
    outbox: Socket<ToNode>,
    /// Its place: the task, after so many frames, of a round.
    task: Option<(u64, u32, Task)>,
    /// Its place: the answer, after so many frames, since when.
    answer: Option<(u64, TaskKey, Nanos)>,
    /// The bell has rung since it was last heard.
    has_rung: bool,
    work: VecDeque<Task>,
    running: Option<Task>,
    /// It is answered or lost, and not counted.
    to_count: Option<TaskKey>,
    lane_task: LaneTask,
    turns: Turns,
    /// Tasks in the order in which they were sent.
    order: VecDeque<TaskKey>,
}

impl Engine {
    fn is_letter_due(&self) -> bool {
        let after = self.task.map(|(after, ..)| after);
        after.is_some_and(|after| after <= self.inbox.n_taken)
    }

    /// Queues what is in the socket and in its place, in order.
    fn look(&mut self, look: Look, ignores_order: bool) {
        if look == Look::Everywhere {
            self.inbox.fill();
        }
        if ignores_order {
            self.take_letter();
        }
        loop {
            if self.is_letter_due() {
                self.take_letter();
            }
            match self.inbox.take() {
                Some(ToEngine::Task(task)) => self.work.push_back(task),
                Some(ToEngine::Other) => {}
                None => break,
            }
        }
    }

    /// It has tried to claim a task.
    fn begin(&mut self, task: Task, is_won: bool) -> Result<Step, String> {
        if !is_won {
            self.to_count = Some(task.key);
            return Ok(Step::Count);
        }
        let first = self.order.pop_front();
        if first != Some(task.key) {
            return Err(format!("{task:?} overtook {first:?}"));
        }
        self.running = Some(task);
        Ok(if task.waits { Step::Waits } else { Step::Ends })
    }

    /// The task that ran is answered; returns whether its answer was sent at once.
    fn answer(&mut self, now: Nanos) -> Result<bool, String> {
        let task = self.running.take().ok_or("an answer to nothing")?;
        self.to_count = Some(task.key);
        let is_short = task.run_ns < 25_000;
        let may_leave = self.lane_task.is(task.key) && is_short && task.is_small;
        if may_leave && self.outbox.queued.is_empty() && self.answer.is_none() {
            self.answer = Some((self.outbox.n_queued, task.key, now));
            return Ok(false);
        }
        self.outbox.queue(ToNode::Done(task.key));
        if !is_short {
            self.outbox.flush();
        }
        Ok(!is_short)
    }

    fn take_letter(&mut self) {
        if let Some((_, round, task)) = self.task.take() {
            self.lane_task.on_taken(task.key, round);
            self.work.push_back(task);
        }
    }
}

/// What the node does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Read(EngineId),
    LookAtLane,
    TakeAnswer(EngineId),
    Command,
    Put(EngineId, Task),
    Ring,
    Flush,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Node,
    Engine(EngineId),
    Submit,
    Timer,
    Dies(EngineId),
}

struct World {
    now: Nanos,
    random: Random,
    mutation: LaneMutation,
    machine: Lane,
    word: LaneWord,
    engines: BTreeMap<EngineId, Engine>,
    /// What the board says: offered, and neither claimed nor taken back.
    offered: BTreeSet<(EngineId, TaskKey)>,
    /// Tasks whose output has not been read.
    unread: BTreeSet<TaskKey>,
    /// Tasks that have not ended.
    open: BTreeMap<TaskKey, EngineId>,
    n_tasks: u64,
    acts: VecDeque<Act>,
    node_sleeps: bool,
    /// Broadcasts and single tasks to submit.
    commands: u32,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    n_events: u64,
    outcome: LaneOutcome,
}

/// Runs one seed.
///
/// # Errors
/// What went wrong.
pub fn run_lane(seed: u64, mutation: LaneMutation) -> Result<LaneOutcome, String> {
    let mut world = World::new(seed, mutation);
    let outcome = world.run();
    outcome.map_err(|what| format!("seed {seed} at {} ns: {what}", world.now))?;
    Ok(world.outcome)
}

impl World {
    fn new(seed: u64, mutation: LaneMutation) -> Self {
        let mut random = Random::new(seed);
        let n_engines = 8 + random.below(6) as u32;
        let engines = (0..n_engines).map(|id| {
            let engine = Engine {
                is_alive: true,
                step: Step::Sleep,
                inbox: Socket::new(),
                outbox: Socket::new(),
                task: None,
                answer: None,
                has_rung: false,
                work: VecDeque::new(),
                running: None,
                to_count: None,
                lane_task: LaneTask::default(),
                turns: Turns::default(),
                order: VecDeque::new(),
            };
            (EngineId(id), engine)
        });
        let mut world = Self {
            now: 0,
            mutation,
            machine: Lane::default(),
            word: LaneWord::default(),
            engines: engines.collect(),
            offered: BTreeSet::new(),
            unread: BTreeSet::new(),
            open: BTreeMap::new(),
            n_tasks: 0,
            acts: VecDeque::new(),
            node_sleeps: true,
            commands: 0,
            events: BinaryHeap::new(),
            n_events: 0,
            outcome: LaneOutcome::default(),
            random,
        };
        for _ in 0..20 + world.random.below(60) {
            let at = world.random.below(BUSY_NS);
            world.push(at, Event::Submit);
        }
        if world.random.chance(40) {
            let victim = EngineId(world.random.below(n_engines.into()) as u32);
            let at = world.random.below(BUSY_NS);
            world.push(at, Event::Dies(victim));
        }
        world
    }

    fn push(&mut self, at: Nanos, event: Event) {
        self.n_events += 1;
        self.events.push(Reverse((at, self.n_events, event)));
    }

    /// A process goes on a little later; sometimes another one has its processor.
    fn soon(&mut self, event: Event) {
        let longest = if self.random.chance(5) {
            3 * MS
        } else {
            20_000
        };
        let delay = 1 + self.random.time(longest);
        self.push(self.now + delay, event);
    }

    fn run(&mut self) -> Result<(), String> {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = at;
            match event {
                Event::Node => self.node_acts()?,
                Event::Engine(engine) => self.engine_acts(engine)?,
                Event::Submit => {
                    self.commands += 1;
                    self.wake_node();
                }
                Event::Timer => self.wake_node(),
                Event::Dies(engine) => self.dies(engine),
            }
        }
        if self.open.is_empty() {
            return Ok(());
        }
        let places = (self.engines.iter())
            .filter(|(_, engine)| engine.task.is_some() || engine.answer.is_some())
            .map(|(id, engine)| (id, engine.task, engine.answer, engine.step));
        Err(format!(
            "nothing happens any more, and {:?} have not ended; in places: {:?}; the word is {:?}",
            self.open,
            places.collect::<Vec<_>>(),
            self.word
        ))
    }

    fn dies(&mut self, id: EngineId) {
        if let Some(engine) = self.engines.get_mut(&id) {
            engine.is_alive = false;
            engine.outbox.queued.clear();
            self.outcome.deaths += 1;
            self.wake_node();
        }
    }

    fn ends(&mut self, key: TaskKey) -> Result<(), String> {
        let ended = self.open.remove(&key);
        ended
            .map(drop)
            .ok_or_else(|| format!("{key:?} ended twice"))
    }

    // The node.

    fn wake_node(&mut self) {
        if self.node_sleeps {
            self.node_sleeps = false;
            self.soon(Event::Node);
        }
    }

    fn is_readable(engine: &Engine) -> bool {
        !engine.outbox.sent.is_empty()
    }

    fn node_acts(&mut self) -> Result<(), String> {
        let Some(act) = self.acts.pop_front() else {
            self.begin_turn()?;
            return Ok(());
        };
        match act {
            Act::Read(id) => {
                self.take_answer(id)?;
                let frame = self.engines.get_mut(&id).and_then(|e| e.outbox.take());
                if let Some(frame) = frame {
                    match frame {
                        ToNode::Output(key) => drop(self.unread.remove(&key)),
                        ToNode::Done(key) => self.on_done(id, key)?,
                        ToNode::Answered => {}
                    }
                    self.acts.push_front(Act::Read(id));
                }
            }
            Act::LookAtLane => {
                if self.machine.look(self.now, self.word.n_missing()) {
                    if self.mutation != LaneMutation::SaysNoHurry {
                        self.word = self.word.hurry();
                    }
                    if self.mutation != LaneMutation::LooksAtSocketsOnly {
                        let owing: Vec<_> = self.machine.owing().collect();
                        for engine in owing.into_iter().rev() {
                            self.acts.push_front(Act::TakeAnswer(engine));
                        }
                    }
                }
            }
            Act::TakeAnswer(id) => self.take_answer(id)?,
            Act::Command => self.command()?,
            Act::Put(id, task) => {
                if let Some(engine) = self.engines.get_mut(&id) {
                    engine.task = Some((engine.inbox.n_queued, self.word.round(), task));
                }
            }
            Act::Ring => {
                let alive: Vec<_> = self.engines.keys().copied().collect();
                for id in alive {
                    if let Some(engine) = self.engines.get_mut(&id) {
                        engine.has_rung = true;
                    }
                    self.wake_engine(id);
                }
            }
            Act::Flush => {
                let all: Vec<_> = self.engines.keys().copied().collect();
                for id in all {
                    if let Some(engine) = self.engines.get_mut(&id) {
                        engine.inbox.flush();
                    }
                    self.wake_engine(id);
                }
            }
        }
        self.soon(Event::Node);
        Ok(())
    }

    /// The poller returns: what there is to do is done in the order of the node's loop.
    fn begin_turn(&mut self) -> Result<(), String> {
        let readable: Vec<_> = (self.engines.iter())
            .filter(|(_, engine)| Self::is_readable(engine))
            .map(|(id, _)| *id)
            .collect();
        let gone: Vec<_> = (self.engines.iter())
            .filter(|(_, engine)| !engine.is_alive && !Self::is_readable(engine))
            .map(|(id, _)| *id)
            .collect();
        let has_timer = self.mutation != LaneMutation::TakesNoTimer;
        let timer = self.machine.next_deadline().filter(|_| has_timer);
        let is_due = timer.is_some_and(|at| at <= self.now);
        if readable.is_empty() && gone.is_empty() && self.commands == 0 && !is_due {
            self.node_sleeps = true;
            if let Some(at) = timer {
                self.push(at, Event::Timer);
            }
            return Ok(());
        }
        for id in readable {
            if let Some(engine) = self.engines.get_mut(&id) {
                engine.outbox.fill();
            }
            self.acts.push_back(Act::Read(id));
        }
        for id in gone {
            self.on_gone(id)?;
        }
        self.acts.push_back(Act::LookAtLane);
        for _ in 0..std::mem::take(&mut self.commands) {
            self.acts.push_back(Act::Command);
        }
        self.acts.push_back(Act::Flush);
        self.soon(Event::Node);
        Ok(())
    }

    fn take_answer(&mut self, id: EngineId) -> Result<(), String> {
        if !self.machine.owes(id) {
            return Ok(());
        }
        let Some(engine) = self.engines.get_mut(&id) else {
            return Ok(());
        };
        let ignores_order = self.mutation == LaneMutation::IgnoresTheOrderOfAnswers;
        let n_taken = if ignores_order {
            u64::MAX
        } else {
            engine.outbox.n_taken
        };
        let Some((_, key, since)) = engine.answer.take_if(|(after, _, _)| *after <= n_taken) else {
            return Ok(());
        };
        let waited_ns = self.now - since;
        if waited_ns > HELD_NS {
            return Err(format!("the answer to {key:?} waited {waited_ns} ns"));
        }
        self.outcome.longest_ns = self.outcome.longest_ns.max(waited_ns);
        self.outcome.by_lane += 1;
        self.on_done(id, key)
    }

    fn on_done(&mut self, id: EngineId, key: TaskKey) -> Result<(), String> {
        if self.unread.contains(&key) {
            return Err(format!("{key:?} ended before its output was read"));
        }
        self.machine.on_end(id, key);
        self.outcome.answered += 1;
        self.ends(key)
    }

    fn on_gone(&mut self, id: EngineId) -> Result<(), String> {
        // It may have died before it counted.
        self.take_answer(id)?;
        self.engines.remove(&id);
        self.machine.on_gone(id);
        let lost = self.open.iter().filter(|(_, engine)| **engine == id);
        let lost: Vec<_> = lost.map(|(key, _)| *key).collect();
        for key in lost {
            self.offered.remove(&(id, key));
            self.ends(key)?;
        }
        Ok(())
    }

    fn command(&mut self) -> Result<(), String> {
        let all: Vec<_> = self.engines.keys().copied().collect();
        match self.random.below(10) {
            0 => self.take_back(),
            1 => {
                let id = all[self.random.below(all.len() as u64) as usize];
                if let Some(engine) = self.engines.get_mut(&id) {
                    engine.inbox.queue(ToEngine::Other);
                }
                Ok(())
            }
            2 | 3 => {
                let id = all[self.random.below(all.len() as u64) as usize];
                let task = self.offer(id);
                self.send(id, task);
                Ok(())
            }
            4 => {
                let few = self.random.below(all.len() as u64) as usize;
                self.broadcast(&all[few..]);
                Ok(())
            }
            _ => {
                self.broadcast(&all);
                Ok(())
            }
        }
    }

    /// One that is offered and has not been begun.
    fn take_back(&mut self) -> Result<(), String> {
        let n = self.offered.len() as u64;
        let chosen = self.offered.iter().nth(self.random.below(n) as usize);
        let Some((id, key)) = chosen.copied() else {
            return Ok(());
        };
        self.offered.remove(&(id, key));
        self.machine.on_end(id, key);
        self.outcome.revoked += 1;
        if let Some(engine) = self.engines.get_mut(&id) {
            engine.order.retain(|known| *known != key);
        }
        self.ends(key)
    }

    fn offer(&mut self, id: EngineId) -> Task {
        self.n_tasks += 1;
        let key = TaskKey(self.n_tasks);
        self.offered.insert((id, key));
        self.open.insert(key, id);
        if let Some(engine) = self.engines.get_mut(&id) {
            engine.order.push_back(key);
        }
        let longest = if self.random.chance(3) {
            60 * MS
        } else {
            30_000
        };
        Task {
            key,
            run_ns: self.random.time(longest),
            writes: self.random.chance(30),
            waits: self.random.chance(10),
            is_small: self.random.chance(90),
        }
    }

    fn send(&mut self, id: EngineId, task: Task) {
        if let Some(engine) = self.engines.get_mut(&id) {
            engine.inbox.queue(ToEngine::Task(task));
        }
    }

    fn broadcast(&mut self, targets: &[EngineId]) {
        let tasks: Vec<_> = targets.iter().map(|id| (*id, self.offer(*id))).collect();
        let all_free = targets.iter().all(|id| self.engines[id].task.is_none());
        if !self.machine.is_for(tasks.len(), self.engines.len()) || !all_free {
            for (id, task) in tasks {
                self.send(id, task);
            }
            return;
        }
        self.outcome.rounds += 1;
        self.word = self.word.begin(tasks.len() as u32);
        let keys = tasks.iter().map(|(id, task)| (*id, task.key));
        self.machine.begin(self.now, keys);
        self.acts.push_front(Act::Ring);
        for (id, task) in tasks.into_iter().rev() {
            self.acts.push_front(Act::Put(id, task));
        }
    }

    // The engines.

    fn wake_engine(&mut self, id: EngineId) {
        let Some(engine) = self.engines.get_mut(&id).filter(|e| e.is_alive) else {
            return;
        };
        let has_something = engine.has_rung || !engine.inbox.sent.is_empty();
        if engine.step == Step::Sleep && has_something {
            engine.step = Step::Wake;
            self.soon(Event::Engine(id));
        }
    }

    fn engine_acts(&mut self, id: EngineId) -> Result<(), String> {
        let (mutation, word) = (self.mutation, self.word);
        let Some(engine) = self.engines.get_mut(&id).filter(|e| e.is_alive) else {
            return Ok(());
        };
        let (mut delay_ns, mut wakes_node) = (None, false);
        engine.step = match engine.step {
            Step::Sleep => return Ok(()),
            Step::Wake => {
                engine.has_rung = false;
                let has_frames = !engine.inbox.sent.is_empty();
                let arrived = if has_frames {
                    Arrived::Frames
                } else {
                    Arrived::Bell
                };
                engine.turns.on_slept(Some(arrived));
                Step::Next
            }
            Step::Look(Look::Nowhere) => Step::Flush,
            Step::Look(look) => {
                engine.look(look, mutation == LaneMutation::IgnoresTheOrder);
                if engine.work.is_empty() {
                    Step::Flush
                } else {
                    Step::Next
                }
            }
            Step::Next => {
                if let Some(task) = engine.work.pop_front() {
                    engine.turns.on_run();
                    let is_won = self.offered.remove(&(id, task.key));
                    delay_ns = is_won.then_some(task.run_ns);
                    engine.begin(task, is_won)?
                } else {
                    Step::Look(engine.turns.look())
                }
            }
            Step::Waits => {
                let has_heard = std::mem::take(&mut engine.has_rung);
                if has_heard && engine.is_letter_due() && mutation != LaneMutation::ForgetsTheBell {
                    engine.take_letter();
                }
                Step::Ends
            }
            Step::Ends => {
                let writer = engine.running.filter(|task| task.writes);
                if let Some(task) = writer {
                    self.unread.insert(task.key);
                    engine.outbox.queue(ToNode::Output(task.key));
                    engine.outbox.flush();
                    wakes_node = true;
                }
                Step::Answer
            }
            Step::Answer => {
                if engine.answer(self.now)? {
                    wakes_node = true;
                    // Time for the node to begin the next round.
                    delay_ns = Some(self.random.time(3 * MS));
                }
                Step::Count
            }
            Step::Count => {
                let task = engine.to_count.take();
                let round = task.and_then(|task| engine.lane_task.on_over(task));
                if let Some(round) = round {
                    let is_late = round != word.round();
                    self.outcome.late_counts += u64::from(is_late);
                    let (next, wakes) = word.count(round);
                    self.word = next.unwrap_or(word);
                    if wakes {
                        engine.outbox.queue(ToNode::Answered);
                        engine.outbox.flush();
                        wakes_node = true;
                    }
                }
                Step::Next
            }
            Step::Flush => {
                engine.outbox.flush();
                engine.step = Step::Sleep;
                self.wake_node();
                self.wake_engine(id);
                return Ok(());
            }
        };
        if wakes_node {
            self.wake_node();
        }
        if let Some(delay_ns) = delay_ns {
            self.push(self.now + 1 + delay_ns, Event::Engine(id));
        } else {
            self.soon(Event::Engine(id));
        }
        Ok(())
    }
}
