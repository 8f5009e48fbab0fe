//! What an engine receives.

use broadleaf_proto::control::{self, SegmentAnnounce, SegmentRelease};
use broadleaf_proto::engine::EngineCommand;
use broadleaf_proto::task::Payload;
use broadleaf_proto::{AssignRecord, FrameKind, FunctionId, SegmentId, SegmentRef, TaskKey};

use super::super::machines::relay::frame;
use super::Seeds;
use super::messages::{compound, function};

pub fn assigned(seeds: &mut Seeds) {
    let mut input = Vec::new();
    let announce = SegmentAnnounce {
        segments: vec![(SegmentId(1 << 32), 12_288), (SegmentId(2 << 32), 8192)],
    };
    let body = control::encode(&announce);
    frame(FrameKind::SegmentAnnounce, &body, &mut input);
    let mut body = Vec::new();
    function().encode(&mut body);
    frame(FrameKind::Function, &body, &mut input);
    let place = |segment, len_bytes| SegmentRef {
        segment: SegmentId(segment),
        offset_bytes: 100,
        len_bytes,
    };
    for depth in [0, 63] {
        let task = AssignRecord {
            key: TaskKey(depth.into()),
            offer: depth.into(),
            function: FunctionId(5),
            depth,
            payload: Payload {
                bytes: compound().into(),
                segments: [place(1 << 32, 12_188), place(2 << 32, 5000)]
                    .into_iter()
                    .collect(),
                lease: None,
            },
        };
        body.clear();
        task.encode(&mut body);
        frame(FrameKind::Assign, &body, &mut input);
    }
    let release = SegmentRelease {
        released: vec![SegmentId(3)],
        retired: vec![SegmentId(1 << 32)],
    };
    let body = control::encode(&release);
    frame(FrameKind::SegmentRelease, &body, &mut input);
    let body = control::encode(&EngineCommand::Stop);
    frame(FrameKind::EngineCommand, &body, &mut input);
    seeds.add("assigned", "a-life", &input);
}
