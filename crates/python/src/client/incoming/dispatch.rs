//! Applies messages of the controller to the client's state.

use std::sync::atomic::Ordering;

use broadleaf_client::Mismatch;
use broadleaf_net::{Frame, LinkError};
use broadleaf_proto::control::{self, ControlReply, Event};
use broadleaf_proto::relay;
use broadleaf_proto::task::{OutputRecord, ResultRecord};
use broadleaf_proto::wire::Reader;
use broadleaf_proto::{CoalescedRecord, DecodeError, FrameKind, RefusedRun};

use crate::client::incoming::far::{Arrived, FarRecord};
use crate::client::shared::{Incoming, Notice, Shared, Table, json};
use crate::payload::lock;

/// Whether a result's values are not in the record.
fn is_out_of_band(record: &ResultRecord) -> bool {
    !record.payload.segments.is_empty()
}

impl Shared {
    /// Handles one frame.
    pub(in crate::client) fn dispatch(
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
                let mut arrived = Arrived::default();
                while !reader.is_empty() {
                    let record = ResultRecord::decode(&mut reader)?;
                    if let Some(far) = self.far.as_ref().filter(|_| is_out_of_band(&record)) {
                        far.on_record(FarRecord::Result(record), &mut arrived);
                        continue;
                    }
                    let resolved = self.on_result(&mut table, record, received_ns, incoming);
                    n_resolved += u64::from(resolved.is_some());
                    resolved_bytes += resolved.unwrap_or(0);
                }
                drop(table);
                self.outstanding_bytes
                    .fetch_sub(resolved_bytes, Ordering::AcqRel);
                self.counters
                    .resolved
                    .fetch_add(n_resolved, Ordering::Relaxed);
                self.on_arrived(arrived, received_ns, incoming)?;
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
                        self.collect(entry.request.resolve(record, received_ns), incoming);
                    }
                }
            }
            FrameKind::Coalesced => {
                let mut reader = Reader::new(frame.body);
                while !reader.is_empty() {
                    let record = CoalescedRecord::decode(&mut reader)?;
                    let has_out_of_band = |r: &CoalescedRecord| {
                        r.outcomes.iter().any(|o| !o.payload.segments.is_empty())
                    };
                    let far = self.far.as_ref().filter(|_| has_out_of_band(&record));
                    let mut arrived = Arrived::default();
                    match far {
                        Some(far) => far.on_record(FarRecord::Coalesced(record), &mut arrived),
                        None => arrived.records.push(FarRecord::Coalesced(record)),
                    }
                    self.on_arrived(arrived, received_ns, incoming)?;
                }
            }
            FrameKind::Output => {
                let mut reader = Reader::new(frame.body);
                while !reader.is_empty() {
                    let record = OutputRecord::decode(&mut reader)?;
                    let Some(request) = lock(&self.table).find(record.task) else {
                        continue;
                    };
                    let index = request.index(record.task);
                    request.on_output(index, &record);
                    if request.is_shown {
                        self.lasting.unshown.add(&record);
                        incoming.is_to_show = true;
                    }
                    if self.lasting.live_output.load(Ordering::Relaxed) {
                        incoming.output.push((request, index, record));
                    }
                }
            }
            FrameKind::RelayCommand if self.far.is_some() => {
                self.on_relay_commands(&frame.body, received_ns, incoming)?;
            }
            FrameKind::SegmentAnnounce => self
                .data
                .on_announce(control::decode(&frame.body)?, frame.fds),
            FrameKind::SegmentRelease => self.data.on_release(&control::decode(&frame.body)?),
            FrameKind::Reply => {
                let (number, reply): (u64, ControlReply) = control::decode(&frame.body)?;
                lock(&self.replies).on_reply(number, reply);
            }
            FrameKind::Event => {
                let notice = self.on_event(control::decode(&frame.body)?);
                incoming.notices.extend(notice);
            }
            kind => return Err(DecodeError::UnknownKind(kind as u8).into()),
        }
        Ok(())
    }

    /// Resolves a task; returns the payload bytes charged for it, if it was not resolved yet.
    fn on_result(
        &self,
        table: &mut Table,
        mut record: ResultRecord,
        received_ns: u64,
        incoming: &mut Incoming,
    ) -> Option<u64> {
        // What nobody waits for any more is released with the record.
        self.data.adopt(&mut record.payload);
        let entry = table.remove(record.seq.0)?;
        // This must precede the result: whoever waits for it may submit again, and asks whether an engine is idle.
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
        self.collect(entry.request.resolve(record, received_ns), incoming);
        Some(entry.weight_bytes)
    }

    fn on_coalesced(
        &self,
        mut record: CoalescedRecord,
        received_ns: u64,
        incoming: &mut Incoming,
    ) -> Result<(), LinkError> {
        for outcome in &mut record.outcomes {
            self.data.adopt(&mut outcome.payload);
        }
        let found = lock(&self.table).remove_together(record.seq.0, record.len());
        let Some((parts, n)) = found.map_err(|Mismatch| DecodeError::Malformed)? else {
            return Ok(());
        };
        self.on_resolved(n, parts.weight_bytes);
        self.collect(
            parts.request.resolve_together(record, received_ns),
            incoming,
        );
        Ok(())
    }

    /// The controller of another host orders the client to get objects.
    fn on_relay_commands(
        &self,
        body: &[u8],
        received_ns: u64,
        incoming: &mut Incoming,
    ) -> Result<(), LinkError> {
        let Some(far) = &self.far else {
            return Ok(());
        };
        let mut arrived = Arrived::default();
        if let Some(doorbell) = far.on_commands(body, &mut arrived)? {
            self.wire.ring_by(doorbell);
            // The waiting thread may be waiting for the socket only.
            self.wake_background();
        }
        self.on_arrived(arrived, received_ns, incoming)
    }

    /// Resolves what has waited for objects, and reports their progress to the controller.
    pub(in crate::client) fn on_arrived(
        &self,
        arrived: Arrived,
        received_ns: u64,
        incoming: &mut Incoming,
    ) -> Result<(), LinkError> {
        for record in arrived.records {
            match record {
                FarRecord::Result(record) => {
                    let mut table = lock(&self.table);
                    let resolved = self.on_result(&mut table, record, received_ns, incoming);
                    drop(table);
                    let weight_bytes = resolved.unwrap_or(0);
                    self.outstanding_bytes
                        .fetch_sub(weight_bytes, Ordering::AcqRel);
                    let n_resolved = u64::from(resolved.is_some());
                    self.counters
                        .resolved
                        .fetch_add(n_resolved, Ordering::Relaxed);
                }
                FarRecord::Coalesced(record) => self.on_coalesced(record, received_ns, incoming)?,
            }
        }
        if arrived.events.is_empty() {
            return Ok(());
        }
        self.wire.with(|net| {
            for event in &arrived.events {
                net.append(FrameKind::RelayEvent, |frame| relay::append(event, frame));
            }
            net.flush().map(drop)
        })
    }

    /// Whether a task was submitted and has no result yet.
    pub(in crate::client) fn is_outstanding(&self, seq: u64) -> bool {
        self.register_submissions();
        lock(&self.table).contains(seq)
    }

    /// Subtracts `n` tasks of `weight_bytes` in total that were counted and not submitted.
    pub(in crate::client) fn take_back(&self, n: u64, weight_bytes: u64) {
        self.outstanding.fetch_sub(n, Ordering::AcqRel);
        self.outstanding_bytes
            .fetch_sub(weight_bytes, Ordering::AcqRel);
        self.on_changed();
    }

    /// Subtracts `n` tasks of `weight_bytes` each from the outstanding ones.
    pub(in crate::client) fn on_resolved(&self, n: u64, weight_bytes: u64) {
        self.outstanding.fetch_sub(n, Ordering::AcqRel);
        self.outstanding_bytes
            .fetch_sub(n * weight_bytes, Ordering::AcqRel);
        self.counters.resolved.fetch_add(n, Ordering::Relaxed);
    }

    fn on_engines_changed(&self, n_engines: usize) {
        self.n_engines.store(n_engines as u64, Ordering::Relaxed);
        self.lasting.engines_version.fetch_add(1, Ordering::Release);
    }

    /// An event of the cluster; returns what Python must hear. Engines that come or are leaving are looked up when
    /// somebody asks.
    fn on_event(&self, event: Event) -> Option<Notice> {
        match event {
            Event::EngineUp(info) => {
                let mut engines = lock(&self.engines);
                engines.insert(info.engine, info);
                self.on_engines_changed(engines.len());
                None
            }
            Event::EngineLeaving(engine) => {
                let mut engines = lock(&self.engines);
                engines.remove(&engine);
                self.on_engines_changed(engines.len());
                None
            }
            Event::EngineDown(certificate) => {
                let body = json(&certificate);
                lock(&self.lasting.deaths).push(body.clone());
                let mut engines = lock(&self.engines);
                engines.remove(&certificate.engine);
                self.on_engines_changed(engines.len());
                Some(Notice {
                    kind: "engine_down",
                    body,
                })
            }
            Event::Stopping => {
                self.is_stopping.store(true, Ordering::Release);
                Some(Notice {
                    kind: "stopping",
                    body: "{}".to_owned(),
                })
            }
        }
    }
}
