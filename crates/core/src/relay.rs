//! A relay as a pure machine: what it believes of its controller's orders, which engines it has, what they wait for,
//! and what it says about them.
//!
//! An engine's slot is *wanted* (there is no fork server yet), *starting* (one was told), *started* (its process is known)
//! or gone; its link is up or not, independently: an engine may say hello before its fork server has named its process,
//! and its link may outlive the report of its end. Only a process that the fork server named is signalled, only an engine
//! whose slot was asked for may connect, and only one that is up has offers to take back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use broadleaf_proto::control::{ForkServerEvent, ForkServerOrder};
use broadleaf_proto::host::{EngineOrder, EngineReport};
use broadleaf_proto::ids::{EngineId, FunctionId};
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

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Relay {
    has_fork_server: bool,
    slots: BTreeMap<EngineId, Process>,
    /// Engines whose link is open.
    up: BTreeSet<EngineId>,
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
        self.slots.contains_key(&engine) && !self.up.contains(&engine)
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
            EngineOrder::Revoke { engine, .. } => self.up.contains(engine),
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
                self.up.insert(info.engine);
            }
            EngineReport::Down { engine, .. } => {
                self.up.remove(engine);
                self.held.remove(engine);
                self.unread.remove(engine);
            }
            EngineReport::ForkServer(event) => self.on_process(event),
            EngineReport::Revoked { .. }
            | EngineReport::Waits { .. }
            | EngineReport::Delivered { .. }
            | EngineReport::Undeliverable { .. } => {}
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

    fn on_process(&mut self, event: &ForkServerEvent) {
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
        let unread = self.unread.remove(&engine);
        let notices = unread.map(|mut unread| unread.take(task, engine));
        (notices.unwrap_or_default(), record)
    }
}
