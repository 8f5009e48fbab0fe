//! Writes the first inputs of each corpus: messages as the encoders write them. `cargo run --bin seeds` in `fuzz/`.

use std::fs;
use std::path::Path;

use broadleaf_fuzz::relay::frame;
use broadleaf_fuzz::world::{self, World};
use broadleaf_proto::control::{
    self, ControlReply, ControlRequest, DeathCause, DeathCertificate, DefineOptions, Event,
    ForkServerEvent, Hello, RefusalReason, Role, SegmentAnnounce, SegmentRelease, TaskRecord,
    Welcome,
};
use broadleaf_proto::engine::{EngineCommand, EngineEvent};
use broadleaf_proto::layout::{COMPOUND, ValueHead};
use broadleaf_proto::mover::{Flow, Landing, MoverCommand, MoverEvent, MoverRank};
use broadleaf_proto::relay::{
    AssignMany, Fetch, PayloadCommand, Progress, RelayCommand, RelayEvent, RelayedDone, Source,
};
use broadleaf_proto::task::{DoneRecord, FunctionRecord, OutputRecord, Payload, ResultRecord};
use broadleaf_proto::{
    AssignRecord, Chunk, ClientId, CoalescedRecord, EngineId, FrameHeader, FrameKind, FunctionHash,
    FunctionId, HostId, Mode, ObjectId, OptionsId, PROTOCOL_VERSION, RefusedRun, RequestedTopology,
    SegmentId, SegmentRef, Status, SubmitRecord, TargetSet, TaskKey, TaskOptions, TaskSeq,
    UploadChunk,
};
use bytes::Bytes;

fn write(target: &str, name: &str, bytes: &[u8]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join(name), bytes).expect("a file");
}

fn payload() -> Payload {
    let place = |segment| SegmentRef {
        segment: SegmentId(segment),
        offset_bytes: 4096,
        len_bytes: 100_000,
    };
    Payload {
        bytes: compound().into(),
        segments: [place(1 << 32), place(2 << 32)].into_iter().collect(),
        lease: None,
    }
}

/// A value with a head, and buffers inline and in segments.
fn compound() -> Vec<u8> {
    let buffers: [(u8, u64); 4] = [(1, 100_000), (2, 100_000), (0, 3), (4, 2)];
    let mut value = Vec::new();
    ValueHead {
        n_captured: 1,
        is_apart: false,
        packed: vec![(1, 10), (2, 20)],
    }
    .encode(&mut value);
    value.extend_from_slice(b"\x80pickle");
    let mut out = vec![COMPOUND];
    out.extend_from_slice(&(buffers.len() as u32).to_le_bytes());
    for (place, len) in buffers {
        out.push(place);
        out.extend_from_slice(&len.to_le_bytes());
    }
    out.extend_from_slice(&(value.len() as u32).to_le_bytes());
    out.extend_from_slice(&value);
    out.extend_from_slice(b"abcde");
    out
}

fn done(key: TaskKey, payload: Payload) -> DoneRecord {
    DoneRecord {
        key,
        status: Status::Ok,
        started_ns: 1_790_000_000_000_000_000,
        completed_ns: 1_790_000_000_000_300_000,
        payload,
    }
}

fn output(engine: EngineId, key: TaskKey) -> OutputRecord {
    OutputRecord {
        task: key.0,
        engine,
        stream: 1,
        bytes: Bytes::from_static(b"hello\n"),
    }
}

fn certificate() -> DeathCertificate {
    DeathCertificate {
        engine: EngineId(2),
        uuid: "0".repeat(32),
        pid: 4242,
        host: "node7".into(),
        cause: DeathCause::Signal(9),
        last_output: "last words\n".into(),
        task_started: true,
    }
}

fn submit(seq: u64) -> SubmitRecord {
    SubmitRecord {
        seq: TaskSeq(seq),
        function: FunctionId(0),
        options: OptionsId(1),
        depth: 0,
        after: [TaskSeq(0)].into_iter().collect(),
        follow: [TaskSeq(5)].into_iter().collect(),
        payload: payload(),
    }
}

