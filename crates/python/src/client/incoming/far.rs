//! Large results of a client on another host: objects that it pulls over a connection of its own, which it opens.
//!
//! What to get, and which results wait for it, is decided in [`Values`]; the payload plane's thread moves the bytes
//! into segments. They are mapped from there as if the controller's node had passed them on.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;

use broadleaf_net::{LinkError, Route};
use broadleaf_node::payload::{Dialer, Plane, PlaneCommand, PlaneEvent, Setup};
use broadleaf_node::{ValueCommand, Values};
use broadleaf_proto::control::{
    self, Hello, RefusalReason, Role, SegmentAnnounce, SegmentRelease, Welcome,
};
use broadleaf_proto::relay::{self, Fetch, Progress, RelayCommand, RelayEvent};
use broadleaf_proto::task::ResultRecord;
use broadleaf_proto::{CoalescedRecord, DecodeError, HostId, ObjectId, Payload, SegmentId, Status};
use broadleaf_shm::{Pool, PoolConfig, memory_is_short};
use rustc_hash::FxHashMap;

use crate::forks::Owner;
use crate::node::connect::EndpointOptions;
use crate::payload::{DataPlane, lock};

/// The high half of the ids of its segments, which no other process sees: the node counts from 1.
const TOKEN: u32 = u32::MAX;

/// A record whose values may lie in objects.
#[derive(Debug)]
pub enum FarRecord {
    /// The result of one task.
    Result(ResultRecord),
    /// The results of all parts of a request.
    Coalesced(CoalescedRecord),
}

impl FarRecord {
    fn payloads(&mut self) -> Vec<(&mut Status, &mut Payload)> {
        match self {
            Self::Result(record) => vec![(&mut record.status, &mut record.payload)],
            Self::Coalesced(record) => {
                let outcomes = record.outcomes.iter_mut();
                outcomes.map(|o| (&mut o.status, &mut o.payload)).collect()
            }
        }
    }

    /// The objects that it names, each with its length.
    fn named(&mut self) -> Vec<(ObjectId, u64)> {
        let payloads = self.payloads().into_iter();
        let ranges = payloads.flat_map(|(_, payload)| payload.segments.iter());
        ranges
            .map(|range| (ObjectId(range.segment.0), range.len_bytes))
            .collect()
    }
}

struct Inner {
    values: Values<FarRecord>,
    /// Until the first object is ordered.
    setup: Option<Setup>,
    /// From then on.
    plane: Option<Plane>,
    pool: Pool,
    /// Where objects lie that have arrived or are on their way.
    segments: FxHashMap<ObjectId, SegmentId>,
    objects: FxHashMap<SegmentId, ObjectId>,
}

/// What the handling of commands, records or events leads to.
#[derive(Default)]
pub struct Arrived {
    /// Records that are complete, or that never will be.
    pub records: Vec<FarRecord>,
    /// Messages for the controller.
    pub events: Vec<RelayEvent>,
}

/// See the module.
pub struct FarValues {
    owner: Owner,
    inner: Mutex<Inner>,
}

impl FarValues {
    /// For a client to which the controller has assigned a host number, so that it can dial as a host.
    pub fn new(
        options: &EndpointOptions,
        hello: &Hello,
        welcome: &Welcome,
        controller: Route,
    ) -> Self {
        let role = Role::Payload { host: welcome.host };
        let setup = Setup {
            hello: Hello {
                role,
                ..hello.clone()
            },
            listener: None,
            dialer: Some(Dialer {
                to_relays: controller.security.clone(),
                controller,
            }),
            secret: welcome.payload_secret.clone(),
            socket_buffer_bytes: options.payload_socket_bytes,
            streams: options.payload_streams,
            cores: 0,
            niceness: 0,
            piece_bytes: 0, // A client has no mover.
        };
        let mut config = PoolConfig {
            open: true,
            idle_trims: options.shared_memory_warm_s,
            ..PoolConfig::default()
        };
        if let Some(max) = options.pool_max_bytes {
            config.max_bytes = max;
        }
        Self {
            owner: Owner::this(),
            inner: Mutex::new(Inner {
                values: Values::default(),
                setup: Some(setup),
                plane: None,
                pool: Pool::new(TOKEN, config),
                segments: FxHashMap::default(),
                objects: FxHashMap::default(),
            }),
        }
    }

