use broadleaf_core::{Input, Output};
use broadleaf_proto::control::{ControlReply, ControlRequest};
use broadleaf_proto::engine::EngineEvent;
use broadleaf_proto::host::{EngineOrder, EngineReport};
use broadleaf_proto::ids::{EngineId, FunctionId, HostId, OptionsId, TaskSeq};
use broadleaf_proto::task::{AssignRecord, DoneRecord, Payload, SubmitRecord};
use broadleaf_proto::{Status, TaskKey, TaskOptions};
use smallvec::SmallVec;

use crate::bench::{Bench, CLIENT, MS, config, each};

fn says(bench: &mut Bench, engine: u32, event: EngineEvent) {
    let engine = EngineId(engine);
    bench.reports(EngineReport::Waits { engine, event });
    bench.schedule();
}

fn waits(bench: &mut Bench, engine: u32, key: TaskKey) {
    says(bench, engine, EngineEvent::WaitStarted(key));
}

fn goes_on(bench: &mut Bench, engine: u32, key: TaskKey) {
    says(bench, engine, EngineEvent::WaitEnded(key));
}

/// Submits tasks of a depth; returns their numbers.
fn nested(bench: &mut Bench, depth: u16, n: u64) -> Vec<u64> {
    bench.depth = depth;
    let seqs = bench.submit(n);
    bench.depth = 0;
    seqs
}

/// One engine with one offer at a time, and the task that runs on it.
fn one_engine() -> (Bench, AssignRecord) {
    let mut bench = Bench::new(
        broadleaf_core::Config {
            prefetch_min: 1,
            prefetch_max: 1,
            ..config()
        },
        1,
    );
    bench.submit(1);
    let (_, outer) = bench.assigns_one();
    (bench, outer)
}

#[test]
fn an_engine_whose_task_waits_is_given_deeper_tasks_alone() {
    let (mut bench, outer) = one_engine();
    bench.submit(1);
    let inner = nested(&mut bench, 1, 1);
    assert_eq!(bench.assigned(), [], "it is busy");
    waits(&mut bench, 0, outer.key);
    let (engine, record) = bench.assigns_one();
    assert_eq!((engine, record.depth), (0, 1));
    bench.done(0, record.key, Status::Ok, MS);
    assert_eq!(bench.ends(), [(inner[0], Status::Ok)]);
    assert_eq!(bench.assigned(), [], "its equal waits until it has ended");
    goes_on(&mut bench, 0, outer.key);
    assert_eq!(bench.assigned(), []);
    bench.done(0, outer.key, Status::Ok, MS);
    assert_eq!(bench.assigned(), [(0, 1)]);
}

#[test]
fn what_is_nested_deeper_goes_first_whatever_its_priority() {
    let (mut bench, outer) = one_engine();
    let urgent = TaskOptions {
        priority: 9,
        ..TaskOptions::default()
    };
    bench.submit_with(urgent);
    let inner = nested(&mut bench, 1, 1);
    let innermost = nested(&mut bench, 2, 1);
    bench.done(0, outer.key, Status::Ok, MS);
    assert_eq!(bench.assigned(), [(0, innermost[0])]);
    assert!(inner[0] > 0);
}

#[test]
fn tasks_that_cannot_start_meanwhile_go_back_to_the_front_of_their_queue() {
    let mut bench = Bench::new(config(), 1);
    bench.submit(3);
    let offered = bench.assigns();
    assert_eq!(offered.len(), 2);
    waits(&mut bench, 0, offered[0].1.key);
    assert_eq!(bench.revokes(), [(0, offered[1].1.key)]);
    bench.revoked(0, offered[1].1.key, true);
    bench.engine_up(1);
    bench.schedule();
    assert_eq!(bench.assigned(), [(1, 1), (1, 2)]);
}