fn options() -> DefineOptions {
    DefineOptions {
        id: OptionsId(2),
        options: TaskOptions {
            mode: Mode::Each,
            targets: TargetSet::Ranges(vec![
                (EngineId(0), EngineId(5)),
                (EngineId(1), EngineId(2)),
            ]),
            label: "a label".into(),
            timeout_ns: Some(1_000_000_000),
            coalesce: true,
            topology: RequestedTopology::Kary(3),
            ..TaskOptions::default()
        },
    }
}

fn function() -> FunctionRecord {
    FunctionRecord {
        function: FunctionId(3),
        hash: FunctionHash([5; 16]),
        name: Bytes::from_static(b"name"),
        body: Bytes::from_static(b"\x80pickle of a function"),
    }
}

fn progress() -> Progress {
    Progress {
        object: ObjectId(7),
        have_bytes: 8 << 20,
        is_complete: true,
        source: HostId(0),
        receiving_ns: 9_000_000,
        wire_bytes: 8 << 20,
        mover_bytes: 1 << 20,
        resumed_at: vec![1 << 20],
        corrupt_chunks: 1,
    }
}

fn relay_events(engine: EngineId, key: TaskKey) -> Vec<RelayEvent> {
    vec![
        RelayEvent::EngineUp(world::info(engine.0)),
        RelayEvent::Mover(Some(MoverRank { world: 5, rank: 1 })),
        RelayEvent::EngineDown {
            engine,
            unclaimed_offers: vec![0, 1, 2],
            next_offer: 1,
        },
        RelayEvent::Revoked {
            engine,
            key,
            won: true,
        },
        RelayEvent::Waits {
            engine,
            event: EngineEvent::WaitStarted(key),
        },
        RelayEvent::ForkServer(ForkServerEvent::Spawned(engine, 1002)),
        RelayEvent::ForkServer(ForkServerEvent::Exited {
            engine,
            pid: 1002,
            code: None,
            signal: Some(9),
            out_of_memory: true,
            last_output: "last words".into(),
        }),
        RelayEvent::Fetched(progress()),
        RelayEvent::FetchFailed {
            object: ObjectId(7),
            reason: "no host that has the data could be reached".into(),
        },
        RelayEvent::Delivered { engine, key },
        RelayEvent::Undeliverable {
            engine,
            key,
            reason: "its data was given up".into(),
        },
        RelayEvent::Pong { sent_ns: 1 },
    ]
}

