//! What an engine sends to its node, decoded as the node does and told to the controller.

use broadleaf_core::Input;
use broadleaf_proto::control::{self, SegmentAnnounce, SegmentRelease};
use broadleaf_proto::engine::EngineEvent;
use broadleaf_proto::host::EngineReport;
use broadleaf_proto::task::{DoneRecord, OutputRecord};
use broadleaf_proto::wire::Reader;
use broadleaf_proto::{EngineId, FrameKind, HostId};
use bytes::Bytes;

use super::world::World;

const ENGINE: EngineId = EngineId(0);
const MAX_OUTPUTS: usize = 256;

/// Frames one after the other: kind, length u16, body.
pub fn run(mut data: &[u8]) {
    let mut world = World::new();
    while let [kind, low, high, rest @ ..] = data {
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (body, rest) = rest.split_at(len);
        data = rest;
        let Ok(kind) = FrameKind::try_from(*kind) else {
            break;
        };
        if frame(&mut world, kind, body).is_none() {
            break; // The link is closed.
        }
        world.after_message();
        assert!(world.out.len() <= MAX_OUTPUTS);
        world.out.clear();
        assert!((1..5).all(|engine| world.up().contains(&engine)));
    }
    world.check();
}

fn frame(world: &mut World, kind: FrameKind, body: &[u8]) -> Option<()> {
    let mut reader = Reader::new(Bytes::copy_from_slice(body));
    match kind {
        FrameKind::Done => {
            while !reader.is_empty() {
                let record = DoneRecord::decode(&mut reader).ok()?;
                let engine = ENGINE;
                world.input(Input::Done {
                    host: HostId::CONTROLLER,
                    engine,
                    record,
                    copy: None,
                });
            }
        }
        FrameKind::Output => {
            while !reader.is_empty() {
                let record = OutputRecord::decode(&mut reader).ok()?;
                let engine = ENGINE;
                world.input(Input::Output {
                    host: HostId::CONTROLLER,
                    engine,
                    record,
                });
            }
        }
        FrameKind::LaneAnswered => {}
        FrameKind::EngineEvent => {
            let event: EngineEvent = control::decode(body).ok()?;
            let engine = ENGINE;
            let host = HostId::CONTROLLER;
            let report = EngineReport::Waits { engine, event };
            world.input(Input::Report { host, report });
        }
        FrameKind::SegmentAnnounce => drop(control::decode::<SegmentAnnounce>(body).ok()?),
        FrameKind::SegmentRelease => drop(control::decode::<SegmentRelease>(body).ok()?),
        _ => return None,
    }
    Some(())
}
