//! Turns frames from peers into the controller's inputs.

use broadleaf_core::{Course, Input};
use broadleaf_net::{Frame, LinkError};
use broadleaf_proto::control::{self, ControlReply, ControlRequest};
use broadleaf_proto::host::EngineReport;
use broadleaf_proto::layout::{Compound, Delivery};
use broadleaf_proto::limits::{MAX_OPTIONS_BYTES, MAX_REQUEST_BYTES};
use broadleaf_proto::task::{DoneRecord, FunctionRecord, OutputRecord, Payload, SubmitRecord};
use broadleaf_proto::wire::Reader;
use broadleaf_proto::{ClientId, DecodeError, EngineId, FrameKind, HostId};
use bytes::Bytes;

use crate::connections::peers::Role;
use crate::node::Node;
use crate::reports::ring::Kind;

/// Results up to this size are kept for other clients, wherever they lay; those of pickles, text and bytes alone up to the
/// second: what a cell printed and displayed is one.
const KEPT_COPY_BYTES: (u64, u64) = (64 * 1024, 256 * 1024);

fn too_long(claimed: usize, limit: usize) -> DecodeError {
    DecodeError::TooLong {
        claimed: claimed as u64,
        limit: limit as u64,
    }
}

impl Node {
    /// Handles one frame from a peer.
    pub(crate) fn on_frame(&mut self, token: usize, frame: Frame) -> Result<(), LinkError> {
        match self.peers[token].role {
            Role::Unknown => self.on_hello(token, &frame),
            Role::Client { client, host, .. } => self.on_client_frame(token, client, host, frame),
            Role::Engine { engine, .. } => self.on_engine_frame(token, engine, frame),
            Role::ForkServer if frame.kind == FrameKind::ForkServerEvent => {
                self.report(EngineReport::ForkServer(control::decode(&frame.body)?));
                Ok(())
            }
            Role::Relay { host } => self.on_relay_frame(host, &frame),
            Role::Controller => self.on_controller_frame(frame),
            Role::Resuming { session } => self.on_resuming_frame(token, session, &frame),
            Role::Leaving => Ok(()),
            Role::ForkServer => Err(DecodeError::UnknownKind(frame.kind as u8).into()),
        }
    }

    fn on_client_frame(
        &mut self,
        token: usize,
        client: ClientId,
        host: HostId,
        frame: Frame,
    ) -> Result<(), LinkError> {
        let mut reader = Reader::new(frame.body.clone());
        match frame.kind {
            FrameKind::Submit => {
                while !reader.is_empty() {
                    let mut record = SubmitRecord::decode(&mut reader)?;
                    match self.take_arguments(token, &mut record.payload) {
                        Ok(owner) => {
                            self.segments.adopt(owner, &mut record.payload);
                            self.input(Input::Submit { client, record });
                        }
                        Err(reason) => self.input(Input::SubmitIncomplete {
                            client,
                            record,
                            reason,
                        }),
                    }
                }
            }
            FrameKind::Function => {
                while !reader.is_empty() {
                    let record = FunctionRecord::decode(&mut reader)?;
                    self.input(Input::Function { client, record });
                }
            }
            FrameKind::Options if frame.body.len() > MAX_OPTIONS_BYTES => {
                return Err(too_long(frame.body.len(), MAX_OPTIONS_BYTES).into());
            }
            FrameKind::Request if frame.body.len() > MAX_REQUEST_BYTES => {
                return Err(too_long(frame.body.len(), MAX_REQUEST_BYTES).into());
            }
            FrameKind::Options => self.input(Input::Options {
                client,
                define: control::decode(&frame.body)?,
            }),
            FrameKind::Request => {
                let (number, request): (u64, ControlRequest) = control::decode(&frame.body)?;
                self.ring.note(Kind::Request, client.0, number);
                self.on_request(token, client, number, request);
            }
            FrameKind::Upload if !self.peers[token].link.is_local() => {
                return self.on_upload(token, frame.body);
            }
            FrameKind::RelayEvent if host != HostId::CONTROLLER => {
                return self.on_far_client_frame(host, &frame);
            }
            _ => return self.on_segment_frame(token, frame),
        }
        Ok(())
    }

