//! A relay alone: what it believes of its controller's orders, what waits for an engine, and what it says.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::cell::RefCell;
use std::collections::BTreeMap;

use broadleaf_core::relay::{Arguments, Board, Freed, Relay, RelayAction};
use broadleaf_proto::control::{EngineInfo, ForkServerEvent, ForkServerOrder, ReadWritten};
use broadleaf_proto::host::{EngineOrder, EngineReport};
use broadleaf_proto::ids::{EngineId, FunctionHash, FunctionId, SegmentId, TaskKey};
use broadleaf_proto::task::{AssignRecord, FunctionRecord, OutputRecord, Payload, SegmentRef};
use bytes::Bytes;

const ENGINE: EngineId = EngineId(3);
const OTHER: EngineId = EngineId(4);
const PID: u32 = 77;

/// With a fork server.
fn relay() -> Relay {
    let mut relay = Relay::default();
    relay.on_fork_server_up(&mut Vec::new());
    relay
}

fn spawn(engine: EngineId) -> EngineOrder {
    EngineOrder::ForkServer(ForkServerOrder::Spawn { engine })
}

fn kill(pid: u32) -> EngineOrder {
    EngineOrder::Kill {
        engine: ENGINE,
        pid,
        signal: 9,
    }
}

fn revoke() -> EngineOrder {
    EngineOrder::Revoke {
        engine: ENGINE,
        key: TaskKey(1),
        offer: 0,
    }
}

fn says(relay: &mut Relay, event: ForkServerEvent) {
    relay.on_report(&EngineReport::ForkServer(event));
}

fn up(relay: &mut Relay, engine: EngineId) {
    relay.on_report(&EngineReport::Up(EngineInfo {
        engine,
        uuid: String::new(),
        pid: PID,
        host: String::new(),
    }));
}

fn down(relay: &mut Relay, engine: EngineId) {
    relay.on_report(&EngineReport::Down {
        engine,
        unclaimed_offers: Vec::new(),
        next_offer: 0,
    });
}

fn exited(pid: u32) -> ForkServerEvent {
    ForkServerEvent::Exited {
        engine: ENGINE,
        pid,
        code: Some(0),
        signal: None,
        out_of_memory: false,
        last_output: String::new(),
    }
}

/// Whether an order is carried out.
fn does(relay: &mut Relay, order: EngineOrder) -> bool {
    match relay.on_order(order.clone()) {
        Some(action) => {
            assert_eq!(action, RelayAction::Do(order));
            true
        }
        None => false,
    }
}

#[test]
fn nothing_is_started_before_there_is_a_fork_server_and_everything_then() {
    let mut relay = Relay::default();
    assert!(!does(&mut relay, spawn(ENGINE)));
    assert!(!does(&mut relay, spawn(OTHER)));
    says(
        &mut relay,
        ForkServerEvent::NotStarted {
            engine: OTHER,
            reason: String::new(),
        },
    );
    let mut actions = Vec::new();
    relay.on_fork_server_up(&mut actions);
    assert_eq!(actions, [RelayAction::Do(spawn(ENGINE))]);
    actions.clear();
    relay.on_fork_server_up(&mut actions);
    assert_eq!(actions, [], "it was told before");
    assert!(does(&mut relay, spawn(OTHER)));
}

#[test]
fn only_the_process_that_the_fork_server_named_is_signalled() {
    let mut relay = relay();
    assert!(does(&mut relay, spawn(ENGINE)));
    assert!(!does(&mut relay, kill(PID)), "not named yet");
    says(&mut relay, ForkServerEvent::Spawned(ENGINE, PID));
    assert!(does(&mut relay, kill(PID)));
    assert!(!does(&mut relay, kill(PID + 1)));
    says(&mut relay, exited(PID + 1));
    assert!(does(&mut relay, kill(PID)), "an earlier process has ended");
    says(&mut relay, exited(PID));
    assert!(!does(&mut relay, kill(PID)), "its number may be another's");
}

#[test]
fn an_engine_says_hello_once_and_only_in_a_slot_that_was_asked_for() {
    let mut relay = relay();
    assert!(!relay.expects(ENGINE));
    does(&mut relay, spawn(ENGINE));
    assert!(relay.expects(ENGINE) && !relay.expects(OTHER));
    up(&mut relay, ENGINE);
    assert!(!relay.expects(ENGINE));
    down(&mut relay, ENGINE);
    assert!(relay.expects(ENGINE), "its process may connect again");
    says(&mut relay, ForkServerEvent::Spawned(ENGINE, PID));
    says(&mut relay, exited(PID));
    assert!(!relay.expects(ENGINE));
    let seat = EngineOrder::ForkServer(ForkServerOrder::Seat {
        engine: OTHER,
        world: "w".into(),
        rank: 0,
    });
    assert!(does(&mut relay, seat));
    assert!(relay.expects(OTHER));
}

