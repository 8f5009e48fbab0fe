//! What observers are told about objects on their way.

use broadleaf_core::transfer::cost::Topology;
use broadleaf_core::transfer::{Stop, TopologyChoice, Transfers};
use broadleaf_proto::relay::Progress;
use broadleaf_proto::{HostId, ObjectId};

const MS: u64 = 1_000_000;
const OBJECT: ObjectId = ObjectId(7);
const LEN: u64 = 64 << 20;
const CHAIN: TopologyChoice = TopologyChoice::Fixed(Topology::Chain);

fn progress(source: HostId, have_bytes: u64) -> Progress {
    Progress {
        object: OBJECT,
        have_bytes,
        is_complete: have_bytes == LEN,
        source,
        receiving_ns: 100 * MS,
        wire_bytes: have_bytes,
        mover_bytes: 0,
        resumed_at: Vec::new(),
        corrupt_chunks: 0,
    }
}

#[test]
fn who_looks_is_told_the_tree_and_how_far_it_is() {
    let mut transfers = Transfers::default();
    let mut out = Vec::new();
    let hosts: Vec<HostId> = (1..=3).map(HostId).collect();
    for host in &hosts {
        transfers.on_host_up(*host, true);
    }
    transfers.want(0, OBJECT, LEN, HostId(0), &hosts, CHAIN, &mut out);
    let stops = |transfers: &Transfers| -> Vec<(u32, u32, u64, bool, Option<u64>)> {
        let route = transfers.routes().next().unwrap();
        assert_eq!(
            (route.object, route.len_bytes, route.topology),
            (OBJECT, LEN, Topology::Chain)
        );
        let of = |s: &Stop| {
            (
                s.host.0,
                s.parent.0,
                s.have_bytes,
                s.is_gone,
                s.completed_ns,
            )
        };
        route.stops.iter().map(of).collect()
    };
    transfers.on_progress(4 * MS, HostId(1), &progress(HostId(0), LEN), &mut out);
    transfers.on_progress(5 * MS, HostId(2), &progress(HostId(1), LEN / 2), &mut out);
    let origin = (0, 0, LEN, false, None);
    let first = (1, 0, LEN, false, Some(4 * MS));
    assert_eq!(
        stops(&transfers),
        [
            origin,
            first,
            (2, 1, LEN / 2, false, None),
            (3, 2, 0, false, None)
        ]
    );
    transfers.on_host_down(HostId(2), &mut out);
    let after = [
        origin,
        first,
        (2, 1, LEN / 2, true, None),
        (3, 1, 0, false, None),
    ];
    assert_eq!(stops(&transfers), after);
    transfers.forget(OBJECT);
    assert_eq!(
        stops(&transfers),
        after,
        "the latest are told of when they are over"
    );
    transfers.want(0, ObjectId(8), LEN, HostId(0), &hosts[..1], CHAIN, &mut out);
    transfers.forget_probe(ObjectId(8));
    assert_eq!(transfers.routes().count(), 1, "probes are not told of");
    for n in 0..40 {
        let object = ObjectId(100 + n);
        transfers.want(0, object, LEN, HostId(0), &hosts[..1], CHAIN, &mut out);
        transfers.forget(object);
    }
    let told: Vec<_> = transfers.routes().map(|route| route.object.0).collect();
    assert_eq!(told, (124..140).collect::<Vec<_>>(), "not all of them");
}