    fn on_request(&mut self, token: usize, client: ClientId, number: u64, request: ControlRequest) {
        let unread_bytes = self.peers[token].link.queued_bytes();
        let reply = match request {
            // An answer may be many times as long as its request.
            _ if unread_bytes > self.config.options.congestion_bytes => {
                ControlReply::Failed(format!(
                    "{unread_bytes} bytes of earlier answers are waiting for this client: read them first"
                ))
            }
            // Every replacement would add to what the engines have yet to read.
            ControlRequest::Prepare { .. }
                if self.unread_by_engines_bytes() > self.config.options.function_cache_bytes =>
            {
                ControlReply::Failed(format!(
                    "{} bytes are waiting for engines that are running tasks and do not read \
                    them: prepare the engines again when the tasks have ended, or interrupt them",
                    self.unread_by_engines_bytes()
                ))
            }
            ControlRequest::Status => ControlReply::Text(self.status_json()),
            ControlRequest::Watch { after, max_events } => {
                self.input(Input::Observed);
                ControlReply::Text(self.watch_json(after, max_events))
            }
            ControlRequest::Trace => ControlReply::Text(self.ring.chrome_trace()),
            ControlRequest::Recording { stop } => self.on_recording(stop),
            ControlRequest::Recorded { from_bytes } => self.recorded(from_bytes),
            ControlRequest::SetLog { level, sink } => match self.ring.set(level, &sink) {
                Ok(()) => ControlReply::Done,
                Err(error) => ControlReply::Failed(format!("log sink {sink:?}: {error}")),
            },
            ControlRequest::Config => ControlReply::Text(self.config.options.to_json()),
            request => {
                self.input(Input::Request {
                    client,
                    number,
                    request,
                });
                // The next request may follow in the same batch of frames, and must find this
                // answer in the queue.
                self.carry_out();
                return;
            }
        };
        self.send(token, FrameKind::Reply, &control::encode(&(number, reply)));
    }

    fn on_engine_frame(
        &mut self,
        token: usize,
        engine: EngineId,
        frame: Frame,
    ) -> Result<(), LinkError> {
        let mut reader = Reader::new(frame.body.clone());
        match frame.kind {
            FrameKind::Done => {
                while !reader.is_empty() {
                    let record = DoneRecord::decode(&mut reader)?;
                    self.on_done(token, engine, record);
                }
            }
            FrameKind::Output => {
                while !reader.is_empty() {
                    let record = OutputRecord::decode(&mut reader)?;
                    if let Role::Engine { arrived_bytes, .. } = &mut self.peers[token].role {
                        // The decoder accepts no other streams.
                        arrived_bytes[usize::from(record.stream) - 1] += record.bytes.len() as u64;
                    }
                    self.report_output(engine, record);
                }
            }
            FrameKind::EngineEvent => self.report(EngineReport::Waits {
                engine,
                event: control::decode(&frame.body)?,
            }),
            // Its answer was taken before this, and those of others are looked for once all that has arrived is read.
            FrameKind::LaneAnswered => {}
            _ => return self.on_segment_frame(token, frame),
        }
        Ok(())
    }

    /// A task of an engine of this host has ended.
    pub(crate) fn on_done(&mut self, token: usize, engine: EngineId, mut record: DoneRecord) {
        self.lane.on_end(engine, record.key);
        self.segments.adopt(token as u32, &mut record.payload);
        self.note_task(engine, &record);
        self.report_done(engine, record);
    }

    /// A small result inline, if it lies in segments and results are kept.
    pub(crate) fn copy_to_keep(&self, payload: &Payload) -> Option<Box<Bytes>> {
        let bytes = payload.segments.iter().map(|range| range.len_bytes);
        let held_bytes = bytes.sum::<u64>();
        let may_be_kept = held_bytes > 0 && self.config.options.kept_results_bytes > 0;
        if !may_be_kept || held_bytes > KEPT_COPY_BYTES.1 {
            return None;
        }
        let is_immutable = || {
            let immutable =
                |(byte, _): &(u8, u64)| matches!(Delivery::of(*byte), Ok((_, Delivery::Readonly)));
            Compound::decode(&payload.bytes).is_ok_and(|c| c.buffers.iter().all(immutable))
        };
        (held_bytes <= KEPT_COPY_BYTES.0 || is_immutable())
            .then(|| self.segments.inlined(payload).map(Box::new))
            .flatten()
    }

    /// Records a task that an engine has ended, before the controller forgets it.
    pub(crate) fn note_task(&mut self, engine: EngineId, record: &DoneRecord) {
        let controller = self.role.controller();
        let course = || controller.map_or_else(Course::default, |c| c.course(record.key));
        self.ring.task(engine, record, course);
    }

    fn on_segment_frame(&mut self, token: usize, frame: Frame) -> Result<(), LinkError> {
        match frame.kind {
            FrameKind::SegmentAnnounce => {
                let announce: control::SegmentAnnounce = control::decode(&frame.body)?;
                if let Some(space) = self.peers[token].segment_token {
                    for ((id, len), fd) in announce.segments.into_iter().zip(frame.fds) {
                        self.segments.on_announce(token as u32, space, id, len, fd);
                    }
                }
            }
            FrameKind::SegmentRelease => {
                let release: control::SegmentRelease = control::decode(&frame.body)?;
                self.drop_uploads(token, &release.released);
                let forget =
                    self.segments
                        .on_release(token as u32, &release.released, &release.retired);
                for (peer, id) in forget {
                    let release = control::SegmentRelease {
                        released: Vec::new(),
                        retired: vec![id],
                    };
                    self.send(
                        peer as usize,
                        FrameKind::SegmentRelease,
                        &control::encode(&release),
                    );
                }
            }
            kind => return Err(DecodeError::UnknownKind(kind as u8).into()),
        }
        Ok(())
    }
}
