//! A relay as a pure machine: what it believes of its controller's orders, which engines it has, what they wait for,
//! and what it says about them.
//!
//! An engine's slot is *wanted* (there is no fork server yet), *starting* (one was told), *started* (its process is known)
//! or gone; its link is up or not, independently: an engine may say hello before its fork server has named its process,
//! and its link may outlive the report of its end. Only a process that the fork server named is signalled, only an engine
//! whose slot was asked for may connect, and only one that is up has offers to take back.

use std::collections::{BTreeMap, VecDeque};

use broadleaf_proto::control::{EngineInfo, ForkServerEvent, ForkServerOrder};
use broadleaf_proto::host::{EngineOrder, EngineReport};
use broadleaf_proto::ids::{EngineId, FunctionId, TaskKey};
use broadleaf_proto::relay::{HeldEngine, HeldLink};
use broadleaf_proto::task::{AssignRecord, FunctionRecord, OutputRecord, Payload};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::clients::unread::Unread;
use crate::forms;

/// The process of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Process {
    /// No fork server has been told.
    Wanted,
    Starting,
    Started(u32),
}

/// What a task waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arguments {
    /// All its objects are on this host.
    Here,
    /// Some are on their way.
    Coming,
    /// Some will not arrive; says why.
    Failed(#[serde(serialize_with = "forms::text")] String),
}

/// A task that does not wait, or no longer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Freed {
    /// Send it to its engine.
    Deliver(EngineId, #[serde(with = "forms::AssignForm")] AssignRecord),
    /// Take its offer back, and report it as undeliverable if the engine had not claimed it.
    GiveUp(
        EngineId,
        #[serde(with = "forms::AssignForm")] AssignRecord,
        #[serde(serialize_with = "forms::text")] String,
    ),
}

#[derive(Clone, Debug)]
struct Held {
    record: AssignRecord,
    /// It only waits for its turn.
    is_here: bool,
}

/// What the driver must do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum RelayAction {
    /// Carry out an order.
    Do(EngineOrder),
    /// Tell the controller.
    Report(#[serde(serialize_with = "forms::report")] EngineReport),
    /// Have the fork server end the engines, and exit.
    StopForkServer,
    /// End this process: engines do not outlive their fork server.
    End,
}

/// What a later controller would have to be told.
#[derive(Clone, Debug, Default)]
struct Kept {
    /// Offers to each engine that is up whose ends were not reported.
    unfinished: BTreeMap<EngineId, BTreeMap<TaskKey, u32>>,
    /// How the last process of each slot that has none now has ended.
    ends: BTreeMap<EngineId, ForkServerEvent>,
}

/// An engine's board, once what it had not begun was taken back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Board {
    /// The engine.
    pub engine: EngineId,
    /// The number of its next offer.
    pub next_offer: u32,
    /// The offers that were taken back.
    pub taken_back: Vec<u32>,
}

/// What is left from the time of an earlier controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Inheritance {
    /// The engines: the new controller is told of them first.
    pub engines: Vec<HeldEngine>,
    /// Ends of processes that it is told of next.
    #[serde(serialize_with = "forms::ends")]
    pub ends: Vec<ForkServerEvent>,
    /// Tasks that were taken back.
    pub taken_back: Vec<(EngineId, TaskKey)>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Relay {
    has_fork_server: bool,
    slots: BTreeMap<EngineId, Process>,
    /// Engines whose link is open, and what each said of itself.
    up: BTreeMap<EngineId, EngineInfo>,
    /// What a later controller would have to be told; `None` if there will be none.
    kept: Option<Kept>,
    /// Tasks of each engine, in order, from the first one whose arguments are not here.
    held: BTreeMap<EngineId, VecDeque<Held>>,
    /// Bodies of functions, for engines that will need them.
    functions: BTreeMap<FunctionId, FunctionRecord>,
    /// Output that was not passed on.
    unread: BTreeMap<EngineId, Unread>,
}

/// Whether the controller waits to hear that a task was delivered: its arguments had to travel.
pub fn is_awaited(record: &AssignRecord) -> bool {
    !record.payload.segments.is_empty()
}

impl Relay {
    /// Whether an engine may say hello for this slot.
    pub fn expects(&self, engine: EngineId) -> bool {
        self.slots.contains_key(&engine) && !self.up.contains_key(&engine)
    }

    /// The controller keeps a journal: if it ends, another one may ask for what is here.
    pub fn outlive_controller(&mut self) {
        self.kept = Some(Kept::default());
    }