fn relay() {
    let offered = World::new().offered;
    for (number, event) in relay_events(offered[2].0, offered[2].1).iter().enumerate() {
        let mut input = vec![0];
        frame(FrameKind::RelayEvent, &control::encode(event), &mut input);
        write("relay", &format!("event-{number}"), &input);
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
    write("relay", "ended-tasks", &input);
    // Those that stopped a controller, or had it kill.
    let down = RelayEvent::EngineDown {
        engine: EngineId(2),
        unclaimed_offers: Vec::new(),
        next_offer: 1_u32.wrapping_sub(500_000_000),
    };
    let spawned = RelayEvent::ForkServer(ForkServerEvent::Spawned(EngineId(0), 4242));
    for (name, event) in [
        ("many-on-the-way", down),
        ("another-hosts-process", spawned),
    ] {
        let mut input = vec![0];
        frame(FrameKind::RelayEvent, &control::encode(&event), &mut input);
        write("relay", name, &input);
    }
    let choices: Vec<u8> = std::iter::once(1).chain(0..=255).collect();
    write("relay", "choices", &choices);
}

fn engine() {
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
    write("engine", "a-life", &input);
}

fn results() -> Vec<ResultRecord> {
    let refusal = control::encode(&RefusalReason::NoSuchEngine(EngineId(7)));
    let ends = [
        (Status::Ok, Vec::new()),
        (Status::Ok, compound()),
        (Status::Error, b"\x80error".to_vec()),
        (Status::Refused, refusal),
        (Status::Lost, control::encode(&certificate())),
    ];
    let result = |(part, (status, bytes)): (u64, (Status, Vec<u8>))| ResultRecord {
        seq: TaskSeq(40 + part),
        status,
        engine: EngineId(part as u32),
        started_ns: 1_790_000_000_000_000_000,
        completed_ns: 1_790_000_000_000_300_000 + part,
        payload: Payload {
            bytes: bytes.into(),
            ..Payload::default()
        },
    };
    (0..).zip(ends).map(result).collect()
}

fn welcome() -> Welcome {
    Welcome {
        client: ClientId(1),
        engine: EngineId(0),
        segment_token: 3,
        host: HostId(0),
        max_outstanding_tasks: 262_144,
        max_outstanding_bytes: 1 << 28,
        engines: vec![world::info(0)],
        payload_secret: None,
    }
}

fn client() {
    let one = |name: &str, kind: FrameKind, body: &[u8]| {
        write("client", name, &[&[kind as u8], body].concat());
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

fn refused() -> RefusedRun {
    RefusedRun {
        seq: TaskSeq(40),
        n_tasks: 65_536,
        reason: RefusalReason::NoSuchEngine(EngineId(0)),
    }
}

fn submissions() {
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
    write("submissions", "a-session", &input);
    // A broadcast to every engine that could exist, by a function that does not.
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
    write("submissions", "everywhere", &input);
    let choices: Vec<u8> = std::iter::once(1).chain(0..=255).rev().collect();
    write(
        "submissions",
        "choices",
        &[&[1], choices.as_slice()].concat(),
    );
}

fn requests() -> Vec<ControlRequest> {
    let name = (ClientId(1), TaskSeq(5));
    let all = TargetSet::All;
    vec![
        ControlRequest::Cancel(vec![TaskSeq(5)]),
        ControlRequest::Interrupt(all.clone()),
        ControlRequest::Signal(all, 2),
        ControlRequest::Explain(TaskSeq(6)),
        ControlRequest::QueueStatus,
        ControlRequest::Prepare {
            name: "path".into(),
            function: FunctionId(3),
            reload: true,
        },
        ControlRequest::Records(None),
        ControlRequest::Subscribe {
            first: TaskSeq(1000),
            tasks: vec![name],
        },
        ControlRequest::Resubmit {
            first: TaskSeq(2000),
            tasks: vec![name],
            depth: 1,
        },
        ControlRequest::Forget(Some(vec![name])),
    ]
}

fn records() {
    let one = |which: u8, name: &str, record: &dyn Fn(&mut Vec<u8>)| {
        let mut input = vec![which];
        record(&mut input);
        write("records", name, &input);
    };
    let key = TaskKey::new(3, 4);
    let assign = AssignRecord {
        key,
        offer: 5,
        function: FunctionId(6),
        depth: 1,
        payload: payload(),
    };
    let many = AssignMany {
        offers: vec![(EngineId(1), key, 5), (EngineId(2), key, 6)],
        function: FunctionId(6),
        depth: 1,
        payload: payload(),
    };
    let engine = EngineId(1);
    let record = done(key, payload());
    let relayed = RelayedDone { engine, record };
    one(0, "submit", &|out| submit(9).encode(out));
    one(1, "assign", &|out| assign.encode(out));
    one(2, "done", &|out| done(key, payload()).encode(out));
    one(3, "result", &|out| {
        results().iter().for_each(|r| r.encode(out))
    });
    one(4, "output", &|out| output(engine, key).encode(out));
    one(5, "function", &|out| function().encode(out));
    one(6, "assign-many", &|out| many.encode(out));
    one(7, "relayed-done", &|out| relayed.encode(out));
    one(8, "coalesced", &|out| {
        CoalescedRecord::pack(results()).encode(out)
    });
    one(9, "refused", &|out| refused().encode(out));
    one(11, "chunk", &|out| {
        Chunk::encode_head(ObjectId(7), 1, 2, 4096, out);
        out.extend_from_slice(b"bytes");
    });
    one(12, "upload", &|out| {
        out.extend_from_slice(&UploadChunk::head(SegmentId(7), 4096));
        out.extend_from_slice(b"bytes");
    });
}

fn control_messages() {
    let one = |name: &str, body: Vec<u8>| write("control", name, &body);
    let hello = Hello {
        protocol: PROTOCOL_VERSION,
        broadleaf: "0.1.0".into(),
        python: "3.11".into(),
        cluster_id: "a-cluster".into(),
        role: Role::Relay {
            name: "node7".into(),
            n_engines: 4,
            listen: Some("node7:4000".into()),
            ends_in_ns: Some(3_600_000_000_000),
        },
    };
    one("hello", control::encode(&hello));
    one("welcome", control::encode(&welcome()));
    one("options", control::encode(&options()));
    one("certificate", control::encode(&certificate()));
    for (number, request) in requests().into_iter().enumerate() {
        one(
            &format!("request-{number}"),
            control::encode(&(7_u64, request)),
        );
    }
    for (number, event) in relay_events(EngineId(2), TaskKey(3)).iter().enumerate() {
        one(&format!("relay-event-{number}"), control::encode(event));
    }
    let fetch = Fetch {
        object: ObjectId(7),
        len_bytes: 1 << 20,
        chunk_bytes: 1 << 16,
        sources: vec![Source {
            host: HostId(2),
            address: Some("node8:4000".into()),
            mover: Some(MoverRank { world: 5, rank: 1 }),
        }],
        epoch: 1,
    };
    one("fetch", control::encode(&RelayCommand::Fetch(fetch)));
    let pull = PayloadCommand::Pull {
        object: ObjectId(7),
        offset_bytes: 1 << 16,
        pull: 2,
        round_trip_ns: 20_000_000,
        landing: Some(Landing {
            mover: MoverRank { world: 5, rank: 2 },
            tag: 3,
            piece_bytes: 1 << 18,
        }),
    };
    one("pull", control::encode(&pull));
    let join = PayloadCommand::Join {
        object: ObjectId(7),
        pull: 2,
        round_trip_ns: 20_000_000,
    };
    one("join", control::encode(&join));
    one(
        "dial",
        control::encode(&PayloadCommand::Dial { connections: 4 }),
    );
    let flow = Flow {
        flow: 1,
        peer: 2,
        tag: 3,
        piece_bytes: 1 << 18,
        segment_offset_bytes: 4096,
        len_bytes: 8 << 20,
        from_bytes: 1 << 18,
    };
    one("flow", control::encode(&MoverCommand::Receive(flow)));
}

fn mover() {
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
    write("mover", "a-life", &input);
    // Gone, come again, received, moved, stopped, ended; see `mover::Trial::choose`.
    let choices = [
        [0, 0, 0, 1],
        [0, 0, 0, 0],
        [0, 1, 0, 2],
        [0, 1, 5, 10],
        [0, 1, 0, 6],
        [0, 1, 5, 11],
    ];
    let mut input = vec![1];
    input.extend_from_slice(choices.as_flattened());
    write("mover", "another", &input);
}

fn frames() {
    let mut body = Vec::new();
    submit(1).encode(&mut body);
    let mut input = vec![40]; // Bytes that arrive at a time.
    for kind in [FrameKind::Submit, FrameKind::Hello] {
        let header = FrameHeader {
            body_bytes: body.len() as u32,
            kind,
            fd_count: 0,
        };
        input.extend_from_slice(&header.encode());
        input.extend_from_slice(&body);
    }
    write("frames", "two", &input);
    write("frames", "header", &input[1..]);
}

fn assigned() {
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
    write("assigned", "a-life", &input);
}

fn main() {
    assigned();
    relay();
    engine();
    client();
    submissions();
    records();
    control_messages();
    mover();
    frames();
    write("layout", "compound", &compound());
    // The start of a client's hello in TLS 1.3.
    write(
        "tls",
        "client-hello",
        b"\x16\x03\x01\x00\x2d\x01\x00\x00\x29\x03\x03",
    );
    write("tls", "block", &[0xb1; 64]);
}
