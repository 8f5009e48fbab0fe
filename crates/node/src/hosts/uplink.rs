//! The relay's side: a node whose decisions are made by the controller at the other end of a link.
//!
//! Its engines and fork server connect to it as they do to the controller's node. What they report
//! goes up the link instead of into a controller's machine, and that machine's orders come down.

use broadleaf_core::recording::Recorded;
use broadleaf_core::relay::{Relay, RelayAction};
use broadleaf_core::{Controller, Input, Nanos, Output};
use broadleaf_net::{Frame, LinkError};
use broadleaf_proto::control::ForkServerCommand;
use broadleaf_proto::host::EngineReport;
use broadleaf_proto::relay::{self, AssignMany, RelayCommand, RelayEvent, RelayedDone};
use broadleaf_proto::task::{DoneRecord, FunctionRecord, OutputRecord};
use broadleaf_proto::wire::Reader;
use broadleaf_proto::{DecodeError, EngineId, FrameKind, FunctionId, HostId};

use crate::hosts::objects::RESULT_CHUNK_BYTES;
use crate::hosts::rejoin::Rejoin;
use crate::node::Node;
use crate::recording::Recording;

/// What a node is in its cluster.
#[expect(clippy::large_enum_variant, reason = "a node has one")]
pub enum NodeRole {
    /// It has the controller.
    Controller(Box<Recorded<Controller, Recording>>),
    /// It is the relay of another host.
    Relay(Uplink),
}

/// The relay's connection to its controller, and the state that belongs to it.
pub struct Uplink {
    /// The connection; `None` once it has closed, because another one may get its token.
    link: Option<usize>,
    /// This host's number.
    pub host: HostId,
    /// What it believes, holds and says.
    pub relay: Recorded<Relay, Recording>,
    /// How it gets back to the controller.
    pub rejoin: Option<Rejoin>,
}

impl NodeRole {
    /// The host of an engine, according to its slot.
    pub fn host_of(&self, engine: EngineId) -> HostId {
        match self {
            Self::Controller(controller) => controller.host_of(engine),
            Self::Relay(_) => HostId::CONTROLLER,
        }
    }

    /// Whether this node is a relay.
    pub fn is_relay(&self) -> bool {
        matches!(self, Self::Relay(_))
    }

    /// The controller, if it is on this node.
    pub fn controller(&self) -> Option<&Controller> {
        match self {
            Self::Controller(controller) => Some(controller),
            Self::Relay(_) => None,
        }
    }

    /// Whether an engine may say hello for this slot.
    pub fn expects(&self, engine: EngineId) -> bool {
        match self {
            Self::Controller(controller) => controller.expects(engine),
            Self::Relay(uplink) => uplink.relay.expects(engine),
        }
    }

    /// Functions that relays need not keep.
    pub fn take_freed_functions(&mut self, now: Nanos) -> Vec<FunctionId> {
        match self {
            Self::Controller(controller) => controller.take_freed_functions(now),
            Self::Relay(_) => Vec::new(),
        }
    }

    /// When the controller must be called next.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.controller().and_then(Controller::next_deadline)
    }

    /// Does everything that is due.
    pub fn on_deadline(&mut self, now: Nanos, out: &mut Vec<Output>) {
        if let Self::Controller(controller) = self {
            controller.on_deadline(now, out);
        }
    }

    /// Places ready tasks.
    pub fn schedule(&mut self, now: Nanos, out: &mut Vec<Output>) {
        if let Self::Controller(controller) = self {
            controller.schedule(now, out);
        }
    }
}

impl Uplink {
    /// A link was just accepted.
    pub fn new(
        token: usize,
        host: HostId,
        rejoin: Option<Rejoin>,
        recording: Option<Recording>,
    ) -> Self {
        Self {
            link: Some(token),
            host,
            relay: Recorded::new(Relay::default(), recording),
            rejoin,
        }
    }

    /// Another controller has taken the place of the earlier one.
    pub fn follow(&mut self, token: usize) {
        self.link = Some(token);
    }
}

impl Node {
    pub(crate) fn uplink(&mut self) -> Option<&mut Uplink> {
        match &mut self.role {
            NodeRole::Relay(uplink) => Some(uplink),
            NodeRole::Controller(_) => None,
        }
    }

    pub(crate) fn controller_link(&self) -> Option<usize> {
        match &self.role {
            NodeRole::Relay(uplink) => uplink.link,
            NodeRole::Controller(_) => None,
        }
    }

    // What happens on this host

    /// Something happened to an engine of this host.
    pub(crate) fn report(&mut self, report: EngineReport) {
        match &mut self.role {
            NodeRole::Controller(controller) => {
                let host = HostId::CONTROLLER;
                let input = Input::Report { host, report };
                controller.on_input(self.now_ns, input, &mut self.outputs);
            }
            NodeRole::Relay(uplink) => {
                uplink.relay.on_report(self.now_ns, &report);
                self.tell_controller(&RelayEvent::Report(report));
            }
        }
    }

    /// A task of an engine of this host ended.
    pub(crate) fn report_done(&mut self, engine: EngineId, mut record: DoneRecord) {
        if !self.role.is_relay() {
            let copy = self.copy_to_keep(&record.payload);
            self.input(Input::Done {
                host: HostId::CONTROLLER,
                engine,
                record,
                copy,
            });
            return;
        }
        for (object, range) in self.objects.export(&mut record.payload, &mut self.segments) {
            self.provide(object, &range, RESULT_CHUNK_BYTES);
        }
        let done = RelayedDone { engine, record };
        self.relay_output(engine, done.record.key.0, None);
        if let Some(token) = self.controller_link() {
            self.append(token, FrameKind::RelayedDone, |frame| done.encode(frame));
        }
    }

