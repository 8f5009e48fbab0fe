//! What waits for payload from other hosts. At a relay these are tasks for its engines, which `core::relay` holds; at the
//! controller's node the values of tasks, and reports that must not overtake them, which `core::returning` holds.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use broadleaf_core::Input;
use broadleaf_core::relay::{Arguments, Freed, is_awaited};
use broadleaf_core::returning::{Ending, Returned};
use broadleaf_core::transfer::{TopologyChoice, TransferCommand};
use broadleaf_net::LinkError;
use broadleaf_proto::host::EngineReport;
use broadleaf_proto::relay::{AssignMany, Fetch, RelayCommand, RelayEvent, Source};
use broadleaf_proto::task::DoneRecord;
use broadleaf_proto::{
    AssignRecord, DecodeError, EngineId, HostId, ObjectId, RequestedTopology, SegmentRef,
};

use crate::hosts::objects::RESULT_CHUNK_BYTES;
use crate::hosts::uplink::NodeRole;
use crate::node::Node;
use crate::payload::PlaneEvent;
use crate::segments::NODE;

impl Node {
    // Tasks, at a relay

    /// Offers a task to engines of this host; they get it once its payload has arrived. Until then
    /// it can be taken back like any other offer.
    pub(crate) fn assign_many(&mut self, mut many: AssignMany) {
        let arguments = self.objects.arguments(&many.payload);
        if arguments == Arguments::Here {
            self.objects.import(&mut many.payload);
            self.segments.adopt(NODE, &mut many.payload);
        }
        for (engine, key, offer) in many.offers {
            if !self.offer(engine, offer) {
                continue; // Gone; the controller is told what never reached its board.
            }
            let record = AssignRecord {
                key,
                offer,
                function: many.function,
                depth: many.depth,
                payload: many.payload.clone(),
            };
            let now_ns = self.now_ns;
            let Some(uplink) = self.uplink() else {
                return;
            };
            match uplink.relay.on_offered(now_ns, engine, record, &arguments) {
                Some(Freed::Deliver(engine, record)) if record.payload.segments.is_empty() => {
                    self.gather(engine, record);
                }
                Some(Freed::Deliver(engine, record)) => self.deliver(engine, &record),
                Some(Freed::GiveUp(engine, record, reason)) => {
                    self.give_up(engine, &record, reason);
                }
                None => {}
            }
        }
        self.deliver_gathered();
    }

    fn hand_over_waiting(&mut self) {
        let NodeRole::Relay(uplink) = &mut self.role else {
            return;
        };
        let (objects, mut freed) = (&self.objects, Vec::new());
        let state = |payload: &_| objects.arguments(payload);
        (uplink.relay).on_objects(self.now_ns, state, &mut freed);
        for freed in freed {
            match freed {
                Freed::Deliver(engine, mut record) => {
                    // A task that only waited for its turn has its segments already.
                    if record.payload.lease.is_none() {
                        self.objects.import(&mut record.payload);
                        self.segments.adopt(NODE, &mut record.payload);
                    }
                    self.deliver(engine, &record);
                }
                Freed::GiveUp(engine, record, reason) => self.give_up(engine, &record, reason),
            }
        }
    }

    /// Sends a task to its engine, and reports this if the controller waits for the task's
    /// arguments to arrive.
    fn deliver(&mut self, engine: EngineId, record: &AssignRecord) {
        if is_awaited(record) {
            let key = record.key;
            self.report(EngineReport::Delivered { engine, key });
        }
        self.hand_over(engine, record);
    }

    /// The payload of a task will not arrive: takes the task back, unless that was done already.
    fn give_up(&mut self, engine: EngineId, record: &AssignRecord, reason: String) {
        let won = self.board(engine).is_some_and(|b| b.revoke(record.offer));
        if won {
            let key = record.key;
            self.report(EngineReport::Undeliverable {
                engine,
                key,
                reason,
            });
        }
    }

    // Values, at the controller's node

