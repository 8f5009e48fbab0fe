//! Applies messages of the controller to the client's state.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use broadleaf_net::{Frame, LinkError};
use broadleaf_proto::control::{self, ControlReply, Event};
use broadleaf_proto::task::{OutputRecord, ResultRecord};
use broadleaf_proto::wire::Reader;
use broadleaf_proto::{CoalescedRecord, DecodeError, FrameKind, RefusedRun};

use super::request::Request;
use super::shared::{Incoming, Notice, Shared, json};
use crate::payload::lock;

impl Shared {
    /// Handles one frame.
    pub(super) fn dispatch(
        &self,
        frame: Frame,
        received_ns: u64,
        incoming: &mut Incoming,
    ) -> Result<(), LinkError> {
        match frame.kind {
            FrameKind::Result => {
                let mut reader = Reader::new(frame.body);
                let mut table = lock(&self.table);
                let (mut n_resolved, mut resolved_bytes) = (0, 0);
                while !reader.is_empty() {
                    let mut record = ResultRecord::decode(&mut reader)?;
                    let Some(entry) = table.remove(record.seq.0) else {
                        continue;
                    };
                    self.data.adopt(&mut record.payload);
                    // Done before the result is stored: whoever waits for it may submit again, and checks whether an
                    // engine is idle.
                    self.outstanding.fetch_sub(1, Ordering::AcqRel);
                    n_resolved += 1;
                    resolved_bytes += entry.weight_bytes;
                    self.collect(
                        entry
                            .request
                            .resolve(entry.index as usize, record, received_ns),
                        incoming,
                    );
                }
                self.outstanding_bytes
                    .fetch_sub(resolved_bytes, Ordering::AcqRel);
                self.counters
                    .resolved
                    .fetch_add(n_resolved, Ordering::Relaxed);
            }
            FrameKind::RefusedRun => {
                let mut reader = Reader::new(frame.body);
                while !reader.is_empty() {
                    let run = RefusedRun::decode(&mut reader)?;
                    for record in run.results() {
                        let found = lock(&self.table).remove(record.seq.0);
                        let Some(entry) = found else {
                            continue;
                        };
                        self.on_resolved(1, entry.weight_bytes);
                        let index = entry.index as usize;
                        self.collect(entry.request.resolve(index, record, received_ns), incoming);
                    }
                }
            }
            FrameKind::Coalesced => {
                let mut reader = Reader::new(frame.body);
                while !reader.is_empty() {
                    let mut record = CoalescedRecord::decode(&mut reader)?;
                    let found = lock(&self.table).remove_together(record.seq.0);
                    let Some((request, weight_bytes)) = found else {
                        continue;
                    };
                    if record.len() != request.len {
                        return Err(DecodeError::Malformed.into());
                    }
                    for outcome in &mut record.outcomes {
                        self.data.adopt(&mut outcome.payload);
                    }
                    self.on_resolved(record.len() as u64, weight_bytes);
                    self.collect(request.resolve_together(record, received_ns), incoming);
                }
            }
            FrameKind::Output => {
                let mut reader = Reader::new(frame.body);
                while !reader.is_empty() {
                    let record = OutputRecord::decode(&mut reader)?;
                    let Some((request, index)) = self.find(record.task) else {
                        continue;
                    };
                    request.on_output(index, &record);
                    if self.live_output.load(Ordering::Relaxed) {
                        incoming.output.push((request, index, record));
                    }
                }
            }
            FrameKind::SegmentAnnounce => self
                .data
                .on_announce(control::decode(&frame.body)?, frame.fds),
            FrameKind::SegmentRelease => self.data.on_release(&control::decode(&frame.body)?),
            FrameKind::Reply => {
                let (number, reply): (u64, ControlReply) = control::decode(&frame.body)?;
                if let Some(slot) = lock(&self.replies).get_mut(&number) {
                    *slot = Some(reply);
                }
            }
            FrameKind::Event => incoming
                .notices
                .push(self.on_event(control::decode(&frame.body)?)),
            kind => return Err(DecodeError::UnknownKind(kind as u8).into()),
        }
        Ok(())
    }

    fn find(&self, seq: u64) -> Option<(Arc<Request>, usize)> {
        lock(&self.table).find(seq)
    }

    /// Subtracts `n` tasks of `weight_bytes` each from the outstanding ones.
    pub(super) fn on_resolved(&self, n: u64, weight_bytes: u64) {
        self.outstanding.fetch_sub(n, Ordering::AcqRel);
        self.outstanding_bytes
            .fetch_sub(n * weight_bytes, Ordering::AcqRel);
        self.counters.resolved.fetch_add(n, Ordering::Relaxed);
    }

    fn on_engines_changed(&self, n_engines: usize) {
        self.n_engines.store(n_engines as u64, Ordering::Relaxed);
        self.engines_version.fetch_add(1, Ordering::Release);
    }

    fn on_event(&self, event: Event) -> Notice {
        match event {
            Event::EngineUp(info) => {
                let body = json(&info);
                let mut engines = lock(&self.engines);
                engines.insert(info.engine, info);
                self.on_engines_changed(engines.len());
                Notice {
                    kind: "engine_up",
                    body,
                }
            }
            Event::EngineDraining(engine) => {
                let mut engines = lock(&self.engines);
                engines.remove(&engine);
                self.on_engines_changed(engines.len());
                Notice {
                    kind: "engine_draining",
                    body: json(&engine),
                }
            }
            Event::EngineDown(certificate) => {
                let mut engines = lock(&self.engines);
                engines.remove(&certificate.engine);
                self.on_engines_changed(engines.len());
                Notice {
                    kind: "engine_down",
                    body: json(&certificate),
                }
            }
            Event::Stopping => Notice {
                kind: "stopping",
                body: "{}".to_owned(),
            },
        }
    }
}