    /// A task of an engine of this host wrote something.
    pub(crate) fn report_output(&mut self, engine: EngineId, record: OutputRecord) {
        if self.role.is_relay() {
            self.relay_output(engine, record.task, Some(record));
        } else {
            let host = HostId::CONTROLLER;
            self.input(Input::Output {
                host,
                engine,
                record,
            });
        }
    }

    /// Passes a task's output on, unless too much waits for the controller already; then, or when
    /// the task ends, reports how much was dropped.
    fn relay_output(&mut self, engine: EngineId, task: u64, record: Option<OutputRecord>) {
        let limit_bytes = self.config.options.congestion_bytes;
        let Some(token) = self.controller_link() else {
            return;
        };
        let queued_bytes = self.peers.get(token).map_or(0, |p| p.link.queued_bytes());
        let now_ns = self.now_ns;
        let Some(uplink) = self.uplink() else {
            return;
        };
        let is_congested = queued_bytes > limit_bytes;
        let (notices, record) =
            (uplink.relay).on_output(now_ns, engine, task, record, is_congested);
        for record in notices.into_iter().chain(record) {
            self.append(token, FrameKind::Output, |frame| record.encode(frame));
        }
    }

    /// This host's fork server is ready.
    pub(crate) fn on_fork_server_up(&mut self) {
        let (now_ns, mut actions) = (self.now_ns, Vec::new());
        match self.uplink() {
            Some(uplink) => uplink.relay.on_fork_server_up(now_ns, &mut actions),
            None => self.input(Input::ForkServerUp),
        }
        for action in actions {
            self.act(action);
        }
    }

    /// The link of this host's fork server closed.
    pub(crate) fn on_fork_server_down(&mut self) {
        let now_ns = self.now_ns;
        match self.uplink().map(|u| u.relay.on_fork_server_down(now_ns)) {
            Some(action) => self.act(action),
            None => self.input(Input::ForkServerDown),
        }
    }

    /// The owner of this process is gone.
    pub(crate) fn on_owner_down(&mut self) {
        if self.role.is_relay() {
            self.leave();
        } else {
            self.input(Input::OwnerDown);
        }
    }

    // The controller

    pub(crate) fn tell_controller(&mut self, event: &RelayEvent) {
        if let Some(token) = self.controller_link() {
            self.append(token, FrameKind::RelayEvent, |frame| {
                relay::append(event, frame);
            });
        }
    }

    /// The link to the controller closed.
    pub(crate) fn on_controller_gone(&mut self) {
        self.liveness.on_down(HostId::CONTROLLER);
        if let Some(uplink) = self.uplink() {
            uplink.link = None;
        }
        self.leave();
    }

    /// Ends the relay.
    pub(crate) fn leave(&mut self) {
        let now_ns = self.now_ns;
        if let Some(action) = self.uplink().map(|u| u.relay.leave(now_ns)) {
            self.act(action);
        }
    }

    fn act(&mut self, action: RelayAction) {
        match action {
            RelayAction::Do(order) => {
                self.carry_out_order(order);
            }
            RelayAction::Report(report) => self.report(report),
            RelayAction::StopForkServer => self.tell_fork_server(&ForkServerCommand::Stop),
            RelayAction::End => self.finished = true,
        }
    }

    /// Handles one frame from the controller.
    pub(crate) fn on_controller_frame(&mut self, frame: Frame) -> Result<(), LinkError> {
        let now_ns = self.now_ns;
        self.on_controller_heard();
        match frame.kind {
            FrameKind::AssignMany => {
                let mut reader = Reader::new(frame.body);
                while !reader.is_empty() {
                    let many = AssignMany::decode(&mut reader)?;
                    self.assign_many(many);
                }
            }
            FrameKind::Function => {
                let mut reader = Reader::new(frame.body);
                while !reader.is_empty() {
                    let record = FunctionRecord::decode(&mut reader)?;
                    if let Some(uplink) = self.uplink() {
                        uplink.relay.on_function(now_ns, record);
                    }
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
        let now_ns = self.now_ns;
        match command {
            RelayCommand::Order(order) => {
                let action = self.uplink().and_then(|u| u.relay.on_order(now_ns, order));
                if let Some(action) = action {
                    self.act(action);
                }
            }
            RelayCommand::GiveFunction { engine, function } => {
                let record = self.uplink().and_then(|u| u.relay.function(function));
                if let Some(record) = record.cloned() {
                    self.send_function(engine, &record);
                }
            }
            RelayCommand::ForgetFunctions(ids) => {
                if let Some(uplink) = self.uplink() {
                    uplink.relay.forget_functions(now_ns, &ids);
                }
            }
            RelayCommand::Fetch(fetch) => {
                let object = fetch.object;
                if let Err(reason) = self.objects.fetch(fetch) {
                    self.tell_controller(&RelayEvent::FetchFailed { object, reason });
                }
            }
            RelayCommand::Forget(objects) => self.on_forget(objects),
            RelayCommand::Ping { sent_ns } => self.on_ping(sent_ns),
            RelayCommand::Measure => self.on_measure(),
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
