//! Recordings have no contents, and are read as they were written.
#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::collections::BTreeSet;

use broadleaf_core::journal::{Member, Members};
use broadleaf_core::recording::{
    self, Answer, Call, End, Head, Line, RelayCall, ReturningCall, Said, Start,
};
use broadleaf_core::relay::{Arguments, Board};
use broadleaf_core::{Config, Input, Output};
use broadleaf_proto::control::{
    ControlReply, ControlRequest, DefineOptions, EngineInfo, Event, ForkServerEvent, TaskOptions,
};
use broadleaf_proto::host::{EngineOrder, EngineReport};
use broadleaf_proto::ids::{
    ClientId, EngineId, FunctionHash, FunctionId, HostId, OptionsId, SegmentId, TaskKey, TaskSeq,
};
use broadleaf_proto::relay::{HeldEngine, Holdings, HostCounts};
use broadleaf_proto::task::{
    AssignRecord, DoneRecord, FunctionRecord, OutputRecord, Payload, ResultRecord, SegmentRef,
    Status, SubmitRecord,
};
use broadleaf_proto::{CoalescedRecord, RefusedRun};
use bytes::Bytes;

const SECRET: &str = "hunter2";
const CLIENT: ClientId = ClientId(3);
const ENGINE: EngineId = EngineId(5);
const HOST: HostId = HostId(2);
const KEY: TaskKey = TaskKey(1 << 40);

fn secret() -> Bytes {
    Bytes::from_static(SECRET.as_bytes())
}

fn payload() -> Payload {
    Payload {
        bytes: secret(),
        segments: [SegmentRef {
            segment: SegmentId(9),
            offset_bytes: 64,
            len_bytes: 1 << 40,
        }]
        .into_iter()
        .collect(),
        lease: None,
    }
}

fn function() -> FunctionRecord {
    FunctionRecord {
        function: FunctionId(4),
        hash: FunctionHash([7; 16]),
        name: secret(),
        body: secret(),
    }
}

fn submitted() -> SubmitRecord {
    SubmitRecord {
        seq: TaskSeq(8),
        function: FunctionId(4),
        options: OptionsId(1),
        depth: 1,
        after: [TaskSeq(6)].into_iter().collect(),
        follow: [TaskSeq(7)].into_iter().collect(),
        payload: payload(),
    }
}

fn assigned() -> AssignRecord {
    AssignRecord {
        key: KEY,
        offer: 7,
        function: FunctionId(4),
        depth: 0,
        payload: payload(),
    }
}

fn done() -> DoneRecord {
    DoneRecord {
        key: KEY,
        status: Status::Error,
        started_ns: 1,
        completed_ns: u64::MAX,
        cpu_ns: 2,
        payload: payload(),
    }
}

fn written() -> OutputRecord {
    OutputRecord {
        task: KEY.0,
        engine: ENGINE,
        stream: 1,
        bytes: secret(),
    }
}

fn reports() -> Vec<EngineReport> {
    let text = || SECRET.to_owned();
    vec![
        EngineReport::Up(EngineInfo {
            engine: ENGINE,
            uuid: "0".repeat(32),
            pid: 77,
            host: "node1".into(),
        }),
        EngineReport::Down {
            engine: ENGINE,
            unclaimed_offers: vec![1, 2],
            next_offer: 3,
        },
        EngineReport::Undeliverable {
            engine: ENGINE,
            key: KEY,
            reason: text(),
        },
        EngineReport::ForkServer(ForkServerEvent::NotStarted {
            engine: ENGINE,
            reason: text(),
        }),
        EngineReport::ForkServer(ForkServerEvent::Exited {
            engine: ENGINE,
            pid: 77,
            code: None,
            signal: Some(9),
            out_of_memory: false,
            last_output: text(),
        }),
        EngineReport::ForkServer(ForkServerEvent::Written {
            reading: 1,
            text: text(),
        }),
    ]
}

fn requests() -> Vec<ControlRequest> {
    vec![
        ControlRequest::Cancel(vec![TaskSeq(8)]),
        ControlRequest::Notice {
            about: "node1".into(),
            text: SECRET.into(),
        },
        ControlRequest::SetLog {
            level: 1,
            sink: SECRET.into(),
        },
    ]
}

/// What a controller that was started again is told.
fn after_a_restart() -> [Input; 2] {
    let (host, engine) = (HOST, ENGINE);
    [
        Input::Restored {
            members: Members {
                n_before: 1,
                hosts: vec![Member {
                    host,
                    name: "node1".into(),
                    slots: vec![(engine, None)],
                }],
            },
        },
        Input::HostRejoined {
            host,
            holdings: Holdings {
                n_cores: 4,
                ends_in_ns: Some(5),
                engines: vec![HeldEngine {
                    engine,
                    pid: 7,
                    link: None,
                }],
                ends: Vec::new(),
            },
        },
    ]
}