    /// A task ended on another host. Its value may first have to be fetched from there.
    pub(crate) fn on_relayed_done(
        &mut self,
        host: HostId,
        engine: EngineId,
        record: DoneRecord,
    ) -> Result<(), LinkError> {
        let controller = self.role.controller();
        let is_wanted = |key| {
            controller.is_some_and(|c| c.host_of(engine) == host && c.is_offered(engine, key))
        };
        match (self.returning).on_done(self.now_ns, host, engine, record, is_wanted) {
            Ending::Tell(record) => self.input(Input::Done {
                host,
                engine,
                record,
                copy: None,
            }),
            Ending::Fetch(objects) => {
                for (object, len_bytes) in objects {
                    self.fetch_value(host, object, len_bytes);
                }
                self.take_values();
            }
            Ending::Forget(objects) => self.tell_host(host, &RelayCommand::Forget(objects)),
            Ending::Impossible => return Err(DecodeError::Malformed.into()),
        }
        Ok(())
    }

    fn fetch_value(&mut self, host: HostId, object: ObjectId, len_bytes: u64) {
        let transfers = &self.objects.transfers;
        let source = Source {
            host,
            address: None,
            mover: transfers.mover_between(host, HostId::CONTROLLER),
        };
        // What cannot come is found where values are taken.
        let _ = self.objects.fetch(Fetch {
            object,
            len_bytes,
            chunk_bytes: RESULT_CHUNK_BYTES,
            sources: vec![source],
            epoch: 0,
        });
    }

    fn take_values(&mut self) {
        let (objects, mut returned) = (&self.objects, Vec::new());
        let state = |payload: &_| objects.arguments(payload);
        self.returning.on_objects(self.now_ns, state, &mut returned);
        for returned in returned {
            match returned {
                Returned::Done(host, engine, mut record) => {
                    self.objects.import(&mut record.payload);
                    self.segments.adopt(NODE, &mut record.payload);
                    let copy = self.copy_to_keep(&record.payload);
                    self.input(Input::Done {
                        host,
                        engine,
                        record,
                        copy,
                    });
                }
                Returned::Report(host, report) => self.input(Input::Report { host, report }),
                Returned::Forget(objects) => {
                    for object in objects {
                        self.objects.forget(object, &self.segments);
                        self.tell_host(object.origin(), &RelayCommand::Forget(vec![object]));
                    }
                }
            }
        }
    }

    /// A host is gone: its values will not arrive.
    pub(crate) fn drop_values(&mut self, host: HostId) {
        for object in self.returning.on_host_down(self.now_ns, host) {
            self.objects.forget(object, &self.segments);
        }
    }

    // Both

    /// Handles what the payload plane has done.
    pub(crate) fn on_plane_event(&mut self) {
        let Some(plane) = &self.objects.plane else {
            return;
        };
        let (mut is_moved, mut is_mover_gone) = (false, false);
        for news in plane.take_events() {
            match news {
                PlaneEvent::Progress(progress) => {
                    self.tell_controller(&RelayEvent::Fetched(progress));
                }
                PlaneEvent::Ready {
                    object,
                    segment,
                    fd,
                    segment_bytes,
                } => {
                    is_moved = true;
                    self.segments.on_own(segment, segment_bytes, fd);
                    self.objects.on_ready(object, segment);
                }
                PlaneEvent::Failed { object, reason } => {
                    is_moved = true;
                    self.tell_controller(&RelayEvent::FetchFailed {
                        object,
                        reason: reason.clone(),
                    });
                    self.objects.on_failed(object, reason);
                }
                PlaneEvent::Dropped(lease) => self.objects.on_lease_back(lease),
                PlaneEvent::MoverGone => is_mover_gone = true,
            }
        }
        if is_mover_gone {
            self.on_mover_gone();
        }
        if is_moved {
            self.hand_over_waiting();
            self.take_values();
        }
    }

    /// Objects that no record will name any more.
    pub(crate) fn on_forget(&mut self, objects: Vec<ObjectId>) {
        let host = self.uplink().map(|u| u.host);
        for object in objects {
            if Some(object.origin()) == host {
                self.objects.release(object);
            } else {
                self.objects.forget(object, &self.segments);
            }
        }
        self.hand_over_waiting();
    }