#[test]
fn an_engines_own_tasks_come_back_in_their_order() {
    let mut bench = Bench::new(
        broadleaf_core::Config {
            prefetch_min: 3,
            ..config()
        },
        1,
    );
    for _ in 0..4 {
        bench.submit_with(each(&[0]));
    }
    bench.schedule();
    let offered = bench.assigns();
    waits(&mut bench, 0, offered[0].1.key);
    let revokes = bench.revokes();
    assert_eq!(revokes.len(), 2);
    goes_on(&mut bench, 0, offered[0].1.key);
    assert_eq!(
        bench.assigned(),
        [],
        "none overtakes those on their way back"
    );
    for (engine, key) in revokes {
        bench.revoked(engine, key, true);
    }
    bench.done(0, offered[0].1.key, Status::Ok, MS);
    assert_eq!(bench.assigned(), [(0, 1), (0, 2), (0, 3)]);
}

#[test]
fn a_task_that_waits_is_addressed_on_its_own_engine_too() {
    let mut bench = Bench::new(config(), 2);
    bench.submit_with(each(&[0]));
    bench.schedule();
    let (_, outer) = bench.assigns_one();
    bench.depth = 1;
    bench.submit_with(each(&[0, 1]));
    waits(&mut bench, 0, outer.key);
    // The parts of one record share their arguments, which contain its first number.
    assert_eq!(bench.assigned(), [(0, 1), (1, 1)]);
}

#[test]
fn an_engine_whose_task_waits_takes_deeper_tasks_from_a_busy_one() {
    let mut bench = Bench::new(
        broadleaf_core::Config {
            steal_after_ns: 0,
            ..config()
        },
        2,
    );
    bench.submit(2);
    let offered = bench.assigns();
    let inner = nested(&mut bench, 1, 2);
    assert_eq!(bench.assigned(), [(0, inner[0]), (1, inner[1])]);
    waits(&mut bench, 0, offered[0].1.key);
    assert_eq!(bench.revokes(), [], "it has one itself");
    let explained = explain(&mut bench, inner[0]);
    assert_eq!(explained, "runs on engine 0");
    assert_eq!(
        explain(&mut bench, 0),
        "waits on engine 0 for tasks that it submitted"
    );
}

#[test]
fn what_waits_behind_a_task_that_has_waited_is_taken_over() {
    let mut bench = Bench::new(config(), 1);
    let patience_ns = config().steal_after_ns;
    bench.submit(1);
    let (_, outer) = bench.assigns_one();
    waits(&mut bench, 0, outer.key);
    goes_on(&mut bench, 0, outer.key);
    bench.submit(1);
    let (_, behind) = bench.assigns_one();
    bench.engine_up(1);
    bench.schedule();
    bench.pass(patience_ns);
    assert_eq!(bench.revokes(), [(0, behind.key)]);
}

fn explain(bench: &mut Bench, seq: u64) -> String {
    let request = ControlRequest::Explain(TaskSeq(seq));
    bench.input(Input::Request {
        client: CLIENT,
        number: 1,
        request,
    });
    let replies = bench.take(|output| match output {
        Output::Reply {
            reply: ControlReply::Text(text),
            ..
        } => Some(text.clone()),
        _ => None,
    });
    replies[0].clone()
}

#[test]
fn a_task_that_waits_has_no_bound_on_those_it_waits_for() {
    // A claim board has 4,096 slots; a task that waits holds none.
    let (mut bench, outer) = one_engine();
    waits(&mut bench, 0, outer.key);
    let (now, engine) = (bench.now, EngineId(0));
    for seq in 1..5_000 {
        let record = SubmitRecord {
            seq: TaskSeq(seq),
            function: FunctionId(0),
            options: OptionsId(0),
            depth: 1,
            after: SmallVec::new(),
            follow: SmallVec::new(),
            payload: Payload::default(),
        };
        // Without the bench's checks, which examine everything each time.
        let controller = &mut bench.controller;
        let client = CLIENT;
        controller.on_input(now, Input::Submit { client, record }, &mut bench.out);
        controller.schedule(now, &mut bench.out);
        let (_, assigned) = bench.assigns_one();
        let record = DoneRecord {
            key: assigned.key,
            status: Status::Ok,
            started_ns: now,
            completed_ns: now,
            cpu_ns: 0,
            payload: Payload::default(),
        };
        let controller = &mut bench.controller;
        controller.on_input(
            now,
            Input::Done {
                host: HostId::CONTROLLER,
                engine,
                record,
                copy: None,
            },
            &mut bench.out,
        );
    }
    goes_on(&mut bench, 0, outer.key);
    bench.done(0, outer.key, Status::Ok, MS);
    assert_eq!(bench.ends().len(), 5_000);
}

