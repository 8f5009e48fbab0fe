//! Measures the bandwidth to hosts before anybody broadcasts, so that the first topologies are not
//! guesses.

use broadleaf_core::transfer::{PROBE_BYTES, TopologyChoice};
use broadleaf_proto::relay::RelayCommand;
use broadleaf_proto::{HostId, ObjectId};
use broadleaf_shm::Segment;

use crate::node::Node;
use crate::payload::PlaneCommand;

impl Node {
    /// Sends a host bytes that nobody needs, if nothing else has measured the bandwidth.
    pub(crate) fn probe_bandwidth(&mut self, host: HostId) {
        let transfers = &mut self.objects.transfers;
        if self.relays.probe.is_some() || !transfers.lacks_bandwidth() {
            return;
        }
        let made = Segment::create(PROBE_BYTES, &[]);
        let mapped = made.and_then(|(segment, _)| segment.map_readonly(0, PROBE_BYTES));
        let Ok(bytes) = mapped else {
            return; // Without memory, topologies remain guesses.
        };
        let object = self.objects.name();
        let mut orders = Vec::new();
        let transfers = &mut self.objects.transfers;
        let (now_ns, origin) = (self.now_ns, HostId::CONTROLLER);
        transfers.want(
            now_ns,
            object,
            PROBE_BYTES,
            origin,
            &[host],
            TopologyChoice::Cheapest,
            &mut orders,
        );
        let Some(chunk_bytes) = transfers.chunk_bytes(object) else {
            return;
        };
        self.relays.probe = Some((object, host));
        self.objects.order(PlaneCommand::Provide {
            object,
            bytes,
            chunk_bytes,
            memory: None,
        });
        self.carry_out_transfers(orders);
    }

    /// Whether an object is sent only to measure.
    pub(crate) fn is_probe(&self, object: ObjectId) -> bool {
        self.relays.probe.is_some_and(|(probe, _)| probe == object)
    }

    /// A probe has arrived, or will not: it is dropped on both hosts. Does nothing for any other
    /// object.
    pub(crate) fn end_probe(&mut self, host: HostId, object: ObjectId) {
        if self
            .relays
            .probe
            .take_if(|probe| *probe == (object, host))
            .is_some()
        {
            self.objects.transfers.forget_probe(object);
            self.objects.on_dropped(object);
            self.tell_host(host, &RelayCommand::Forget(vec![object]));
        }
    }
}
