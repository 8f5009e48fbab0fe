//! The relay's side: a node whose decisions are made by the controller at the other end of a link.
//!
//! Its engines and fork server connect to it as they do to the controller's node. Their messages go
//! up the link instead of into a controller's machine, and that machine's commands come down.

use broadleaf_core::relay::{Relay, Said};
use broadleaf_core::{Controller, Input, Nanos, Output};
use broadleaf_net::{Frame, LinkError};
use broadleaf_proto::control::{self, ForkServerCommand};
use broadleaf_proto::relay::{self, AssignMany, RelayCommand, RelayEvent, RelayedDone};
use broadleaf_proto::task::OutputRecord;
use broadleaf_proto::wire::Reader;
use broadleaf_proto::{DecodeError, EngineId, FrameKind, FunctionId, HostId};

use crate::hosts::objects::RESULT_CHUNK_BYTES;
use crate::node::Node;

/// Who decides.
pub enum Decider {
    /// This node is the controller's.
    Own(Box<Controller>),
    /// This node is a relay.
    Upstream(Uplink),
}

/// The relay's connection to its controller, and the state that belongs to it.
#[derive(Debug)]
pub struct Uplink {
    /// The connection.
    pub token: usize,
    /// This host's number.
    pub host: HostId,
    /// What it believes, holds and says.
    pub relay: Relay,
}

impl Decider {
    /// The host of an engine, according to its slot.
    pub fn host_of(&self, engine: EngineId) -> HostId {
        match self {
            Self::Own(controller) => controller.host_of(engine),
            Self::Upstream(_) => HostId::CONTROLLER,
        }
    }

    /// Whether this node is a relay.
    pub fn is_upstream(&self) -> bool {
        matches!(self, Self::Upstream(_))
    }

    /// The controller, if it is on this node.
    pub fn controller(&self) -> Option<&Controller> {
        match self {
            Self::Own(controller) => Some(controller),
            Self::Upstream(_) => None,
        }
    }

    /// Whether an engine may say hello for this slot.
    pub fn expects(&self, engine: EngineId) -> bool {
        match self {
            Self::Own(controller) => controller.expects(engine),
            Self::Upstream(uplink) => uplink.relay.expects(engine),
        }
    }

    /// Functions that relays need not keep.
    pub fn take_freed_functions(&mut self) -> Vec<FunctionId> {
        match self {
            Self::Own(controller) => controller.take_freed_functions(),
            Self::Upstream(_) => Vec::new(),
        }
    }

    /// When the controller must be called next.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.controller().and_then(Controller::next_deadline)
    }

    /// Does everything that is due.
    pub fn on_deadline(&mut self, now: Nanos, out: &mut Vec<Output>) {
        if let Self::Own(controller) = self {
            controller.on_deadline(now, out);
        }
    }

    /// Places ready tasks.
    pub fn schedule(&mut self, now: Nanos, out: &mut Vec<Output>) {
        if let Self::Own(controller) = self {
            controller.schedule(now, out);
        }
    }
}

impl Uplink {
    /// A link was just accepted.
    pub fn new(token: usize, host: HostId) -> Self {
        Self {
            token,
            host,
            relay: Relay::default(),
        }
    }
}

impl Node {
    pub(crate) fn uplink(&mut self) -> Option<&mut Uplink> {
        match &mut self.decider {
            Decider::Upstream(uplink) => Some(uplink),
            Decider::Own(_) => None,
        }
    }

    /// Passes a task's output on, unless too much waits for the controller already; then, or when
    /// the task ends, reports how much was dropped.
    fn relay_output(&mut self, engine: EngineId, task: u64, record: Option<OutputRecord>) {
        let limit_bytes = self.config.options.congestion_bytes;
        let Some(uplink) = self.uplink() else {
            return;
        };
        let token = uplink.token;
        let queued_bytes = self.peers.get(token).map_or(0, |p| p.link.queued_bytes());
        let Some(uplink) = self.uplink() else {
            return;
        };
        let is_congested = queued_bytes > limit_bytes;
        let (notices, record) = uplink.relay.on_output(engine, task, record, is_congested);
        for record in notices.into_iter().chain(record) {
            self.append(token, FrameKind::Output, |frame| record.encode(frame));
        }
    }

