//! What a controller receives: from relays, engines and clients.

use broadleaf_proto::control::{
    self, DefineOptions, ForkServerEvent, SegmentAnnounce, SegmentRelease,
};
use broadleaf_proto::engine::EngineEvent;
use broadleaf_proto::host::EngineReport;
use broadleaf_proto::relay::{RelayEvent, RelayedDone};
use broadleaf_proto::{
    EngineId, FrameKind, FunctionId, Mode, OptionsId, SegmentId, SubmitRecord, TargetSet,
    TaskOptions,
};

use super::super::machines::relay::frame;
use super::super::machines::world::World;
use super::Seeds;
use super::messages::{done, function, options, output, payload, relay_events, requests, submit};

pub fn relay(seeds: &mut Seeds) {
    let offered = World::new().offered;
    for (number, event) in relay_events(offered[2].0, offered[2].1).iter().enumerate() {
        let mut input = vec![0];
        frame(FrameKind::RelayEvent, &control::encode(event), &mut input);
        seeds.add("relay", &format!("event-{number}"), &input);
    }
    let mut input = vec![0];
    for (engine, key) in &offered {
        let mut body = Vec::new();
        output(*engine, *key).encode(&mut body);
        frame(FrameKind::Output, &body, &mut input);
        body.clear();
        let (engine, record) = (*engine, done(*key, payload()));
        RelayedDone { engine, record }.encode(&mut body);
        frame(FrameKind::RelayedDone, &body, &mut input);
    }
    seeds.add("relay", "ended-tasks", &input);
    // Events that once stopped a controller, or made it kill a process.
    let down = RelayEvent::Report(EngineReport::Down {
        engine: EngineId(2),
        unclaimed_offers: Vec::new(),
        next_offer: 1_u32.wrapping_sub(500_000_000),
    });
    let spawned = ForkServerEvent::Spawned(EngineId(0), 4242);
    let spawned = RelayEvent::Report(EngineReport::ForkServer(spawned));
    for (name, event) in [
        ("many-on-the-way", down),
        ("another-hosts-process", spawned),
    ] {
        let mut input = vec![0];
        frame(FrameKind::RelayEvent, &control::encode(&event), &mut input);
        seeds.add("relay", name, &input);
    }
    let choices: Vec<u8> = std::iter::once(1).chain(0..=255).collect();
    seeds.add("relay", "choices", &choices);
}

pub fn engine(seeds: &mut Seeds) {
    let mut input = Vec::new();
    for (engine, key) in World::new().offered {
        let mut body = control::encode(&EngineEvent::WaitStarted(key));
        frame(FrameKind::EngineEvent, &body, &mut input);
        body = control::encode(&EngineEvent::WaitEnded(key));
        frame(FrameKind::EngineEvent, &body, &mut input);
        body.clear();
        output(engine, key).encode(&mut body);
        frame(FrameKind::Output, &body, &mut input);
        body.clear();
        done(key, payload()).encode(&mut body);
        frame(FrameKind::Done, &body, &mut input);
    }
    let announce = SegmentAnnounce {
        segments: vec![(SegmentId(1 << 32), 1 << 20)],
    };
    frame(
        FrameKind::SegmentAnnounce,
        &control::encode(&announce),
        &mut input,
    );
    let release = SegmentRelease {
        released: vec![SegmentId(3)],
        retired: vec![SegmentId(4)],
    };
    frame(
        FrameKind::SegmentRelease,
        &control::encode(&release),
        &mut input,
    );
    seeds.add("engine", "a-life", &input);
}

pub fn submissions(seeds: &mut Seeds) {
    let mut input = vec![0];
    frame(FrameKind::Options, &control::encode(&options()), &mut input);
    let mut body = Vec::new();
    function().encode(&mut body);
    frame(FrameKind::Function, &body, &mut input);
    body.clear();
    submit(100).encode(&mut body);
    submit(200).encode(&mut body);
    frame(FrameKind::Submit, &body, &mut input);
    for (number, request) in requests().into_iter().enumerate() {
        let body = control::encode(&(number as u64, request));
        frame(FrameKind::Request, &body, &mut input);
    }
    seeds.add("submissions", "a-session", &input);
    // A broadcast to every engine that could exist, first of a function that does not.
    let mut input = vec![0];
    let everywhere = DefineOptions {
        id: OptionsId(2),
        options: TaskOptions {
            mode: Mode::Each,
            targets: TargetSet::Ranges(vec![(EngineId(0), EngineId(65_536))]),
            ..TaskOptions::default()
        },
    };
    frame(
        FrameKind::Options,
        &control::encode(&everywhere),
        &mut input,
    );
    for function in [5, 0] {
        body.clear();
        let record = SubmitRecord {
            function: FunctionId(function),
            options: OptionsId(2),
            ..submit(100_000 * u64::from(function + 1))
        };
        record.encode(&mut body);
        frame(FrameKind::Submit, &body, &mut input);
    }
    seeds.add("submissions", "everywhere", &input);
    let choices: Vec<u8> = std::iter::once(1).chain(0..=255).rev().collect();
    seeds.add(
        "submissions",
        "choices",
        &[&[1], choices.as_slice()].concat(),
    );
}
