//! Values that come from other hosts, and the reports that wait for them.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use broadleaf_core::relay::Arguments;
use broadleaf_core::returning::{Ending, Returned, Returning};
use broadleaf_proto::control::{EngineInfo, ForkServerEvent};
use broadleaf_proto::engine::EngineEvent;
use broadleaf_proto::host::EngineReport;
use broadleaf_proto::ids::{EngineId, HostId, ObjectId, SegmentId, TaskKey};
use broadleaf_proto::task::{DoneRecord, Payload, SegmentRef, Status};

const HOST: HostId = HostId(2);
const OTHER_HOST: HostId = HostId(3);
const ENGINE: EngineId = EngineId(5);
const BYTES: u64 = 1 << 20;

fn object(number: u64) -> ObjectId {
    ObjectId::new(HOST, number)
}

/// The end of a task whose value is these objects.
fn end(key: u64, objects: &[ObjectId]) -> DoneRecord {
    let range = |object: &ObjectId| SegmentRef {
        segment: SegmentId(object.0),
        offset_bytes: 0,
        len_bytes: BYTES,
    };
    DoneRecord {
        key: TaskKey(key),
        status: Status::Ok,
        started_ns: 0,
        completed_ns: 1,
        cpu_ns: 0,
        payload: Payload {
            segments: objects.iter().map(range).collect(),
            ..Payload::default()
        },
    }
}

fn done(returning: &mut Returning, key: u64, number: u64) -> Ending {
    returning.on_done(HOST, ENGINE, end(key, &[object(number)]), |_| true)
}

fn down() -> EngineReport {
    EngineReport::Down {
        engine: ENGINE,
        unclaimed_offers: Vec::new(),
        next_offer: 0,
    }
}

fn up() -> EngineReport {
    EngineReport::Up(EngineInfo {
        engine: ENGINE,
        uuid: String::new(),
        pid: 1,
        host: String::new(),
    })
}

fn waits() -> EngineReport {
    EngineReport::Waits {
        engine: ENGINE,
        event: EngineEvent::WaitStarted(TaskKey(1)),
    }
}

fn not_started() -> EngineReport {
    EngineReport::ForkServer(ForkServerEvent::NotStarted {
        engine: ENGINE,
        reason: String::new(),
    })
}

/// What happens once these objects have arrived, and that one is lost.
fn returned(returning: &mut Returning, here: &[u64], lost: u64) -> Vec<Returned> {
    let state = |payload: &Payload| {
        let mut states = payload.segments.iter().map(|range| {
            let number = ObjectId(range.segment.0);
            if number == object(lost) {
                Arguments::Failed("lost".into())
            } else if here.iter().any(|n| object(*n) == number) {
                Arguments::Here
            } else {
                Arguments::Coming
            }
        });
        states
            .find(|s| *s != Arguments::Here)
            .unwrap_or(Arguments::Here)
    };
    let mut out = Vec::new();
    returning.on_objects(state, &mut out);
    out
}

#[test]
fn a_death_is_told_after_the_last_value_and_what_else_happens_at_once() {
    let mut returning = Returning::default();
    assert_eq!(
        done(&mut returning, 1, 10),
        Ending::Fetch(vec![(object(10), BYTES)])
    );
    assert_eq!(
        done(&mut returning, 2, 11),
        Ending::Fetch(vec![(object(11), BYTES)])
    );
    assert_eq!(returning.on_report(HOST, waits()), None);
    assert_eq!(returning.on_report(HOST, down()), None);
    assert_eq!(returning.on_report(HOST, not_started()), None);
    let revoked = EngineReport::Revoked {
        engine: ENGINE,
        key: TaskKey(3),
        won: true,
    };
    assert_eq!(returning.on_report(HOST, revoked.clone()), Some(revoked));
    assert_eq!(
        returned(&mut returning, &[11], 0),
        [
            Returned::Done(HOST, ENGINE, end(2, &[object(11)])),
            Returned::Forget(vec![object(11)]),
        ]
    );
    assert_eq!(
        returned(&mut returning, &[11], 0),
        [],
        "a value is told once"
    );
    let lost = EngineReport::Undeliverable {
        engine: ENGINE,
        key: TaskKey(1),
        reason: "lost".into(),
    };
    assert_eq!(
        returned(&mut returning, &[], 10),
        [
            Returned::Report(HOST, lost),
            Returned::Forget(vec![object(10)]),
            Returned::Report(HOST, waits()),
            Returned::Report(HOST, down()),
            Returned::Report(HOST, not_started()),
        ]
    );
    assert_eq!(returning.on_report(HOST, down()), Some(down()));
}

#[test]
fn a_value_that_nobody_asked_for_takes_no_memory() {
    let mut returning = Returning::default();
    let forget = |number| Ending::Forget(vec![object(number)]);
    let unwanted = returning.on_done(HOST, ENGINE, end(1, &[object(1)]), |_| false);
    assert_eq!(unwanted, forget(1));
    done(&mut returning, 2, 2);
    assert_eq!(done(&mut returning, 2, 3), forget(3), "it comes already");
    let small = end(3, &[]);
    let told = returning.on_done(HOST, ENGINE, small.clone(), |_| panic!("not asked"));
    assert_eq!(told, Ending::Tell(small));
}

#[test]
fn a_host_returns_its_own_objects_from_their_beginning() {
    let mut returning = Returning::default();
    let foreign = end(1, &[object(1), ObjectId::new(OTHER_HOST, 1)]);
    let ending = returning.on_done(HOST, ENGINE, foreign, |_| true);
    assert_eq!(ending, Ending::Impossible);
    let mut middle = end(1, &[object(1)]);
    middle.payload.segments[0].offset_bytes = 1;
    let ending = returning.on_done(HOST, ENGINE, middle, |_| true);
    assert_eq!(ending, Ending::Impossible);
}

#[test]
fn a_successor_ends_what_was_held_back_of_the_engine_before_it() {
    let mut returning = Returning::default();
    done(&mut returning, 1, 1);
    assert_eq!(returning.on_report(HOST, down()), None);
    assert_eq!(returning.on_report(HOST, up()), Some(up()));
    let out = returned(&mut returning, &[1], 0);
    assert!(!out.contains(&Returned::Report(HOST, down())), "{out:?}");
}

#[test]
fn another_host_does_not_wait_and_a_lost_one_gives_up_its_objects() {
    let mut returning = Returning::default();
    done(&mut returning, 1, 1);
    assert_eq!(returning.on_report(OTHER_HOST, down()), Some(down()));
    assert_eq!(returning.on_report(HOST, down()), None);
    assert_eq!(returning.on_host_down(OTHER_HOST), []);
    assert_eq!(returning.on_host_down(HOST), [object(1)]);
    assert_eq!(returned(&mut returning, &[1], 0), []);
}