    /// Tells the controller what the controller's own node would have told it.
    pub(crate) fn report(&mut self, input: Input) {
        match input {
            Input::Done {
                engine, mut record, ..
            } => {
                for (object, range) in self.objects.export(&mut record.payload, &mut self.segments)
                {
                    self.provide(object, &range, RESULT_CHUNK_BYTES);
                }
                let done = RelayedDone { engine, record };
                self.relay_output(engine, done.record.key.0, None);
                if let Some(token) = self.uplink().map(|u| u.token) {
                    self.append(token, FrameKind::RelayedDone, |frame| done.encode(frame));
                }
            }
            Input::Output { engine, record } => {
                self.relay_output(engine, record.task, Some(record));
            }
            input => match self.uplink().map(|u| u.relay.on_input(input)) {
                Some(Said::Report(event)) => self.tell_controller(&event),
                Some(Said::Start(engines)) => {
                    for engine in engines {
                        self.carry_out_one(Output::Spawn { engine });
                    }
                }
                Some(Said::Leave) => self.leave(),
                Some(Said::End) => self.finished = true,
                Some(Said::Nothing) | None => {}
            },
        }
    }

    /// An engine's link closed.
    pub(crate) fn on_engine_gone(
        &mut self,
        engine: EngineId,
        unclaimed_offers: Vec<u32>,
        next_offer: u32,
    ) {
        if let Some(uplink) = self.uplink() {
            let down = (uplink.relay).on_engine_gone(engine, unclaimed_offers, next_offer);
            self.tell_controller(&down);
        } else {
            self.input(Input::EngineDown {
                engine,
                unclaimed_offers,
            });
        }
    }

    pub(crate) fn tell_controller(&mut self, event: &RelayEvent) {
        if let Some(token) = self.uplink().map(|u| u.token) {
            self.append(token, FrameKind::RelayEvent, |frame| {
                relay::append(event, frame);
            });
        }
    }

    /// Ends the relay: its engines first, by their fork server.
    pub(crate) fn leave(&mut self) {
        match self.fork_server {
            Some(token) => self.send(
                token,
                FrameKind::ForkServerCommand,
                &control::encode(&ForkServerCommand::Stop),
            ),
            None => self.finished = true,
        }
    }

    /// Handles one frame from the controller.
    pub(crate) fn on_controller_frame(&mut self, frame: Frame) -> Result<(), LinkError> {
        self.liveness.heard(self.now_ns, HostId::CONTROLLER);
        match frame.kind {
            FrameKind::AssignMany => {
                let mut reader = Reader::new(frame.body);
                while !reader.is_empty() {
                    let many = AssignMany::decode(&mut reader)?;
                    self.assign_many(many);
                }
            }
            FrameKind::RelayCommand => {
                for command in relay::messages(&frame.body) {
                    self.obey(command?);
                }
            }
            kind => return Err(DecodeError::UnknownKind(kind as u8).into()),
        }
        Ok(())
    }

    fn obey(&mut self, command: RelayCommand) {
        match command {
            RelayCommand::Interrupt { engine, offer } => self.interrupt(engine, offer),
            RelayCommand::Fetch(fetch) => {
                let object = fetch.object;
                if let Err(reason) = self.objects.fetch(fetch) {
                    self.tell_controller(&RelayEvent::FetchFailed { object, reason });
                }
            }
            RelayCommand::Forget(objects) => self.on_forget(objects),
            RelayCommand::Ping { sent_ns } => self.on_ping(sent_ns),
            RelayCommand::Measure => self.on_measure(),
            RelayCommand::ReadWritten(read) => self.on_read_written(read),
            command => {
                let output = self.uplink().and_then(|u| u.relay.on_command(command));
                if let Some(output) = output {
                    self.carry_out_one(output);
                }
            }
        }
    }

    fn on_ping(&mut self, sent_ns: u64) {
        let unread_bytes = self.queued_for_engines_bytes();
        self.tell_controller(&RelayEvent::Pong {
            sent_ns,
            unread_bytes,
        });
    }
}
