//! Turns the controller's outputs into bytes, signals and entries of claim boards.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use broadleaf_core::Output;
use broadleaf_proto::control::{
    self, ForkServerCommand, RefusalReason, SegmentAnnounce, SegmentRelease,
};
use broadleaf_proto::engine::EngineCommand;
use broadleaf_proto::host::{EngineOrder, EngineReport};
use broadleaf_proto::limits::MAX_INLINE_PAYLOAD_BYTES;
use broadleaf_proto::relay::RelayCommand;
use broadleaf_proto::task::FunctionRecord;
use broadleaf_proto::{ClientId, EngineId, FrameKind, HostId, Payload, SegmentId, Status};
use rustix::process::{Pid, Signal, kill_process};

use crate::connections::peers::Role;
use crate::node::Node;
use crate::payload::PlaneCommand;
use crate::reports::ring::Kind;
use crate::segments::NODE;

impl Node {
    /// Carries out everything that the controller asked for, until it asks for nothing more.
    pub(crate) fn carry_out(&mut self) {
        self.role.schedule(self.now_ns, &mut self.outputs);
        self.forget_functions();
        while !self.outputs.is_empty() {
            let outputs = std::mem::take(&mut self.outputs);
            let mut answered = false;
            for output in outputs {
                answered |= self.carry_out_one(output);
            }
            self.deliver_gathered();
            if answered {
                self.role.schedule(self.now_ns, &mut self.outputs);
            }
        }
        self.send_all_assignments();
        self.return_segments();
    }

    /// Carries out one output; returns whether the controller received new inputs.
    fn carry_out_one(&mut self, output: Output) -> bool {
        let is_for_engine = matches!(
            output,
            Output::Assign { .. } | Output::Function { .. } | Output::Order(_)
        );
        if !is_for_engine {
            self.deliver_gathered();
        }
        match output {
            Output::Assign {
                engine,
                record,
                topology,
            } => match self.relay_of(engine) {
                Some(host) => self.assign_there(host, engine, record, topology),
                None if self.offer(engine, record.offer) => self.gather(engine, record),
                None => {}
            },
            Output::Function { engine, record } => {
                if let Some(host) = self.relay_of(engine) {
                    self.send_function_there(host, engine, &record);
                } else {
                    self.deliver_gathered();
                    self.send_function(engine, &record);
                }
            }
            Output::Order(order) => {
                if let Some(host) = self.relay_of(order.engine()) {
                    self.send_order(host, order);
                } else {
                    self.deliver_gathered();
                    return self.carry_out_order(order);
                }
            }
            Output::Result { client, mut record } => {
                if let Some(token) = self.client_token(client) {
                    self.lend_result(token, &mut record.status, &mut record.payload);
                    self.append(token, FrameKind::Result, |frame| record.encode(frame));
                }
            }
            Output::Refused { client, record } => {
                if let Some(token) = self.client_token(client) {
                    self.append(token, FrameKind::RefusedRun, |frame| record.encode(frame));
                }
            }
            Output::Coalesced { client, mut record } => {
                if let Some(token) = self.client_token(client) {
                    for outcome in &mut record.outcomes {
                        self.lend_result(token, &mut outcome.status, &mut outcome.payload);
                    }
                    self.append(token, FrameKind::Coalesced, |frame| record.encode(frame));
                }
            }
            Output::ClientOutput { client, record } => {
                if let Some(token) = self.client_token(client) {
                    self.append(token, FrameKind::Output, |frame| record.encode(frame));
                }
            }
            Output::Event { client, event } => {
                if let Some(token) = self.client_token(client) {
                    self.send(token, FrameKind::Event, &control::encode(&event));
                }
            }
            Output::Reply {
                client,
                number,
                reply,
            } => {
                if let Some(token) = self.client_token(client) {
                    self.send(token, FrameKind::Reply, &control::encode(&(number, reply)));
                }
            }
            Output::Measure { host } => self.tell_host(host, &RelayCommand::Measure),
            Output::StopForkServer => self.tell_fork_server(&ForkServerCommand::Stop),
            Output::Expel { host } => return self.close_relay(host, true),
            Output::Release { host } => return self.close_relay(host, false),
            Output::Note(fact) => self.note(fact),
            Output::Finished => self.finished = true,
        }
        false
    }

