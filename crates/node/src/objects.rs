//! Payload that goes to other hosts and comes from them, as the node's own thread keeps it.
//!
//! A range of a segment that leaves its host is an object there: named once, brought to a host once,
//! and mapped by all its engines.

use std::collections::{BTreeMap, BTreeSet};

use broadleaf_core::transfer::cost::Shape;
use broadleaf_core::transfer::{Topology, Transfers};
use broadleaf_proto::relay::Fetch;
use broadleaf_proto::task::LeaseGuard;
use broadleaf_proto::{
    HostId, MoverRank, ObjectId, Payload, PayloadSecret, RequestedTopology, SegmentId, SegmentRef,
};
use broadleaf_shm::{Lease, Pool, PoolConfig, memory_is_short};

use crate::payload::{Plane, PlaneCommand};
use crate::segments::Segments;

/// Pieces in which a result travels to the controller's host.
pub const RESULT_CHUNK_BYTES: u32 = 256 * 1024;

/// A payload of this host that is wanted on others.
#[derive(Debug)]
struct Outgoing {
    /// Keeps its segments; given up when all who want it have it, or nobody wants it.
    lease: Option<LeaseGuard>,
    objects: Vec<ObjectId>,
    /// Those that not every host has.
    travelling: BTreeSet<ObjectId>,
    hosts: BTreeSet<HostId>,
}

