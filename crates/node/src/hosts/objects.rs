//! Payload that travels to and from other hosts, as the node's own thread manages it.
//!
//! A range of a segment that leaves its host becomes an object there: it is named once, sent to a
//! host once, and mapped by all of that host's engines.

use std::collections::{BTreeMap, BTreeSet};

use broadleaf_core::relay::Arguments;
use broadleaf_core::transfer::Transfers;
use broadleaf_proto::relay::Fetch;
use broadleaf_proto::task::LeaseGuard;
use broadleaf_proto::{HostId, MoverRank, ObjectId, Payload, PayloadSecret, SegmentId, SegmentRef};
use broadleaf_shm::{Lease, Pool, PoolConfig, Segment, ShmError, memory_is_short};

use crate::payload::{Plane, PlaneCommand};
use crate::segments::Segments;

/// Size of the chunks in which a result travels to the controller's host.
pub const RESULT_CHUNK_BYTES: u32 = 256 * 1024;

/// A payload of this host that other hosts need.
#[derive(Debug)]
struct Outgoing {
    /// Holds the payload's segments; released when all hosts that need it have it, or none needs it
    /// any more.
    lease: Option<LeaseGuard>,
    objects: Vec<ObjectId>,
    /// Objects that not every host has yet.
    travelling: BTreeSet<ObjectId>,
    hosts: BTreeSet<HostId>,
}

/// The state of an object of another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Under way.
    Coming,
    /// It has arrived, at the start of this segment.
    Here(SegmentId),
    /// It will not arrive.
    Failed(String),
}

#[derive(Debug)]
struct Incoming {
    arrival: Arrival,
    len_bytes: u64,
    is_forgotten: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Objects {
    /// The thread that moves objects, once there is another host.
    pub plane: Option<Plane>,
    /// At the controller's node: the key that seals objects, once there is another host and if TCP
    /// is encrypted.
    pub secret: Option<PayloadSecret>,
    /// Whether objects are sealed on their way between hosts.
    pub is_encrypted: bool,
    /// This host's mover.
    pub mover: Option<MoverRank>,
    /// Decides which host gets which object from whom.
    pub transfers: Transfers,
    host: HostId,
    last: u64,
    pool: Pool,
    /// Exported payloads, by the first object that was new in each.
    outgoing: BTreeMap<ObjectId, Outgoing>,
    first_of: BTreeMap<ObjectId, ObjectId>,
    incoming: BTreeMap<ObjectId, Incoming>,
    in_segment: BTreeMap<SegmentId, ObjectId>,
}

impl Objects {
    /// None yet. `token` makes the pool's segments unique on this host.
    pub fn new(token: u32, pool_max_bytes: Option<u64>, warm_s: u64) -> Self {
        let mut config = PoolConfig {
            open: true,
            idle_trims: warm_s,
            ..PoolConfig::default()
        };
        if let Some(max) = pool_max_bytes {
            config.max_bytes = max;
        }
        Self {
            plane: None,
            secret: None,
            is_encrypted: false,
            mover: None,
            transfers: Transfers::default(),
            host: HostId::CONTROLLER,
            last: 0,
            pool: Pool::new(token, config),
            outgoing: BTreeMap::new(),
            first_of: BTreeMap::new(),
            incoming: BTreeMap::new(),
            in_segment: BTreeMap::new(),
        }
    }

    /// Starts to move objects, under this host number.
    pub fn start(&mut self, host: HostId, plane: Plane) {
        self.host = host;
        self.plane = Some(plane);
    }

    /// There were so many controllers before: their objects have other names than this one's.
    pub fn begin_after(&mut self, n_controllers: u32) {
        self.last = u64::from(n_controllers as u8) << 32;
    }

    /// At a relay: the controller that knew what is on its way, and what nobody needs any more, is gone.
    pub fn begin_anew(&mut self, segments: &Segments) {
        for object in self.first_of.keys().copied().collect::<Vec<_>>() {
            self.on_dropped(object);
        }
        for object in self.incoming.keys().copied().collect::<Vec<_>>() {
            self.forget(object, segments);
        }
    }

    /// Sends a command to the payload plane, if there is one.
    pub fn order(&self, order: PlaneCommand) {
        if let Some(plane) = &self.plane {
            plane.order(order);
        }
    }

    /// A host does not answer, or does so again.
    pub fn on_away(&self, host: HostId, is_away: bool) {
        self.order(PlaneCommand::Away { host, is_away });
    }

    // Out

    /// A name for an object of this host that is in no payload.
    pub fn name(&mut self) -> ObjectId {
        self.last += 1;
        ObjectId::new(self.host, self.last)
    }