    /// Carries out an order for an engine of this host; returns whether the controller received new inputs.
    pub(crate) fn carry_out_order(&mut self, order: EngineOrder) -> bool {
        match order {
            EngineOrder::Revoke { engine, key, offer } => {
                let won = self.board(engine).is_some_and(|board| board.revoke(offer));
                if won {
                    self.lane.on_end(engine, key);
                }
                self.report(EngineReport::Revoked { engine, key, won });
                return true;
            }
            EngineOrder::Interrupt { engine, offer, .. } => self.interrupt(engine, offer),
            EngineOrder::Kill { pid, signal, .. } => signal_process(pid, signal),
            EngineOrder::Stop { engine } => {
                if let Some(token) = self.engine_token(engine) {
                    self.send(
                        token,
                        FrameKind::EngineCommand,
                        &control::encode(&EngineCommand::Stop),
                    );
                }
            }
            EngineOrder::ForkServer(order) => {
                self.tell_fork_server(&ForkServerCommand::Do(order));
            }
        }
        false
    }

    /// Closes the link of a host's relay; returns whether there was one.
    fn close_relay(&mut self, host: HostId, is_malformed: bool) -> bool {
        let Some(token) = self.relays.links.get(&host).map(|link| link.token) else {
            return false;
        };
        self.say_goodbye(token);
        if is_malformed {
            self.ring.note(Kind::Malformed, token as u32, host.0.into());
        }
        self.close(token);
        true
    }

    pub(crate) fn tell_fork_server(&mut self, command: &ForkServerCommand) {
        if let Some(token) = self.fork_server {
            let body = control::encode(command);
            self.send(token, FrameKind::ForkServerCommand, &body);
        }
    }

    /// Sends a function to an engine of this host.
    pub(crate) fn send_function(&mut self, engine: EngineId, record: &FunctionRecord) {
        if let Some(token) = self.engine_token(engine) {
            self.append(token, FrameKind::Function, |frame| record.encode(frame));
        }
    }

    /// Makes a result's payload readable by its client: exported on this host; as objects or inline
    /// for another host.
    fn lend_result(&mut self, token: usize, status: &mut Status, payload: &mut Payload) {
        if payload.segments.is_empty()
            || (self.peers[token].link.is_local() && self.lend(token, payload))
        {
            return;
        }
        if self.send_out_of_band(token, payload) {
            return;
        }
        let held_bytes: u64 = payload.segments.iter().map(|s| s.len_bytes).sum();
        let len_bytes = held_bytes.saturating_add(payload.bytes.len() as u64);
        if len_bytes <= MAX_INLINE_PAYLOAD_BYTES as u64 {
            self.segments.inline(payload);
            return;
        }
        let reason = format!(
            "a result of {len_bytes} bytes is too large for a client on another host, which accepts at most {MAX_INLINE_PAYLOAD_BYTES}: keep it in a variable on the engine and fetch it in parts, write it to \
             a file, or run the client on the controller's host"
        );
        *status = Status::Refused;
        *payload = Payload {
            bytes: control::encode(&RefusalReason::Undeliverable(reason)).into(),
            ..Payload::default()
        };
    }

    /// Puts an offer on an engine's board; false when the engine is gone.
    pub(crate) fn offer(&mut self, engine: EngineId, offer: u32) -> bool {
        let Some(token) = self.engine_token(engine) else {
            return false;
        };
        if let Some(Role::Engine {
            board, next_offer, ..
        }) = self.peers.get_mut(token).map(|p| &mut p.role)
        {
            board.offer(offer);
            *next_offer = offer.wrapping_add(1);
        }
        true
    }