/// How far an object of another host is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Under way.
    Coming,
    /// All here, at the start of this segment.
    Here(SegmentId),
    /// It does not come.
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
    /// The thread that moves them, once there is another host.
    pub plane: Option<Plane>,
    /// At the controller's node: what they are sealed with, once there is another host and if TCP is encrypted.
    pub secret: Option<PayloadSecret>,
    /// Whether they are sealed on their way between hosts.
    pub is_encrypted: bool,
    /// This host's mover.
    pub mover: Option<MoverRank>,
    /// Who gets what from whom.
    pub transfers: Transfers,
    host: HostId,
    last: u64,
    pool: Pool,
    /// By the first object that was new in each payload.
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

    /// Starts to move objects as that host.
    pub fn start(&mut self, host: HostId, plane: Plane) {
        self.host = host;
        self.plane = Some(plane);
    }

    /// Orders something of the plane, where there is one.
    pub fn order(&self, order: PlaneCommand) {
        if let Some(plane) = &self.plane {
            plane.order(order);
        }
    }

    // Out

    /// A name for an object of this host that is in no payload.
    pub fn name(&mut self) -> ObjectId {
        self.last += 1;
        ObjectId::new(self.host, self.last)
    }

    /// Puts objects in the place of a payload's segments, for a peer on another host. Returns those
    /// that are new, with their ranges.
    pub fn export(
        &mut self,
        payload: &mut Payload,
        segments: &mut Segments,
    ) -> Vec<(ObjectId, SegmentRef)> {
        if payload.segments.is_empty() {
            return Vec::new();
        }
        // A value is given up once its one reader has it; arguments only when their tasks are over.
        let shared = self.host == HostId::CONTROLLER;
        let (host, last) = (self.host, &mut self.last);
        let objects = segments.objects_of(payload, shared, || {
            *last += 1;
            ObjectId::new(host, *last)
        });
        let mut fresh = Vec::new();
        for (place, object) in payload.segments.iter_mut().zip(&objects) {
            if !self.first_of.contains_key(object) {
                fresh.push((*object, *place));
            }
            *place = SegmentRef {
                segment: SegmentId(object.0),
                offset_bytes: 0,
                len_bytes: place.len_bytes,
            };
        }
        // Those of another payload stay with that one.
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

    /// A host was told of an object.
    pub fn note_host(&mut self, object: ObjectId, host: HostId) {
        if let Some(outgoing) = self.outgoing(object) {
            outgoing.hosts.insert(host);
            outgoing.travelling.insert(object);
        }
    }

    /// Everyone who wants an object has it: from here on its payload alone keeps it.
    pub fn on_complete(&mut self, object: ObjectId) {
        if let Some(outgoing) = self.outgoing(object) {
            outgoing.travelling.remove(&object);
            if outgoing.travelling.is_empty() {
                outgoing.lease = None;
            }
        }
    }

    /// Gives up on what travels and nobody wants any more: its tasks are over.
    pub fn abandon_unwanted(&mut self) {
        for outgoing in self.outgoing.values_mut() {
            let holders = |lease: &LeaseGuard| std::sync::Arc::strong_count(&lease.0);
            if outgoing.lease.as_ref().is_some_and(|l| holders(l) == 1) {
                outgoing.lease = None;
            }
        }
    }

    /// An object's last payload is gone; returns who has to be told.
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

    /// The one who fetched an object of this host has it, and wants it no more.
    pub fn release(&mut self, object: ObjectId) {
        self.on_complete(object);
    }

    // In

    /// Gets an object, or has one that is under way come from elsewhere. Where there is no memory for it, that is in its
    /// arrival, and returned.
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

    /// How far an object is; `None` for one nobody has spoken of.
    pub fn arrival(&self, object: ObjectId) -> Option<&Arrival> {
        self.incoming.get(&object).map(|i| &i.arrival)
    }

    /// Whether a payload that came from another host waits for objects: then why, if it waits in vain.
    pub fn is_missing(&self, payload: &Payload) -> Option<Result<(), String>> {
        for place in &payload.segments {
            let object = ObjectId(place.segment.0);
            let known = self.incoming.get(&object);
            if place.offset_bytes != 0 || known.is_some_and(|i| i.len_bytes != place.len_bytes) {
                return Some(Err("it names more than its data".to_owned()));
            }
            match self.arrival(object) {
                Some(Arrival::Here(_)) => {}
                Some(Arrival::Coming) => return Some(Ok(())),
                Some(Arrival::Failed(reason)) => return Some(Err(reason.clone())),
                None => return Some(Err("its data was given up".to_owned())),
            }
        }
        None
    }

    /// Puts segments of this host in the place of objects that are all here.
    pub fn import(&self, payload: &mut Payload) {
        for place in &mut payload.segments {
            if let Some(Arrival::Here(segment)) = self.arrival(ObjectId(place.segment.0)) {
                place.segment = *segment;
            }
        }
    }

    /// An object is complete.
    pub fn on_ready(&mut self, object: ObjectId, segment: SegmentId) {
        if let Some(incoming) = self.incoming.get_mut(&object) {
            incoming.arrival = Arrival::Here(segment);
        }
    }

    /// An object does not come.
    pub fn on_failed(&mut self, object: ObjectId, reason: String) {
        if let Some(incoming) = self.incoming.get_mut(&object) {
            incoming.arrival = Arrival::Failed(reason);
        }
    }

    /// No payload to come will name an object.
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

    /// Nobody holds one of the node's own segments any more.
    pub fn on_free(&mut self, segment: SegmentId) {
        match self.in_segment.get(&segment).copied() {
            Some(object) => {
                if self.incoming.get(&object).is_some_and(|i| i.is_forgotten) {
                    self.discard(object);
                }
            }
            // Copied in by the node; a reference that is not there was given back already.
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

    /// Whether there are segments to [`trim`](Self::trim): free ones, or some whose end nobody was told of.
    pub fn needs_trim(&self) -> bool {
        self.pool.needs_trim()
    }

    /// Segments that are gone, as [`trim`](Self::trim) gives them.
    pub fn take_retired(&mut self) -> Vec<SegmentId> {
        self.pool.take_retired()
    }

    /// Frees segments that were not used for a while; call it once a second while it is needed. Returns the segments
    /// that are gone: whoever has their descriptors must close them, the node first.
    pub fn trim(&mut self) -> Vec<SegmentId> {
        if memory_is_short() {
            self.pool.give_up_warm();
        }
        self.pool.trim()
    }

    /// Copies bytes into a segment of the node's own.
    pub fn copy_in(&mut self, bytes: &[u8]) -> Option<(SegmentRef, &broadleaf_shm::Segment)> {
        let place = self.pool.copy_in(bytes).ok()?;
        self.pool.mark_announced(place.segment);
        self.pool.share_rest(place.segment);
        Some((place, self.pool.segment(place.segment)?))
    }

    /// Segments of the node's own pool, their bytes in use and free, and objects on their way out and in.
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

/// What is wished for by a request's options, else by the cluster's.
pub fn topology(requested: RequestedTopology, cluster: Topology) -> Topology {
    match requested {
        RequestedTopology::Auto => cluster,
        RequestedTopology::Flat => Topology::Shape(Shape::Flat),
        RequestedTopology::Binomial => Topology::Shape(Shape::Binomial),
        RequestedTopology::Chain => Topology::Shape(Shape::Chain),
        RequestedTopology::Kary(0) => Topology::AnyKary,
        RequestedTopology::Kary(arity) => Topology::Shape(Shape::Kary(arity)),
    }
}
