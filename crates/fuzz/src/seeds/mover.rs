//! What a payload plane is told about movers.

use broadleaf_proto::control;
use broadleaf_proto::mover::{Landing, MoverEvent, MoverRank};
use broadleaf_proto::relay::PayloadCommand;
use broadleaf_proto::{FrameKind, ObjectId};

use super::super::machines::relay::frame;
use super::Seeds;

pub fn mover(seeds: &mut Seeds) {
    let mut input = vec![0];
    let events = [
        MoverEvent::Moved {
            flow: 1,
            end_bytes: 1 << 18,
        },
        MoverEvent::Moved {
            flow: 1,
            end_bytes: 8 << 20,
        },
        MoverEvent::Ended { flow: 1 },
        MoverEvent::Ended { flow: 3 },
    ];
    for event in events {
        frame(FrameKind::MoverEvent, &control::encode(&event), &mut input);
    }
    let pull = PayloadCommand::Pull {
        object: ObjectId(2),
        offset_bytes: 1 << 18,
        pull: 2,
        round_trip_ns: 20_000_000,
        landing: Some(Landing {
            mover: MoverRank { world: 5, rank: 2 },
            tag: 4,
            piece_bytes: 1 << 18,
        }),
    };
    frame(
        FrameKind::PayloadCommand,
        &control::encode(&pull),
        &mut input,
    );
    seeds.add("mover", "a-life", &input);
    // Gone, come again, received, given memory, moved, stopped, ended; see `mover::Trial::choose`.
    let choices = [
        [0, 0, 0, 1],
        [0, 0, 0, 0],
        [0, 1, 0, 2],
        [0, 0, 0, 12],
        [0, 1, 5, 10],
        [0, 1, 0, 6],
        [0, 1, 5, 11],
    ];
    let mut input = vec![1];
    input.extend_from_slice(choices.as_flattened());
    seeds.add("mover", "another", &input);
}