/// Inputs of every kind, with a secret wherever something comes from a user.
fn inputs() -> Vec<Input> {
    let (client, host, engine) = (CLIENT, HOST, ENGINE);
    let mut inputs = vec![
        Input::ClientUp {
            client,
            name: SECRET.into(),
        },
        Input::ClientDown { client },
        Input::Function {
            client,
            record: function(),
        },
        Input::Options {
            client,
            define: DefineOptions {
                id: OptionsId(1),
                options: TaskOptions {
                    label: SECRET.into(),
                    ..TaskOptions::default()
                },
            },
        },
        Input::Submit {
            client,
            record: submitted(),
        },
        Input::SubmitIncomplete {
            client,
            record: submitted(),
            reason: SECRET.into(),
        },
        Input::ClientCongested {
            client,
            congested: true,
        },
        Input::Observed,
        Input::OwnerDown,
        Input::HostUp {
            host,
            name: "node1".into(),
            n_engines: 2,
            n_cores: 4,
            ends_in_ns: Some(5),
        },
        Input::HostDown { host },
        Input::HostAway { host },
        Input::HostBack { host },
        Input::ForkServerUp,
        Input::ForkServerDown,
        Input::HostEnds {
            host,
            ends_in_ns: 5,
        },
        Input::Measured {
            host,
            counts: HostCounts {
                engines: vec![(engine, 5)],
                ..HostCounts::default()
            },
        },
        Input::Done {
            host,
            engine,
            record: done(),
            copy: Some(Box::new(secret())),
        },
        Input::Output {
            host,
            engine,
            record: written(),
        },
    ];
    inputs.extend(after_a_restart());
    inputs.extend(
        reports()
            .into_iter()
            .map(|report| Input::Report { host, report }),
    );
    inputs.extend(requests().into_iter().map(|request| Input::Request {
        client,
        number: 1,
        request,
    }));
    inputs
}

/// The number of a kind of input. Whoever adds one adds it to `inputs`, too.
fn kind(input: &Input) -> usize {
    match input {
        Input::ClientUp { .. } => 0,
        Input::ClientDown { .. } => 1,
        Input::Function { .. } => 2,
        Input::Options { .. } => 3,
        Input::Submit { .. } => 4,
        Input::SubmitIncomplete { .. } => 5,
        Input::ClientCongested { .. } => 6,
        Input::Request { .. } => 7,
        Input::Observed => 8,
        Input::OwnerDown => 9,
        Input::HostUp { .. } => 10,
        Input::HostDown { .. } => 11,
        Input::ForkServerUp => 12,
        Input::ForkServerDown => 13,
        Input::HostEnds { .. } => 14,
        Input::Measured { .. } => 15,
        Input::Report { .. } => 16,
        Input::Done { .. } => 17,
        Input::Output { .. } => 18,
        Input::HostAway { .. } => 19,
        Input::HostBack { .. } => 20,
        Input::Restored { .. } => 21,
        Input::HostRejoined { .. } => 22,
    }
}

fn calls() -> Vec<Call> {
    let (host, engine) = (HOST, ENGINE);
    let relay = [
        RelayCall::OutliveController,
        RelayCall::OnRestarted {
            boards: vec![Board {
                engine,
                next_offer: 5,
                taken_back: vec![4],
            }],
        },
        RelayCall::OnFunction { record: function() },
        RelayCall::ForgetFunctions {
            ids: vec![FunctionId(4)],
        },
        RelayCall::OnOrder {
            order: EngineOrder::Stop { engine },
        },
        RelayCall::OnForkServerUp,
        RelayCall::OnForkServerDown,
        RelayCall::Leave,
        RelayCall::OnOffered {
            engine,
            record: assigned(),
            arguments: Arguments::Failed(SECRET.to_owned()),
        },
        RelayCall::OnObjects,
        RelayCall::OnOutput {
            engine,
            task: KEY.0,
            record: Some(written()),
            is_congested: true,
        },
        RelayCall::OnOutput {
            engine,
            task: KEY.0,
            record: None,
            is_congested: false,
        },
    ];
    let told = reports()
        .into_iter()
        .map(|report| RelayCall::OnReport { report });
    let relay = relay.into_iter().chain(told).map(Call::Relay);
    let returning = [
        ReturningCall::OnDone {
            host,
            engine,
            record: done(),
        },
        ReturningCall::OnObjects,
        ReturningCall::OnHostDown { host },
    ];
    let told = reports()
        .into_iter()
        .map(|report| ReturningCall::OnReport { host, report });
    let returning = returning.into_iter().chain(told).map(Call::Returning);
    let of_controller = [Call::Deadline, Call::Schedule, Call::TakeFreedFunctions];
    let of_controller = inputs().into_iter().map(Call::Input).chain(of_controller);
    of_controller.chain(relay).chain(returning).collect()
}

fn text_of(call: &Call) -> String {
    let mut line = Vec::new();
    recording::call(5, call, &mut line);
    String::from_utf8(line).unwrap()
}

fn head() -> Head {
    Head {
        version: "0.1.0".into(),
        start: Start::Controller(Config {
            n_engines: 4,
            ..Config::default()
        }),
    }
}

/// The lines of a recording that has these after its head.
fn lines_of(rest: &[u8]) -> Vec<Line> {
    let mut text = Vec::new();
    recording::begin(&head(), &mut text);
    text.extend_from_slice(rest);
    let text = String::from_utf8(text).unwrap();
    let (found, lines) = recording::read(&text).unwrap();
    assert_eq!(found, head());
    lines.map(|line| line.unwrap().1).collect()
}