    /// Another controller has taken the place of the one that this relay had. Its engines have nothing left that they have
    /// not begun, as `boards` says.
    pub fn on_restarted(&mut self, boards: &[Board]) -> Inheritance {
        // What these are for, the earlier controller knew.
        self.held.clear();
        self.functions.clear();
        self.unread.clear();
        let kept = self.kept.get_or_insert_default();
        let (mut links, mut taken_back) = (BTreeMap::new(), Vec::new());
        for board in boards {
            let unfinished = kept.unfinished.entry(board.engine).or_default();
            unfinished.retain(|key, offer| {
                let is_begun = !board.taken_back.contains(offer);
                if !is_begun {
                    taken_back.push((board.engine, *key));
                }
                is_begun
            });
            let offers = unfinished.iter().map(|(key, offer)| (*offer, *key));
            let mut unfinished: Vec<(u32, TaskKey)> = offers.collect();
            unfinished.sort_unstable_by_key(|(offer, _)| offer.wrapping_sub(board.next_offer));
            if let Some(info) = self.up.get(&board.engine) {
                let link = HeldLink {
                    info: info.clone(),
                    next_offer: board.next_offer,
                    unfinished,
                };
                links.insert(board.engine, link);
            }
        }
        let engines = self.slots.iter().map(|(engine, process)| HeldEngine {
            engine: *engine,
            pid: match process {
                Process::Started(pid) => *pid,
                Process::Wanted | Process::Starting => 0,
            },
            link: links.remove(engine),
        });
        Inheritance {
            engines: engines.collect(),
            ends: kept.ends.values().cloned().collect(),
            taken_back,
        }
    }

    /// The body of a function came, for engines that will need it.
    pub fn on_function(&mut self, record: FunctionRecord) {
        // A copy, which does not hold the frame that it came in.
        let body = Bytes::copy_from_slice(&record.body);
        self.functions
            .insert(record.function, FunctionRecord { body, ..record });
    }

    /// A function for an engine, if its body is here.
    pub fn function(&self, function: FunctionId) -> Option<&FunctionRecord> {
        self.functions.get(&function)
    }

    /// No task will name these functions any more.
    pub fn forget_functions(&mut self, ids: &[FunctionId]) {
        self.functions.retain(|id, _| !ids.contains(id));
    }

    /// The controller ordered something: what to do, if it is believed.
    pub fn on_order(&mut self, order: EngineOrder) -> Option<RelayAction> {
        let is_to_do = match &order {
            // After the engine's end there is nothing to answer: the controller knows what it left unclaimed.
            EngineOrder::Revoke { engine, .. } => self.up.contains_key(engine),
            EngineOrder::Kill { engine, pid, .. } => {
                self.slots.get(engine) == Some(&Process::Started(*pid))
            }
            EngineOrder::ForkServer(ForkServerOrder::Spawn { engine }) => {
                let process = if self.has_fork_server {
                    Process::Starting
                } else {
                    Process::Wanted
                };
                self.slots.insert(*engine, process);
                self.has_fork_server
            }
            EngineOrder::ForkServer(ForkServerOrder::Seat { engine, .. }) => {
                self.slots.insert(*engine, Process::Starting);
                true
            }
            EngineOrder::ForkServer(ForkServerOrder::ReadWritten(read))
                if !self.has_fork_server =>
            {
                let nothing = ForkServerEvent::Written {
                    reading: read.reading,
                    text: String::new(),
                };
                return Some(RelayAction::Report(EngineReport::ForkServer(nothing)));
            }
            EngineOrder::Interrupt { .. }
            | EngineOrder::Stop { .. }
            | EngineOrder::ForkServer(ForkServerOrder::ReadWritten(_)) => true,
        };
        is_to_do.then_some(RelayAction::Do(order))
    }

    /// Takes note of what is about to be reported to the controller.
    pub fn on_report(&mut self, report: &EngineReport) {
        match report {
            EngineReport::Up(info) => {
                self.up.insert(info.engine, info.clone());
            }
            EngineReport::Down { engine, .. } => {
                self.up.remove(engine);
                self.held.remove(engine);
                self.unread.remove(engine);
                if let Some(kept) = &mut self.kept {
                    kept.unfinished.remove(engine);
                }
            }
            EngineReport::ForkServer(event) => self.on_process(event),
            EngineReport::Revoked {
                engine,
                key,
                won: true,
            }
            | EngineReport::Undeliverable { engine, key, .. } => self.on_end(*engine, *key),
            EngineReport::Revoked { .. }
            | EngineReport::Waits { .. }
            | EngineReport::Delivered { .. } => {}
        }
    }