    /// Tells hosts which objects have lost their last payload here.
    pub(crate) fn drop_objects(&mut self) {
        let mut by_host: BTreeMap<HostId, Vec<ObjectId>> = BTreeMap::new();
        for object in self.segments.take_dropped_objects() {
            for host in self.objects.on_dropped(object) {
                by_host.entry(host).or_default().push(object);
            }
        }
        for (host, objects) in by_host {
            self.tell_host(host, &RelayCommand::Forget(objects));
        }
    }

    // Transfers, at the controller's node

    /// Turns the segments that assignments to these hosts name into objects, and has the hosts that
    /// need them fetch them.
    pub(crate) fn plan_transfers(&mut self, hosts: &[HostId]) {
        let mut wanted: BTreeMap<ObjectId, (u64, RequestedTopology, Vec<HostId>)> = BTreeMap::new();
        let mut fresh: BTreeMap<ObjectId, SegmentRef> = BTreeMap::new();
        for host in hosts {
            let Some(link) = self.relays.links.get_mut(host) else {
                continue;
            };
            for (record, requested) in link.open_records() {
                fresh.extend(self.objects.export(&mut record.payload, &mut self.segments));
                for range in &record.payload.segments {
                    let entry = wanted
                        .entry(ObjectId(range.segment.0))
                        .or_insert_with(|| (range.len_bytes, *requested, Vec::new()));
                    entry.2.push(*host);
                }
            }
        }
        let mut orders = Vec::new();
        for (object, (len_bytes, requested, hosts)) in wanted {
            let topology = self.cluster_topology(hosts.len()).or_requested(requested);
            let transfers = &mut self.objects.transfers;
            let origin = HostId::CONTROLLER;
            transfers.want(
                self.now_ns,
                object,
                len_bytes,
                origin,
                &hosts,
                topology,
                &mut orders,
            );
            let chunk_bytes = transfers.chunk_bytes(object);
            let range = fresh.remove(&object);
            if let (Some(range), Some(chunk_bytes)) = (range, chunk_bytes) {
                self.provide(object, &range, chunk_bytes);
            }
        }
        self.carry_out_transfers(orders);
    }

    fn cluster_topology(&self, n_hosts: usize) -> TopologyChoice {
        let options = &self.config.options;
        let (arity, depth) = (options.tree_arity, options.tree_depth);
        TopologyChoice::of_cluster(&options.broadcast_topology, arity, depth, n_hosts)
    }

    /// Carries out the commands of the transfer machine.
    pub(crate) fn carry_out_transfers(&mut self, orders: Vec<TransferCommand>) {
        for order in orders {
            let (host, fetch) = match order {
                TransferCommand::Complete { object } => {
                    self.objects.on_complete(object);
                    continue;
                }
                TransferCommand::Fetch {
                    host,
                    object,
                    len_bytes,
                    chunk_bytes,
                    sources,
                    epoch,
                } => {
                    let sources = sources.into_iter().filter_map(|from| {
                        let listen = |link: &crate::hosts::relays::RelayLink| link.listen.clone();
                        let address = self.relays.links.get(&from).and_then(listen);
                        let is_reachable = from == HostId::CONTROLLER || address.is_some();
                        is_reachable.then(|| Source {
                            host: from,
                            address,
                            mover: self.objects.transfers.mover_between(from, host),
                        })
                    });
                    let fetch = Fetch {
                        object,
                        len_bytes,
                        chunk_bytes,
                        sources: sources.collect(),
                        epoch,
                    };
                    (host, fetch)
                }
            };
            self.objects.note_host(fetch.object, host);
            self.tell_host(host, &RelayCommand::Fetch(fetch));
        }
    }

    pub(crate) fn tell_host(&mut self, host: HostId, command: &RelayCommand) {
        // A client forgets by itself what it has received.
        if let Some(token) = self.relays.links.get(&host).map(|link| link.token) {
            self.command(token, command);
        }
    }

    /// Has the poller watch the payload plane, if there is one.
    pub(crate) fn watch_plane(&self) -> Result<(), crate::error::NodeError> {
        match &self.objects.plane {
            Some(plane) => self.watch(plane.as_fd(), crate::node::PLANE),
            None => Ok(()),
        }
    }
}