    /// Handles the controller's orders. Returns the descriptor to poll for events from now on, if there was none
    /// before.
    ///
    /// # Errors
    /// They are not orders that a client gets, or no thread can be started.
    pub fn on_commands(
        &self,
        body: &[u8],
        arrived: &mut Arrived,
    ) -> Result<Option<OwnedFd>, LinkError> {
        let mut inner = lock(&self.inner);
        let mut doorbell = None;
        for command in relay::messages(body) {
            let RelayCommand::Fetch(fetch) = command? else {
                return Err(DecodeError::Malformed.into());
            };
            if let Some(setup) = inner.setup.take() {
                let plane = Plane::start(setup).map_err(LinkError::Io)?;
                doorbell = Some(plane.as_fd().try_clone_to_owned().map_err(LinkError::Io)?);
                inner.plane = Some(plane);
            }
            let mut orders = Vec::new();
            inner.values.on_fetch(fetch, &mut orders);
            inner.carry_out(orders, arrived);
        }
        Ok(doorbell)
    }

    /// A record arrived whose values lie in objects.
    pub fn on_record(&self, mut record: FarRecord, arrived: &mut Arrived) {
        let mut inner = lock(&self.inner);
        let mut orders = Vec::new();
        let named = record.named();
        inner.values.on_record(record, &named, &mut orders);
        inner.carry_out(orders, arrived);
    }

    /// Handles what the payload plane has done.
    pub fn take_events(&self, data: &DataPlane, arrived: &mut Arrived) {
        let mut inner = lock(&self.inner);
        let events = inner.plane.as_ref().map(Plane::take_events);
        for event in events.unwrap_or_default() {
            let mut orders = Vec::new();
            match event {
                PlaneEvent::Progress(progress) if progress.is_complete => {}
                PlaneEvent::Progress(progress) => {
                    arrived.events.push(RelayEvent::Fetched(progress));
                }
                PlaneEvent::Ready {
                    object,
                    segment,
                    fd,
                    segment_bytes,
                } => {
                    let segments = vec![(segment, segment_bytes)];
                    data.on_announce(SegmentAnnounce { segments }, [fd]);
                    inner.values.on_here(object, &mut orders);
                }
                PlaneEvent::Failed { object, reason } => {
                    inner.values.on_failed(object, &reason, &mut orders);
                }
                PlaneEvent::Dropped(lease) => inner.pool.cancel(lease),
                PlaneEvent::MoverGone => {} // A client has no mover.
            }
            inner.carry_out(orders, arrived);
        }
    }

    /// Values that lay in these segments are gone.
    pub fn on_released(&self, segments: &[SegmentId]) {
        let mut inner = lock(&self.inner);
        let mut orders = Vec::new();
        for segment in segments {
            if let Some(object) = inner.objects.get(segment).copied() {
                inner.values.on_released(object, &mut orders);
            }
        }
        inner.carry_out(orders, &mut Arrived::default());
    }

    /// Whether there are segments to [`trim`](Self::trim).
    pub fn needs_trim(&self) -> bool {
        lock(&self.inner).pool.needs_trim()
    }

    /// Frees segments that were not used for a while; call it once a second while it is needed.
    pub fn trim(&self, data: &DataPlane) {
        let mut inner = lock(&self.inner);
        if memory_is_short() {
            inner.pool.give_up_warm();
        }
        let retired = inner.pool.trim();
        data.on_release(&SegmentRelease {
            released: Vec::new(),
            retired,
        });
    }