    /// Replaces a payload's segments with objects, and its small ones with their bytes, for a peer on another host.
    /// Returns the objects that are new, with their ranges.
    pub fn export(
        &mut self,
        payload: &mut Payload,
        segments: &mut Segments,
    ) -> Vec<(ObjectId, SegmentRef)> {
        segments.inline_small(payload);
        if payload.segments.is_empty() {
            return Vec::new();
        }
        // A value is released once its only reader has it; arguments only when their tasks have
        // ended.
        let shared = self.host == HostId::CONTROLLER;
        let (host, last) = (self.host, &mut self.last);
        let objects = segments.objects_of(payload, shared, || {
            *last += 1;
            ObjectId::new(host, *last)
        });
        let mut fresh = Vec::new();
        for (range, object) in payload.segments.iter_mut().zip(&objects) {
            if !self.first_of.contains_key(object) {
                fresh.push((*object, *range));
            }
            *range = SegmentRef {
                segment: SegmentId(object.0),
                offset_bytes: 0,
                len_bytes: range.len_bytes,
            };
        }
        // Objects of another payload remain with that payload.
        let objects: Vec<ObjectId> = fresh.iter().map(|(object, _)| *object).collect();
        if let Some(first) = objects.first() {
            for object in &objects {
                self.first_of.insert(*object, *first);
            }
            let outgoing = Outgoing {
                lease: payload.lease.clone(),
                travelling: objects.iter().copied().collect(),
                hosts: BTreeSet::new(),
                objects: objects.clone(),
            };
            self.outgoing.insert(*first, outgoing);
        }
        payload.lease = None;
        fresh
    }

    fn outgoing(&mut self, object: ObjectId) -> Option<&mut Outgoing> {
        let first = self.first_of.get(&object)?;
        self.outgoing.get_mut(first)
    }

    /// A host was told about an object.
    pub fn note_host(&mut self, object: ObjectId, host: HostId) {
        if let Some(outgoing) = self.outgoing(object) {
            outgoing.hosts.insert(host);
            outgoing.travelling.insert(object);
        }
    }

    /// Every host that needs an object has it: from now on only its payload holds it.
    pub fn on_complete(&mut self, object: ObjectId) {
        if let Some(outgoing) = self.outgoing(object) {
            outgoing.travelling.remove(&object);
            if outgoing.travelling.is_empty() {
                outgoing.lease = None;
            }
        }
    }

    /// Abandons transfers that nobody needs any more because their tasks have ended.
    pub fn abandon_unwanted(&mut self) {
        for outgoing in self.outgoing.values_mut() {
            let holders = |lease: &LeaseGuard| std::sync::Arc::strong_count(&lease.0);
            if outgoing.lease.as_ref().is_some_and(|l| holders(l) == 1) {
                outgoing.lease = None;
            }
        }
    }

    /// An object's last payload is gone; returns the hosts that must be told.
    pub fn on_dropped(&mut self, object: ObjectId) -> BTreeSet<HostId> {
        self.transfers.forget(object);
        self.order(PlaneCommand::Drop(object));
        let Some(first) = self.first_of.remove(&object) else {
            return BTreeSet::new();
        };
        let Some(outgoing) = self.outgoing.get_mut(&first) else {
            return BTreeSet::new();
        };
        outgoing.objects.retain(|other| *other != object);
        let hosts = outgoing.hosts.clone();
        if outgoing.objects.is_empty() {
            self.outgoing.remove(&first);
        }
        hosts
    }

    /// The host that fetched an object of this host has it, and needs it no more.
    pub fn release(&mut self, object: ObjectId) {
        self.on_complete(object);
    }

    // In

    /// Fetches an object, or redirects a fetch that is already under way. If that fails, the reason is in its
    /// arrival. If there is no memory for the object, the reason is also returned.
    pub fn fetch(&mut self, fetch: Fetch) -> Result<(), String> {
        let object = fetch.object;
        match self.incoming.get(&object).map(|i| &i.arrival) {
            Some(Arrival::Coming) => {
                self.order(PlaneCommand::Fetch { fetch, lease: None });
                return Ok(());
            }
            Some(_) => return Ok(()),
            None => {}
        }
        let fetch_bytes = fetch.len_bytes;
        let (arrival, begun) = match self.pool.allocate(fetch_bytes) {
            Ok(lease) => {
                self.pool.mark_announced(lease.id());
                self.in_segment.insert(lease.id(), object);
                self.order(PlaneCommand::Fetch {
                    fetch,
                    lease: Some(lease),
                });
                (Arrival::Coming, Ok(()))
            }
            Err(error) => {
                let reason = error.to_string();
                (Arrival::Failed(reason.clone()), Err(reason))
            }
        };
        let incoming = Incoming {
            arrival,
            len_bytes: fetch_bytes,
            is_forgotten: false,
        };
        self.incoming.insert(object, incoming);
        begun
    }

    /// The state of an object; `None` for one that nobody has mentioned.
    pub fn arrival(&self, object: ObjectId) -> Option<&Arrival> {
        self.incoming.get(&object).map(|i| &i.arrival)
    }