    /// The fork server is ready: engines that wait for it are started.
    pub fn on_fork_server_up(&mut self, out: &mut Vec<RelayAction>) {
        self.has_fork_server = true;
        for (engine, process) in &mut self.slots {
            if *process == Process::Wanted {
                *process = Process::Starting;
                let engine = *engine;
                let order = EngineOrder::ForkServer(ForkServerOrder::Spawn { engine });
                out.push(RelayAction::Do(order));
            }
        }
    }

    /// The fork server is gone, and so are the engines.
    pub fn on_fork_server_down(&mut self) -> RelayAction {
        self.has_fork_server = false;
        RelayAction::End
    }

    /// The controller or the owner of this process is gone: the relay ends, its engines first.
    pub fn leave(&mut self) -> RelayAction {
        if self.has_fork_server {
            RelayAction::StopForkServer
        } else {
            RelayAction::End
        }
    }

    /// An offer needs no further report.
    fn on_end(&mut self, engine: EngineId, key: TaskKey) {
        if let Some(kept) = &mut self.kept
            && let Some(unfinished) = kept.unfinished.get_mut(&engine)
        {
            unfinished.remove(&key);
        }
    }

    fn on_process(&mut self, event: &ForkServerEvent) {
        if let Some(kept) = &mut self.kept
            && let Some(engine) = event.engine()
        {
            match event {
                ForkServerEvent::Exited { .. } => drop(kept.ends.insert(engine, event.clone())),
                ForkServerEvent::Spawned(..) => drop(kept.ends.remove(&engine)),
                _ => {}
            }
        }
        match event {
            ForkServerEvent::Spawned(engine, pid) => {
                self.slots.insert(*engine, Process::Started(*pid));
            }
            ForkServerEvent::Exited { engine, pid, .. } => {
                if self.slots.get(engine) == Some(&Process::Started(*pid)) {
                    self.slots.remove(engine);
                }
            }
            ForkServerEvent::NotStarted { engine, .. } => {
                self.slots.remove(engine);
            }
            ForkServerEvent::Guest { .. } | ForkServerEvent::Written { .. } => {}
        }
    }

    /// A task was offered to an engine that is up, and these are its arguments. Unless it waits for them, or for the tasks
    /// before it, returns what becomes of it.
    #[inline]
    pub fn on_offered(
        &mut self,
        engine: EngineId,
        record: AssignRecord,
        arguments: &Arguments,
    ) -> Option<Freed> {
        if let Some(kept) = &mut self.kept {
            let unfinished = kept.unfinished.entry(engine).or_default();
            unfinished.insert(record.key, record.offer);
        }
        let is_here = *arguments == Arguments::Here;
        if let Some(queue) = self.held.get_mut(&engine) {
            queue.push_back(Held { record, is_here });
            return None;
        }
        match arguments {
            Arguments::Here => Some(Freed::Deliver(engine, record)),
            Arguments::Failed(why) => Some(Freed::GiveUp(engine, record, why.clone())),
            Arguments::Coming => {
                let queue = VecDeque::from([Held { record, is_here }]);
                self.held.insert(engine, queue);
                None
            }
        }
    }

    /// Objects have arrived, failed or been dropped: finds the tasks that wait no longer.
    pub fn on_objects(&mut self, state: impl Fn(&Payload) -> Arguments, out: &mut Vec<Freed>) {
        self.held.retain(|engine, queue| {
            while let Some(Held { record, is_here }) = queue.pop_front() {
                let arguments = if is_here {
                    Arguments::Here
                } else {
                    state(&record.payload)
                };
                match arguments {
                    Arguments::Here => out.push(Freed::Deliver(*engine, record)),
                    Arguments::Failed(why) => out.push(Freed::GiveUp(*engine, record, why)),
                    Arguments::Coming => {
                        queue.push_front(Held { record, is_here });
                        return true;
                    }
                }
            }
            false
        });
    }

    /// A task wrote a record, or (with none) ended. Returns what to pass on: notices of what was dropped before, and the
    /// record, unless too much waits for the controller already.
    pub fn on_output(
        &mut self,
        engine: EngineId,
        task: u64,
        record: Option<OutputRecord>,
        is_congested: bool,
    ) -> (Vec<OutputRecord>, Option<OutputRecord>) {
        if let Some(written) = record.as_ref().filter(|_| is_congested)
            && self.unread.entry(engine).or_default().count(written)
        {
            return (Vec::new(), None);
        }
        if record.is_none() {
            self.on_end(engine, TaskKey(task));
        }
        let unread = self.unread.remove(&engine);
        let notices = unread.map(|mut unread| unread.take(task, engine));
        (notices.unwrap_or_default(), record)
    }
}
