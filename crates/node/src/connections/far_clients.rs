//! Clients on other hosts: a large result is sent as objects, which such a client pulls over a
//! connection of its own.
//!
//! So a small task never waits behind a large result. Such a client has a host number, and takes
//! part in the payload plane as a host that nobody dials and that serves nobody.

use std::collections::BTreeMap;

use broadleaf_core::journal::Fact;
use broadleaf_core::transfer::cost::Topology;
use broadleaf_core::transfer::{TopologyChoice, TransferCommand};
use broadleaf_core::uploads::Uploads;
use broadleaf_net::{Frame, LinkError};
use broadleaf_proto::limits::FAR_INLINE_BYTES;
use broadleaf_proto::relay::{self, Fetch, RelayCommand, RelayEvent, Source};
use broadleaf_proto::task::LeaseGuard;
use broadleaf_proto::{DecodeError, FrameKind, HostId, ObjectId, Payload, SegmentRef};
use broadleaf_shm::Lease;

use crate::node::Node;
use crate::payload::PlaneCommand;

/// What clients on other hosts have yet to get, and what they have sent ahead.
#[derive(Debug, Default)]
pub struct FarClients {
    /// By connection: arguments that no record has named yet.
    pub uploads: BTreeMap<usize, Uploads<Lease>>,
    /// By host: the objects that a client has yet to get, and the leases that hold them, one for
    /// each order that is not complete.
    coming: BTreeMap<HostId, BTreeMap<ObjectId, Vec<LeaseGuard>>>,
}

impl FarClients {
    /// Whether a client has this number.
    pub fn has(&self, host: HostId) -> bool {
        self.coming.contains_key(&host)
    }

    /// One order to get an object is complete: its lease is released.
    fn on_ended(&mut self, host: HostId, object: ObjectId) {
        let Some(coming) = self.coming.get_mut(&host) else {
            return;
        };
        if let Some(leases) = coming.get_mut(&object) {
            leases.pop();
            if leases.is_empty() {
                coming.remove(&object);
            }
        }
    }
}

impl Node {
    /// The host number of a client that has just said hello; the controller's if the client is on
    /// this host, or cannot open a payload connection.
    pub(crate) fn on_client_host(&mut self, token: usize) -> HostId {
        if self.peers[token].link.is_local() || self.start_plane().is_err() {
            return HostId::CONTROLLER;
        }
        let host = self.relays.next_host();
        self.note(Fact::HostNumber(host));
        self.far_clients.coming.insert(host, BTreeMap::new());
        self.objects.transfers.on_client_up(host);
        host
    }

    /// A client is gone; drops what it had yet to get.
    pub(crate) fn on_far_client_gone(&mut self, host: HostId) {
        if self.far_clients.coming.remove(&host).is_none() {
            return;
        }
        self.held_clients.on_down(host);
        let mut orders = Vec::new();
        self.objects.transfers.on_host_down(host, &mut orders);
        self.carry_out_transfers(orders);
    }

    /// Replaces a large result's segments with objects, and has the client at the other end get
    /// them. Returns false and does nothing if the result is small, or the client does not accept
    /// objects.
    pub(crate) fn send_out_of_band(&mut self, token: usize, payload: &mut Payload) -> bool {
        let crate::connections::peers::Role::Client { host, .. } = self.peers[token].role else {
            return false;
        };
        let held_bytes: u64 = payload.segments.iter().map(|s| s.len_bytes).sum();
        if held_bytes <= FAR_INLINE_BYTES || !self.far_clients.has(host) {
            return false;
        }
        let lease = payload.lease.clone();
        let fresh = self.objects.export(payload, &mut self.segments);
        let mut fresh: BTreeMap<ObjectId, SegmentRef> = fresh.into_iter().collect();
        for range in payload.segments.clone() {
            let object = ObjectId(range.segment.0);
            let transfers = &mut self.objects.transfers;
            let mut orders = Vec::new();
            let (now_ns, origin) = (self.now_ns, HostId::CONTROLLER);
            let topology = TopologyChoice::Fixed(Topology::Flat);
            transfers.want(
                now_ns,
                object,
                range.len_bytes,
                origin,
                &[host],
                topology,
                &mut orders,
            );
            let Some(chunk_bytes) = transfers.chunk_bytes(object) else {
                continue; // It was added just above.
            };
            let bytes = fresh.remove(&object);
            if let Some(bytes) = bytes.and_then(|range| self.segments.map(&range)) {
                self.objects.order(PlaneCommand::Provide {
                    object,
                    bytes,
                    chunk_bytes,
                    memory: None,
                });
            }
            // This is repeated even if the client had the object before: it may have dropped it.
            let fetch = RelayCommand::Fetch(Fetch {
                object,
                len_bytes: range.len_bytes,
                chunk_bytes,
                sources: vec![Source {
                    host: origin,
                    address: None,
                    mover: None,
                }],
                epoch: 0,
            });
            self.command(token, &fetch);
            orders.retain(|order| !matches!(order, TransferCommand::Fetch { .. }));
            self.carry_out_transfers(orders);
            if let (Some(coming), Some(lease)) = (self.far_clients.coming.get_mut(&host), &lease) {
                coming.entry(object).or_default().push(lease.clone());
            }
        }
        true
    }

    /// Handles what a client reports about objects.
    pub(crate) fn on_far_client_frame(
        &mut self,
        host: HostId,
        frame: &Frame,
    ) -> Result<(), LinkError> {
        for event in relay::messages(&frame.body) {
            let mut orders = Vec::new();
            let transfers = &mut self.objects.transfers;
            let ended = match event? {
                RelayEvent::Fetched(progress) => {
                    transfers.on_progress(self.now_ns, host, &progress, &mut orders);
                    progress.is_complete.then_some(progress.object)
                }
                RelayEvent::FetchFailed { object, .. } => {
                    transfers.on_failed(host, object, &mut orders);
                    Some(object)
                }
                _ => return Err(DecodeError::UnknownKind(FrameKind::RelayEvent as u8).into()),
            };
            if let Some(object) = ended {
                self.far_clients.on_ended(host, object);
            }
            self.carry_out_transfers(orders);
        }
        Ok(())
    }
}