#[test]
fn offers_are_taken_back_only_from_an_engine_that_is_up() {
    let mut relay = relay();
    assert!(!does(&mut relay, revoke()));
    up(&mut relay, ENGINE);
    assert!(does(&mut relay, revoke()));
    down(&mut relay, ENGINE);
    assert!(!does(&mut relay, revoke()));
    let interrupt = EngineOrder::Interrupt {
        engine: ENGINE,
        key: TaskKey(1),
        offer: 0,
    };
    for order in [interrupt, EngineOrder::Stop { engine: ENGINE }] {
        assert!(does(&mut relay, order), "the board says whether it runs");
    }
}

#[test]
fn without_a_fork_server_an_observer_is_told_that_nothing_can_be_read() {
    let read = || {
        EngineOrder::ForkServer(ForkServerOrder::ReadWritten(ReadWritten {
            engine: ENGINE,
            pid: PID,
            reading: 5,
            seen: None,
        }))
    };
    let nothing = EngineReport::ForkServer(ForkServerEvent::Written {
        reading: 5,
        text: String::new(),
    });
    let answer = Relay::default().on_order(read());
    assert_eq!(answer, Some(RelayAction::Report(nothing)));
    assert!(does(&mut relay(), read()));
}

#[test]
fn a_relay_ends_its_engines_first_and_at_once_if_they_are_gone() {
    let mut relay = relay();
    assert_eq!(relay.leave(), RelayAction::StopForkServer);
    assert_eq!(relay.on_fork_server_down(), RelayAction::End);
    assert_eq!(relay.leave(), RelayAction::End);
}

#[test]
fn a_function_is_given_while_its_body_is_here() {
    let mut relay = relay();
    let record = |content: &'static [u8]| FunctionRecord {
        function: FunctionId(2),
        hash: FunctionHash([content[0]; 16]),
        name: Bytes::new(),
        body: Bytes::from_static(content),
    };
    assert_eq!(relay.function(FunctionId(2)), None);
    for content in [&b"one"[..], b"two"] {
        relay.on_function(record(content));
        assert_eq!(relay.function(FunctionId(2)), Some(&record(content)));
    }
    relay.forget_functions(&[FunctionId(1)]);
    assert!(relay.function(FunctionId(2)).is_some());
    relay.forget_functions(&[FunctionId(2)]);
    assert_eq!(relay.function(FunctionId(2)), None);
}

fn task(offer: u32, object: Option<u64>) -> AssignRecord {
    let range = |object| SegmentRef {
        segment: SegmentId(object),
        offset_bytes: 0,
        len_bytes: 1 << 20,
    };
    AssignRecord {
        key: TaskKey(u64::from(offer)),
        offer,
        function: FunctionId(0),
        depth: 0,
        payload: Payload {
            segments: object.into_iter().map(range).collect(),
            ..Payload::default()
        },
    }
}

/// What objects there are, by number.
#[derive(Default)]
struct Objects(RefCell<BTreeMap<u64, Arguments>>);

impl Objects {
    fn set(&self, object: u64, state: Arguments) {
        self.0.borrow_mut().insert(object, state);
    }

    fn state(&self, payload: &Payload) -> Arguments {
        let object = payload.segments.first().map(|range| range.segment.0);
        let known = object.and_then(|object| self.0.borrow().get(&object).cloned());
        known.unwrap_or(Arguments::Coming)
    }

    fn freed(&self, relay: &mut Relay) -> Vec<(u32, bool)> {
        let mut out = Vec::new();
        relay.on_objects(|payload| self.state(payload), &mut out);
        let freed = out.into_iter().map(|freed| match freed {
            Freed::Deliver(_, record) => (record.offer, true),
            Freed::GiveUp(_, record, _) => (record.offer, false),
        });
        freed.collect()
    }
}

/// Offers a task to the engine; whether it is delivered, or nothing if it waits.
fn offer(relay: &mut Relay, record: AssignRecord, arguments: &Arguments) -> Option<bool> {
    let freed = relay.on_offered(ENGINE, record, arguments)?;
    Some(matches!(freed, Freed::Deliver(..)))
}

#[test]
fn a_task_whose_arguments_have_failed_is_given_up_in_its_turn() {
    let (mut relay, objects) = (relay(), Objects::default());
    let failed = Arguments::Failed("lost".into());
    up(&mut relay, ENGINE);
    assert_eq!(offer(&mut relay, task(0, Some(7)), &failed), Some(false));
    assert_eq!(
        offer(&mut relay, task(1, Some(8)), &Arguments::Coming),
        None
    );
    let behind = offer(&mut relay, task(2, Some(7)), &failed);
    assert_eq!(behind, None, "the one before it still waits");
    objects.set(7, failed);
    assert_eq!(objects.freed(&mut relay), []);
    objects.set(8, Arguments::Here);
    assert_eq!(objects.freed(&mut relay), [(1, true), (2, false)]);
}