    /// Whether the objects of a payload from another host are here.
    pub fn arguments(&self, payload: &Payload) -> Arguments {
        for range in &payload.segments {
            let object = ObjectId(range.segment.0);
            let known = self.incoming.get(&object);
            if range.offset_bytes != 0 || known.is_some_and(|i| i.len_bytes != range.len_bytes) {
                return Arguments::Failed("it names more bytes than its data has".to_owned());
            }
            match self.arrival(object) {
                Some(Arrival::Here(_)) => {}
                Some(Arrival::Coming) => return Arguments::Coming,
                Some(Arrival::Failed(reason)) => return Arguments::Failed(reason.clone()),
                None => return Arguments::Failed("its data was dropped".to_owned()),
            }
        }
        Arguments::Here
    }

    /// Replaces objects that have all arrived with segments of this host.
    pub fn import(&self, payload: &mut Payload) {
        for range in &mut payload.segments {
            if let Some(Arrival::Here(segment)) = self.arrival(ObjectId(range.segment.0)) {
                range.segment = *segment;
            }
        }
    }

    /// An object is complete.
    pub fn on_ready(&mut self, object: ObjectId, segment: SegmentId) {
        if let Some(incoming) = self.incoming.get_mut(&object) {
            incoming.arrival = Arrival::Here(segment);
        }
    }

    /// An object will not arrive.
    pub fn on_failed(&mut self, object: ObjectId, reason: String) {
        if let Some(incoming) = self.incoming.get_mut(&object) {
            incoming.arrival = Arrival::Failed(reason);
        }
    }

    /// No later payload will name this object.
    pub fn forget(&mut self, object: ObjectId, segments: &Segments) {
        let Some(incoming) = self.incoming.get_mut(&object) else {
            return;
        };
        incoming.is_forgotten = true;
        match incoming.arrival {
            Arrival::Here(segment) if !segments.is_free(segment) => {}
            _ => self.discard(object),
        }
    }

    /// Nobody holds this segment of the node's own pool any more.
    pub fn on_free(&mut self, segment: SegmentId) {
        match self.in_segment.get(&segment).copied() {
            Some(object) => {
                if self.incoming.get(&object).is_some_and(|i| i.is_forgotten) {
                    self.discard(object);
                }
            }
            // The node copied it in; a range that is not there was released already.
            None => drop(self.pool.release(segment)),
        }
    }

    fn discard(&mut self, object: ObjectId) {
        self.incoming.remove(&object);
        self.order(PlaneCommand::Drop(object));
    }

    /// A dropped object's segment may be used again.
    pub fn on_lease_back(&mut self, lease: Lease) {
        self.in_segment.remove(&lease.id());
        self.pool.cancel(lease);
    }

    /// Whether there are segments to [`trim`](Self::trim): free ones, or some whose end was not
    /// announced yet.
    pub fn needs_trim(&self) -> bool {
        self.pool.needs_trim()
    }

    /// Segments that are gone and that [`trim`](Self::trim) has yet to report.
    pub fn take_retired(&mut self) -> Vec<SegmentId> {
        self.pool.take_retired()
    }

    /// Frees segments that were not used for a while; call it once a second while it is needed.
    /// Returns the segments that are gone: everyone who has their descriptors must close them, the
    /// node first.
    pub fn trim(&mut self) -> Vec<SegmentId> {
        if memory_is_short() {
            self.pool.give_up_warm();
        }
        self.pool.trim()
    }

    /// Copies bytes into a segment of the node's own pool.
    pub fn copy_in(&mut self, bytes: &[u8]) -> Result<SegmentRef, ShmError> {
        let range = self.pool.copy_in(bytes)?;
        self.pool.mark_announced(range.segment);
        self.pool.share_rest(range.segment);
        Ok(range)
    }

    /// Memory of the node's own pool, to fill as bytes arrive, and to [`publish`](Self::publish) or
    /// [`cancel`](Self::cancel).
    pub fn allocate(&mut self, len_bytes: u64) -> Result<Lease, ShmError> {
        self.pool.allocate(len_bytes)
    }

    /// Bytes that have all arrived, under the name of their segment.
    pub fn publish(&mut self, lease: Lease) -> SegmentRef {
        let range = self.pool.publish(lease);
        self.pool.mark_announced(range.segment);
        range
    }

    /// Gives memory back that was not published.
    pub fn cancel(&mut self, lease: Lease) {
        self.pool.cancel(lease);
    }

    /// A segment of the node's own pool.
    pub fn segment(&self, id: SegmentId) -> Option<&Segment> {
        self.pool.segment(id)
    }

    /// Segments of the node's own pool, their bytes in use and free, and the number of objects on
    /// their way out and in.
    pub fn totals(&self) -> (u64, u64, u64, usize, usize) {
        let counters = self.pool.counters();
        (
            counters.segments,
            counters.bytes - counters.warm_bytes,
            counters.warm_bytes,
            self.outgoing.len(),
            self.incoming.len(),
        )
    }
}