#[test]
fn nothing_that_a_user_sent_or_wrote_is_recorded() {
    let kinds: BTreeSet<usize> = inputs().iter().map(kind).collect();
    assert_eq!(kinds, (0..23).collect(), "every kind of input");
    for call in calls() {
        let text = text_of(&call);
        assert!(!text.contains(SECRET), "{text}");
    }
    let mut line = Vec::new();
    let said = vec![Said::Arguments(Arguments::Failed(SECRET.into()))];
    recording::answer(&Answer::with::<Output>(&[], said), &mut line);
    assert!(!String::from_utf8(line).unwrap().contains(SECRET));
}

#[test]
fn what_is_read_has_the_lengths_and_names_of_what_was_written() {
    for call in calls() {
        let text = text_of(&call);
        let [Line::Call { call: read, .. }] = &lines_of(text.as_bytes())[..] else {
            panic!("{text}");
        };
        assert_eq!(text_of(read), text);
        match (&**read, &call) {
            (
                Call::Input(Input::Submit { record: read, .. }),
                Call::Input(Input::Submit { record, .. }),
            ) => {
                assert_eq!(read.payload.bytes, [0; SECRET.len()][..]);
                assert_eq!(read.payload.segments, record.payload.segments);
                assert_eq!((&read.after, &read.follow), (&record.after, &record.follow));
            }
            (Call::Input(Input::HostUp { name, .. }), _) => assert_eq!(name, "node1"),
            (Call::Input(Input::ClientUp { name, .. }), _) => {
                assert_eq!(name.len(), SECRET.len());
            }
            _ => {}
        }
    }
}

#[test]
fn an_answer_is_read_as_it_was_written() {
    let said = vec![Said::IsWanted(true), Said::Arguments(Arguments::Coming)];
    let outputs = [Output::StopForkServer, Output::Finished];
    for answer in [
        Answer::of::<Output>(&[]),
        Answer::of(&outputs),
        Answer::with(&outputs, said),
    ] {
        let mut line = Vec::new();
        recording::call(5, &Call::Schedule, &mut line);
        recording::answer(&answer, &mut line);
        recording::end(End::Limit, &mut line);
        let call = Box::new(Call::Schedule);
        let answer = Some(answer);
        let expected = Line::Call {
            now: 5,
            call,
            answer,
        };
        assert_eq!(lines_of(&line), [expected, Line::End(End::Limit)]);
    }
}

#[test]
fn outputs_that_differ_in_more_than_contents_have_other_digests() {
    let (client, engine) = (CLIENT, ENGINE);
    let result = |seq, status, bytes: &'static [u8]| ResultRecord {
        seq: TaskSeq(seq),
        status,
        engine,
        started_ns: 1,
        completed_ns: 2,
        cpu_ns: 3,
        payload: Payload {
            bytes: Bytes::from_static(bytes),
            ..Payload::default()
        },
    };
    let told = |seq, status, bytes| Output::Result {
        client,
        record: result(seq, status, bytes),
    };
    let coalesced = |first, second| Output::Coalesced {
        client,
        record: CoalescedRecord::pack(vec![
            result(1, Status::Ok, first),
            result(2, Status::Ok, second),
        ]),
    };
    let digest = |output: &Output| Answer::of(std::slice::from_ref(output)).digest;
    let same = [
        (told(1, Status::Ok, b"ab"), told(1, Status::Ok, b"cd")),
        (told(1, Status::Lost, b"ab"), told(1, Status::Lost, b"c")),
        (coalesced(b"a", b"a"), coalesced(b"a", b"b")),
    ];
    for (a, b) in &same {
        assert_eq!(digest(a), digest(b), "{a:?}, {b:?}");
    }
    let reply = |reply| Output::Reply {
        client,
        number: 1,
        reply,
    };
    let different = [
        told(1, Status::Ok, b"ab"),
        told(2, Status::Ok, b"ab"),
        told(1, Status::Error, b"ab"),
        told(1, Status::Ok, b"abc"),
        coalesced(b"a", b"a"),
        coalesced(b"a", b"ab"),
        Output::Assign {
            engine,
            record: assigned(),
            topology: broadleaf_proto::RequestedTopology::default(),
        },
        Output::Function {
            engine,
            record: function(),
        },
        Output::Refused {
            client,
            record: RefusedRun {
                seq: TaskSeq(1),
                n_tasks: 1,
                reason: broadleaf_proto::control::RefusalReason::NoEngines,
            },
        },
        Output::ClientOutput {
            client,
            record: written(),
        },
        Output::Event {
            client,
            event: Event::Stopping,
        },
        reply(ControlReply::Done),
        reply(ControlReply::Text(SECRET.into())),
    ];
    let digests: BTreeSet<u64> = different.iter().map(digest).collect();
    assert_eq!(digests.len(), different.len());
    let shown: String = different.iter().map(recording::shown).collect();
    assert!(!shown.contains(SECRET), "{shown}");
}
