//! Messages that several seeds are made of.

use broadleaf_proto::control::{
    self, ControlRequest, DeathCause, DeathCertificate, DefineOptions, ForkServerEvent,
    RefusalReason, Welcome,
};
use broadleaf_proto::engine::EngineEvent;
use broadleaf_proto::host::EngineReport;
use broadleaf_proto::layout::{COMPOUND, ValueHead};
use broadleaf_proto::mover::MoverRank;
use broadleaf_proto::relay::{HeldEngine, HeldLink, Holdings, HostCounts, Progress, RelayEvent};
use broadleaf_proto::task::{DoneRecord, FunctionRecord, OutputRecord, Payload, ResultRecord};
use broadleaf_proto::{
    ClientId, EngineId, FunctionHash, FunctionId, HostId, Mode, ObjectId, OptionsId, RefusedRun,
    RequestedTopology, SegmentId, SegmentRef, Status, SubmitRecord, TargetSet, TaskKey,
    TaskOptions, TaskSeq,
};
use bytes::Bytes;

use super::super::machines::world;

pub fn payload() -> Payload {
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
pub fn compound() -> Vec<u8> {
    let buffers: [(u8, u64); 4] = [(1, 100_000), (2, 100_000), (0, 3), (4, 2)];
    let mut value = Vec::new();
    ValueHead {
        n_captured: 1,
        is_out_of_band: false,
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

pub fn done(key: TaskKey, payload: Payload) -> DoneRecord {
    DoneRecord {
        key,
        status: Status::Ok,
        started_ns: 1_790_000_000_000_000_000,
        completed_ns: 1_790_000_000_000_300_000,
        cpu_ns: 7,
        payload,
    }
}

pub fn output(engine: EngineId, key: TaskKey) -> OutputRecord {
    OutputRecord {
        task: key.0,
        engine,
        stream: 1,
        bytes: Bytes::from_static(b"hello\n"),
    }
}

pub fn certificate() -> DeathCertificate {
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

pub fn submit(seq: u64) -> SubmitRecord {
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

pub fn options() -> DefineOptions {
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

pub fn function() -> FunctionRecord {
    FunctionRecord {
        function: FunctionId(3),
        hash: FunctionHash([5; 16]),
        name: Bytes::from_static(b"name"),
        body: Bytes::from_static(b"\x80pickle of a function"),
    }
}

pub fn progress() -> Progress {
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

pub fn relay_events(engine: EngineId, key: TaskKey) -> Vec<RelayEvent> {
    vec![
        RelayEvent::Report(EngineReport::Up(world::info(engine.0))),
        RelayEvent::Mover(Some(MoverRank { world: 5, rank: 1 })),
        RelayEvent::Report(EngineReport::Down {
            engine,
            unclaimed_offers: vec![0, 1, 2],
            next_offer: 1,
        }),
        RelayEvent::Report(EngineReport::Revoked {
            engine,
            key,
            won: true,
        }),
        RelayEvent::Report(EngineReport::Waits {
            engine,
            event: EngineEvent::WaitStarted(key),
        }),
        RelayEvent::Report(EngineReport::ForkServer(ForkServerEvent::Spawned(
            engine, 1002,
        ))),
        RelayEvent::Report(EngineReport::ForkServer(ForkServerEvent::Exited {
            engine,
            pid: 1002,
            code: None,
            signal: Some(9),
            out_of_memory: true,
            last_output: "last words".into(),
        })),
        RelayEvent::Report(EngineReport::ForkServer(ForkServerEvent::Written {
            reading: 1,
            text: "{}".into(),
        })),
        RelayEvent::Fetched(progress()),
        RelayEvent::FetchFailed {
            object: ObjectId(7),
            reason: "no host that has the data could be reached".into(),
        },
        RelayEvent::Report(EngineReport::Delivered { engine, key }),
        RelayEvent::Report(EngineReport::Undeliverable {
            engine,
            key,
            reason: "its data was given up".into(),
        }),
        RelayEvent::Pong {
            sent_ns: 1,
            unread_bytes: 4096,
        },
        RelayEvent::Measured(HostCounts {
            cores: 2,
            engines: vec![(engine, 50_000_000)],
            ..HostCounts::default()
        }),
        RelayEvent::Rejoined(Holdings {
            n_cores: 2,
            ends_in_ns: None,
            engines: vec![HeldEngine {
                engine,
                pid: 1002,
                link: Some(HeldLink {
                    info: world::info(engine.0),
                    next_offer: 5,
                    unfinished: vec![(3, key)],
                }),
            }],
            ends: Vec::new(),
        }),
    ]
}

pub fn results() -> Vec<ResultRecord> {
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
        cpu_ns: 7,
        payload: Payload {
            bytes: bytes.into(),
            ..Payload::default()
        },
    };
    (0..).zip(ends).map(result).collect()
}

pub fn welcome() -> Welcome {
    Welcome {
        client: ClientId(1),
        engine: EngineId(0),
        segment_token: 3,
        host: HostId(0),
        max_outstanding_tasks: 262_144,
        max_outstanding_bytes: 1 << 28,
        engines: vec![world::info(0)],
        payload_secret: None,
        session: None,
        keeps_journal: false,
    }
}

pub fn refused() -> RefusedRun {
    RefusedRun {
        seq: TaskSeq(40),
        n_tasks: 65_536,
        reason: RefusalReason::NoSuchEngine(EngineId(0)),
    }
}

pub fn requests() -> Vec<ControlRequest> {
    let name = (ClientId(1), TaskSeq(5));
    let all = TargetSet::All;
    vec![
        ControlRequest::Cancel(vec![TaskSeq(5)]),
        ControlRequest::InterruptTasks(vec![TaskSeq(5)]),
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