#[test]
fn the_death_of_an_engine_is_that_of_all_tasks_on_its_stack() {
    let (mut bench, outer) = one_engine();
    nested(&mut bench, 1, 1);
    waits(&mut bench, 0, outer.key);
    let (_, middle) = bench.assigns_one();
    nested(&mut bench, 2, 1);
    waits(&mut bench, 0, middle.key);
    assert_eq!(bench.assigned().len(), 1);
    bench.engine_down(0, &[]);
    bench.exited(0, 11);
    let mut ends = bench.ends();
    ends.sort_unstable_by_key(|(seq, _)| *seq);
    assert_eq!(
        ends,
        [(0, Status::Lost), (1, Status::Lost), (2, Status::Lost)]
    );
}

#[test]
fn a_task_whose_time_is_over_is_not_killed_while_another_runs_on_top_of_it() {
    let mut bench = Bench::new(config(), 1);
    bench.submit_with(TaskOptions {
        timeout_ns: Some(10 * MS),
        ..TaskOptions::default()
    });
    bench.schedule();
    let (_, outer) = bench.assigns_one();
    nested(&mut bench, 1, 1);
    waits(&mut bench, 0, outer.key);
    let (_, inner) = bench.assigns_one();
    bench.pass(11 * MS);
    let interrupts = |bench: &mut Bench| {
        bench.take(|output| match output {
            Output::Order(EngineOrder::Interrupt { key, .. }) => Some(*key),
            _ => None,
        })
    };
    assert_eq!(interrupts(&mut bench), [outer.key]);
    let kills = |bench: &mut Bench| {
        bench.take(|output| matches!(output, Output::Order(EngineOrder::Kill { .. })).then_some(()))
    };
    for _ in 0..5 {
        bench.pass(config().interrupt_grace_ns);
    }
    bench.pass(config().interrupt_grace_ns - MS);
    assert_eq!(kills(&mut bench), []);
    bench.done(0, inner.key, Status::Ok, MS);
    bench.pass(config().interrupt_grace_ns - MS);
    assert_eq!(kills(&mut bench), [], "its grace begins when it is on top");
    bench.pass(MS);
    assert_eq!(kills(&mut bench), [()], "it has not taken its interrupt");
}

#[test]
fn what_an_engine_cannot_mean_is_ignored() {
    let mut bench = Bench::new(config(), 2);
    bench.submit(3);
    let offered = bench.assigns();
    let ignored = |bench: &Bench| bench.controller.counters().ignored;
    let n = ignored(&bench);
    waits(&mut bench, 1, offered[0].1.key);
    assert_eq!(ignored(&bench), n + 1, "another engine's task");
    goes_on(&mut bench, 0, offered[0].1.key);
    assert_eq!(ignored(&bench), n + 2, "it did not wait");
    waits(&mut bench, 0, offered[0].1.key);
    waits(&mut bench, 0, offered[0].1.key);
    assert_eq!(ignored(&bench), n + 3, "it waits already");
    waits(&mut bench, 0, offered[2].1.key);
    assert_eq!(ignored(&bench), n + 4, "it cannot have been started");
    waits(&mut bench, 0, TaskKey(u64::MAX));
    assert_eq!(ignored(&bench), n + 5, "there is no such task");
}
