//! A relay as a pure machine: what it believes of its controller's commands, which engines it has, what they wait for,
//! and what it says about them.
//!
//! An engine's slot is *wanted* (there is no fork server yet), *starting* (one was told), *started* (its process is known)
//! or gone; its link is up or not, independently: an engine may say hello before its fork server has named its process,
//! and its link may outlive the report of its end. Only a process that the fork server named is signalled, only an engine
//! whose slot was asked for may connect, and only one that is up has offers to take back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use broadleaf_proto::control::ForkServerEvent;
use broadleaf_proto::ids::{EngineId, FunctionId};
use broadleaf_proto::relay::{RelayCommand, RelayEvent};
use broadleaf_proto::task::{AssignRecord, FunctionRecord, OutputRecord, Payload};
use bytes::Bytes;

use crate::clients::unread::Unread;
use crate::{Input, Output};

/// The process of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Process {
    /// No fork server has been told.
    Wanted,
    Starting,
    Started(u32),
}

/// What a task waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arguments {
    /// All its objects are on this host.
    Here,
    /// Some are on their way.
    Coming,
    /// Some will not arrive; says why.
    Failed(String),
}

/// A task that waits no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Freed {
    /// Send it to its engine.
    Deliver(EngineId, AssignRecord),
    /// Take its offer back, and report it as undeliverable if the engine had not claimed it.
    GiveUp(EngineId, AssignRecord, String),
}

#[derive(Clone, Debug)]
struct Held {
    record: AssignRecord,
    /// It only waits for its turn.
    is_here: bool,
}

/// What came of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// Tell the controller.
    Report(RelayEvent),
    /// Tell the fork server to start these.
    Start(Vec<EngineId>),
    /// End this relay: its engines first, by their fork server.
    Leave,
    /// End it at once: engines do not outlive their fork server.
    End,
    /// Nothing.
    Nothing,
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

    /// The controller said something about engines or their functions: what to do, if it is believed. Commands about
    /// payload and pings are not decided here.
    pub fn on_command(&mut self, command: RelayCommand) -> Option<Output> {
        match command {
            RelayCommand::Function {
                function,
                hash,
                body,
            } => {
                let record = FunctionRecord {
                    function,
                    hash,
                    name: Bytes::new(),
                    body: body.into(),
                };
                self.functions.insert(function, record);
                None
            }
            RelayCommand::GiveFunction { engine, function } => {
                let record = self.functions.get(&function)?.clone();
                Some(Output::Function { engine, record })
            }
            RelayCommand::ForgetFunctions(ids) => {
                self.functions.retain(|id, _| !ids.contains(id));
                None
            }
            // After the engine's end there is nothing to answer: the controller knows what it left unclaimed.
            RelayCommand::Revoke { engine, key, offer } => {
                (self.up.contains(&engine)).then_some(Output::Revoke { engine, key, offer })
            }
            RelayCommand::Kill {
                engine,
                pid,
                signal,
            } => {
                (self.slots.get(&engine) == Some(&Process::Started(pid))).then_some(Output::Kill {
                    engine,
                    pid,
                    signal,
                })
            }
            RelayCommand::Stop { engine } => Some(Output::Stop { engine }),
            RelayCommand::Spawn { engine } => {
                if !self.has_fork_server {
                    self.slots.insert(engine, Process::Wanted);
                    return None;
                }
                self.slots.insert(engine, Process::Starting);
                Some(Output::Spawn { engine })
            }
            RelayCommand::Seat {
                engine,
                world,
                rank,
            } => {
                self.slots.insert(engine, Process::Starting);
                Some(Output::Seat {
                    engine,
                    world,
                    rank,
                })
            }
            RelayCommand::Interrupt { .. }
            | RelayCommand::Fetch(_)
            | RelayCommand::Forget(_)
            | RelayCommand::Ping { .. }
            | RelayCommand::Measure
            | RelayCommand::ReadWritten(_) => None,
        }
    }

    /// Something happened on this host; how tasks end and what they write goes through [`Self::on_output`].
    pub fn on_input(&mut self, input: Input) -> Said {
        match input {
            Input::EngineUp { info } => {
                self.up.insert(info.engine);
                Said::Report(RelayEvent::EngineUp(info))
            }
            Input::Revoked { engine, key, won } => {
                Said::Report(RelayEvent::Revoked { engine, key, won })
            }
            Input::Waits { engine, event } => Said::Report(RelayEvent::Waits { engine, event }),
            Input::ForkServer(event) => {
                self.on_process(&event);
                Said::Report(RelayEvent::ForkServer(event))
            }
            Input::ForkServerUp => {
                self.has_fork_server = true;
                let wanted = self.slots.iter_mut();
                let wanted = wanted.filter(|(_, process)| **process == Process::Wanted);
                Said::Start(
                    wanted
                        .map(|(engine, process)| {
                            *process = Process::Starting;
                            *engine
                        })
                        .collect(),
                )
            }
            Input::ForkServerDown => Said::End,
            Input::OwnerDown => Said::Leave,
            // These are about clients and hosts, which a relay does not have.
            _ => Said::Nothing,
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

    /// The link of an engine closed: the report. Its tasks that wait for arguments are dropped.
    pub fn on_engine_gone(
        &mut self,
        engine: EngineId,
        unclaimed_offers: Vec<u32>,
        next_offer: u32,
    ) -> RelayEvent {
        self.up.remove(&engine);
        self.held.remove(&engine);
        RelayEvent::EngineDown {
            engine,
            unclaimed_offers,
            next_offer,
        }
    }

    /// A task was offered to an engine that is up. Returns it if it is to be delivered at once; it waits for its
    /// arguments, and for the tasks before it.
    #[inline]
    pub fn on_offered(
        &mut self,
        engine: EngineId,
        record: AssignRecord,
        is_here: bool,
    ) -> Option<AssignRecord> {
        if let Some(queue) = self.held.get_mut(&engine) {
            queue.push_back(Held { record, is_here });
            return None;
        }
        if is_here {
            return Some(record);
        }
        let queue = VecDeque::from([Held { record, is_here }]);
        self.held.insert(engine, queue);
        None
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