    /// Sends a task to an engine that was offered it.
    pub(crate) fn hand_over(&mut self, engine: EngineId, record: &broadleaf_proto::AssignRecord) {
        let Some(token) = self.engine_token(engine) else {
            return;
        };
        if self.lend(token, &record.payload) {
            self.append(token, FrameKind::Assign, |frame| record.encode(frame));
            return;
        }
        let mut record = record.clone();
        self.segments.inline(&mut record.payload);
        if record.payload.bytes.len() > MAX_INLINE_PAYLOAD_BYTES {
            // Without its arguments, the engine finds the task malformed and reports that.
            record.payload = Payload::default();
        }
        self.append(token, FrameKind::Assign, |frame| record.encode(frame));
    }

    pub(crate) fn board(&self, engine: EngineId) -> Option<&broadleaf_shm::ClaimBoard> {
        let token = self.engine_token(engine)?;
        match &self.peers[token].role {
            Role::Engine { board, .. } => Some(board),
            _ => None,
        }
    }

    /// Announces to a peer the segments of a payload that it has not seen, and records that the
    /// peer holds them. Returns false and does nothing if there are too few descriptors.
    fn lend(&mut self, token: usize, payload: &Payload) -> bool {
        if payload.segments.is_empty() {
            return true;
        }
        let Some(unseen) = self.segments.lend(token as u32, payload) else {
            return false;
        };
        for chunk in unseen.chunks(usize::from(broadleaf_proto::limits::MAX_FRAME_FDS)) {
            let announce = SegmentAnnounce {
                segments: chunk.iter().map(|(id, len, _)| (*id, *len)).collect(),
            };
            let fds: Vec<_> = chunk.iter().map(|(_, _, fd)| fd.as_fd()).collect();
            self.send_fds(
                token,
                FrameKind::SegmentAnnounce,
                &control::encode(&announce),
                &fds,
            );
        }
        true
    }

    fn return_segments(&mut self) {
        self.drop_objects();
        let closing = self.segments.take_closing();
        if !closing.is_empty() {
            self.objects.order(PlaneCommand::Close(closing));
        }
        let (returns, forget) = self.segments.take_returns();
        if returns.is_empty() && forget.is_empty() {
            return;
        }
        let mut by_peer: BTreeMap<u32, SegmentRelease> = BTreeMap::new();
        for (owner, id) in returns {
            if owner == NODE {
                self.objects.on_free(id);
                continue;
            }
            by_peer.entry(owner).or_default().released.push(id);
        }
        for (peer, id) in forget {
            by_peer.entry(peer).or_default().retired.push(id);
        }
        for (peer, release) in by_peer {
            self.send(
                peer as usize,
                FrameKind::SegmentRelease,
                &control::encode(&release),
            );
        }
    }

    /// A segment of the node's own pool is gone: everyone who has it must close it.
    pub(crate) fn retire(&mut self, id: SegmentId) {
        for (peer, id) in self.segments.on_release(NODE, &[], &[id]) {
            let release = SegmentRelease {
                released: Vec::new(),
                retired: vec![id],
            };
            let body = control::encode(&release);
            self.send(peer as usize, FrameKind::SegmentRelease, &body);
        }
    }

    fn client_token(&self, client: ClientId) -> Option<usize> {
        self.clients.get(&client).copied()
    }

    pub(crate) fn engine_token(&self, engine: EngineId) -> Option<usize> {
        self.engines.get(&engine).copied()
    }
}

/// Signals a process; one that is already gone needs no signal.
pub(crate) fn signal_process(pid: u32, signal: i32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let (Some(pid), Some(signal)) = (pid, Signal::from_named_raw(signal)) {
        let _ = kill_process(pid, signal);
    }
}
