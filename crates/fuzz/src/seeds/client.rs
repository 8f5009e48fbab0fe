//! What a client receives.

use broadleaf_proto::control::{self, ControlReply, Event, TaskRecord};
use broadleaf_proto::{ClientId, CoalescedRecord, EngineId, FrameKind, TaskKey, TaskSeq};

use super::super::machines::world;
use super::Seeds;
use super::messages::{certificate, output, refused, results, welcome};

pub fn client(seeds: &mut Seeds) {
    let mut one = |name: &str, kind: FrameKind, body: &[u8]| {
        seeds.add("client", name, &[&[kind as u8], body].concat());
    };
    let mut body = Vec::new();
    for record in results() {
        record.encode(&mut body);
    }
    one("results", FrameKind::Result, &body);
    body.clear();
    CoalescedRecord::pack(results()).encode(&mut body);
    one("coalesced", FrameKind::Coalesced, &body);
    body.clear();
    refused().encode(&mut body);
    one("refused", FrameKind::RefusedRun, &body);
    body.clear();
    output(EngineId(1), TaskKey(40)).encode(&mut body);
    one("output", FrameKind::Output, &body);
    one("welcome", FrameKind::Welcome, &control::encode(&welcome()));
    for (number, event) in [
        Event::EngineUp(world::info(3)),
        Event::EngineDown(certificate()),
        Event::Stopping,
    ]
    .iter()
    .enumerate()
    {
        let body = control::encode(event);
        one(&format!("event-{number}"), FrameKind::Event, &body);
    }
    let record = TaskRecord {
        client: ClientId(1),
        seq: TaskSeq(4),
        status: Some(0),
        engine: EngineId(2),
        is_running: false,
        submitted_ns: 5,
        started_ns: 6,
        completed_ns: 7,
        label: "a label".into(),
        has_result: true,
        can_run_again: true,
    };
    for (number, reply) in [
        ControlReply::Done,
        ControlReply::Text("{}".into()),
        ControlReply::Queues(vec![(EngineId(0), 1, 2, 3)]),
        ControlReply::Failed("no such engine: 9".into()),
        ControlReply::Records {
            now_ns: 9,
            records: vec![record],
        },
    ]
    .into_iter()
    .enumerate()
    {
        let body = control::encode(&(7_u64, reply));
        one(&format!("reply-{number}"), FrameKind::Reply, &body);
    }
}