#[test]
fn no_task_overtakes_another_that_waits_for_its_arguments() {
    let (mut relay, objects) = (relay(), Objects::default());
    let (here, coming) = (Arguments::Here, Arguments::Coming);
    up(&mut relay, ENGINE);
    assert_eq!(offer(&mut relay, task(0, None), &here), Some(true));
    assert_eq!(offer(&mut relay, task(1, Some(7)), &coming), None);
    assert_eq!(offer(&mut relay, task(2, None), &here), None);
    assert_eq!(offer(&mut relay, task(3, Some(8)), &coming), None);
    assert_eq!(offer(&mut relay, task(4, None), &here), None);
    let other = relay.on_offered(OTHER, task(0, None), &here);
    assert!(other.is_some(), "the other engine waits for nothing");
    assert_eq!(objects.freed(&mut relay), []);
    objects.set(8, Arguments::Here);
    assert_eq!(objects.freed(&mut relay), [], "the first still waits");
    objects.set(7, Arguments::Failed("lost".into()));
    let freed = [(1, false), (2, true), (3, true), (4, true)];
    assert_eq!(objects.freed(&mut relay), freed);
    assert_eq!(offer(&mut relay, task(5, None), &here), Some(true));
}

#[test]
fn what_waits_for_an_engine_that_is_gone_is_dropped() {
    let (mut relay, objects) = (relay(), Objects::default());
    let (here, coming) = (Arguments::Here, Arguments::Coming);
    up(&mut relay, ENGINE);
    assert_eq!(offer(&mut relay, task(0, Some(7)), &coming), None);
    down(&mut relay, ENGINE);
    up(&mut relay, ENGINE);
    objects.set(7, Arguments::Here);
    assert_eq!(objects.freed(&mut relay), []);
    assert_eq!(offer(&mut relay, task(0, None), &here), Some(true));
}

fn written(bytes: &'static [u8]) -> OutputRecord {
    OutputRecord {
        task: 9,
        engine: ENGINE,
        stream: 1,
        bytes: Bytes::from_static(bytes),
    }
}

#[test]
fn output_that_is_not_read_is_dropped_and_said() {
    let mut relay = relay();
    let pass = |relay: &mut Relay, record, is_congested| {
        let (notices, record) = relay.on_output(ENGINE, 9, record, is_congested);
        let texts = notices.into_iter().chain(record);
        texts.map(|record| record.bytes).collect::<Vec<_>>()
    };
    assert_eq!(pass(&mut relay, Some(written(b"a")), false), [&b"a"[..]]);
    assert!(pass(&mut relay, Some(written(b"bcd")), true).is_empty());
    let passed = pass(&mut relay, None, true);
    assert_eq!(passed.len(), 1, "the end of the task says what is missing");
    assert!(passed[0].windows(7).any(|text| text == b"3 bytes"));
    assert!(pass(&mut relay, None, true).is_empty());
    // A successor is not told what its predecessor's output lacks.
    pass(&mut relay, Some(written(b"e")), true);
    down(&mut relay, ENGINE);
    assert_eq!(pass(&mut relay, Some(written(b"f")), false), [&b"f"[..]]);
}

#[test]
fn what_is_left_for_another_controller_is_what_engines_have_begun() {
    let mut relay = relay();
    relay.outlive_controller();
    for engine in [ENGINE, OTHER] {
        relay.on_order(spawn(engine));
        says(&mut relay, ForkServerEvent::Spawned(engine, PID));
        up(&mut relay, engine);
    }
    for offer in 0..4 {
        let record = AssignRecord {
            key: TaskKey(10 + u64::from(offer)),
            offer,
            ..task(0, None)
        };
        relay.on_offered(ENGINE, record, &Arguments::Here);
    }
    relay.on_output(ENGINE, 10, None, false);
    relay.on_report(&EngineReport::Revoked {
        engine: ENGINE,
        key: TaskKey(13),
        won: true,
    });
    down(&mut relay, OTHER);
    let exited = ForkServerEvent::Exited {
        engine: OTHER,
        pid: PID,
        code: Some(1),
        signal: None,
        out_of_memory: false,
        last_output: String::new(),
    };
    says(&mut relay, exited.clone());
    let left = relay.on_restarted(&[Board {
        engine: ENGINE,
        next_offer: 4,
        taken_back: vec![2],
    }]);
    let [engine] = &left.engines[..] else {
        panic!("{left:?}");
    };
    let link = engine.link.as_ref().unwrap();
    assert_eq!(
        (engine.engine, engine.pid, link.next_offer),
        (ENGINE, PID, 4)
    );
    assert_eq!(link.unfinished, [(1, TaskKey(11))]);
    assert_eq!(left.taken_back, [(ENGINE, TaskKey(12))]);
    assert_eq!(left.ends, [exited]);
}