    /// The controller cannot be reached at the moment, or can again: what is fetched waits meanwhile.
    pub fn on_away(&self, is_away: bool) {
        if let Some(plane) = &lock(&self.inner).plane {
            plane.order(PlaneCommand::Away {
                host: HostId::CONTROLLER,
                is_away,
            });
        }
    }

    /// The connection is closed: nothing more is fetched. Values that have arrived remain.
    pub fn close(&self) {
        let plane = {
            let mut inner = lock(&self.inner);
            inner.setup = None;
            inner.plane.take()
        };
        drop(plane);
    }
}

impl Drop for FarValues {
    fn drop(&mut self) {
        if self.owner.is_elsewhere()
            && let Ok(inner) = self.inner.get_mut()
        {
            // The thread belongs to another process: it is not joined.
            std::mem::forget(inner.plane.take());
        }
    }
}

impl Inner {
    fn carry_out(&mut self, orders: Vec<ValueCommand<FarRecord>>, arrived: &mut Arrived) {
        let mut orders = VecDeque::from(orders);
        while let Some(order) = orders.pop_front() {
            match order {
                ValueCommand::Get(fetch) => {
                    let object = fetch.object;
                    if let Err(reason) = self.get(fetch) {
                        let mut more = Vec::new();
                        self.values.on_failed(object, &reason, &mut more);
                        orders.extend(more);
                    }
                }
                ValueCommand::Deliver(record) => {
                    let record = self.deliver(record, arrived);
                    arrived.records.push(record);
                }
                ValueCommand::GiveUp(record, reason) => {
                    let record = give_up(record, &reason, arrived);
                    arrived.records.push(record);
                }
                ValueCommand::Drop(object) => {
                    if let Some(segment) = self.segments.remove(&object) {
                        self.objects.remove(&segment);
                    }
                    self.order(PlaneCommand::Drop(object));
                }
            }
        }
    }

    fn order(&self, order: PlaneCommand) {
        if let Some(plane) = &self.plane {
            plane.order(order);
        }
    }

    fn get(&mut self, fetch: Fetch) -> Result<(), String> {
        let lease = self.pool.allocate(fetch.len_bytes);
        let lease = lease.map_err(|error| error.to_string())?;
        let segment = lease.id();
        self.pool.mark_announced(segment);
        self.segments.insert(fetch.object, segment);
        self.objects.insert(segment, fetch.object);
        self.order(PlaneCommand::Fetch {
            fetch,
            lease: Some(lease),
        });
        Ok(())
    }

    /// Replaces objects that have all arrived with segments.
    fn deliver(&self, mut record: FarRecord, arrived: &mut Arrived) -> FarRecord {
        for (_, payload) in record.payloads() {
            for range in &mut payload.segments {
                let object = ObjectId(range.segment.0);
                if let Some(segment) = self.segments.get(&object) {
                    range.segment = *segment;
                }
                arrived.events.push(RelayEvent::Fetched(Progress {
                    object,
                    have_bytes: range.len_bytes,
                    is_complete: true,
                    source: HostId::CONTROLLER,
                    receiving_ns: 0,
                    wire_bytes: range.len_bytes,
                    resumed_at: Vec::new(),
                    corrupt_chunks: 0,
                    mover_bytes: 0,
                }));
            }
        }
        record
    }
}

/// Replaces values that will not arrive with the reason.
fn give_up(mut record: FarRecord, reason: &str, arrived: &mut Arrived) -> FarRecord {
    for (status, payload) in record.payloads() {
        if payload.segments.is_empty() {
            continue;
        }
        for range in &payload.segments {
            arrived.events.push(RelayEvent::FetchFailed {
                object: ObjectId(range.segment.0),
                reason: reason.to_owned(),
            });
        }
        *status = Status::Refused;
        *payload = Payload {
            bytes: control::encode(&RefusalReason::Undeliverable(reason.to_owned())).into(),
            ..Payload::default()
        };
    }
    record
}
