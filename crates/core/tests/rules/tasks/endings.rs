use broadleaf_core::{Input, Output};
use broadleaf_proto::control::{ControlRequest, RefusalReason};
use broadleaf_proto::host::EngineOrder;
use broadleaf_proto::ids::{EngineId, HostId, TaskKey, TaskSeq};
use broadleaf_proto::task::{OutputRecord, dropped_messages_notice};
use broadleaf_proto::{Status, TaskOptions};

use crate::bench::{Bench, CLIENT, MS, config, each, refusal};

fn retries(retries: u32) -> TaskOptions {
    TaskOptions {
        retries,
        ..TaskOptions::default()
    }
}

fn timeout(timeout_ns: u64) -> TaskOptions {
    TaskOptions {
        timeout_ns: Some(timeout_ns),
        ..TaskOptions::default()
    }
}

fn interrupts(bench: &mut Bench) -> usize {
    let found =
        bench.take(|o| matches!(o, Output::Order(EngineOrder::Interrupt { .. })).then_some(()));
    found.len()
}

/// Processes that are killed, and the signals.
fn kills(bench: &mut Bench) -> Vec<(u32, i32)> {
    bench.take(|o| match o {
        Output::Order(EngineOrder::Kill { pid, signal, .. }) => Some((*pid, *signal)),
        _ => None,
    })
}

#[test]
fn an_error_is_retried_on_another_engine() {
    let mut bench = Bench::new(config(), 2);
    bench.submit_with(retries(1));
    bench.schedule();
    let (engine, record) = bench.assigns().remove(0);
    bench.done(engine, record.key, Status::Error, MS);
    let (other, again) = bench.assigns().remove(0);
    assert_ne!(engine, other);
    assert_ne!(record.key, again.key, "a key names one placement");
    bench.done(engine, record.key, Status::Ok, MS);
    assert_eq!(bench.ends(), [], "late news of the first placement");
    bench.done(other, again.key, Status::Error, MS);
    assert_eq!(bench.ends(), [(0, Status::Error)]);
}

#[test]
fn unmet_goes_round_the_engines_once() {
    let mut bench = Bench::new(config(), 3);
    bench.submit(1);
    let mut tried = Vec::new();
    while let Some((engine, record)) = bench.assigns().first().cloned() {
        tried.push(engine);
        bench.unmet(engine, record.key, "no fuel");
    }
    let last = tried[2];
    tried.sort_unstable();
    assert_eq!(tried, [0, 1, 2]);
    let said = RefusalReason::UnmetEverywhere(format!("engine {last}: no fuel"));
    assert_eq!(refusal(&bench.results()[0]), said);

    bench.submit_with(each(&[1]));
    bench.schedule();
    let (engine, record) = bench.assigns().remove(0);
    bench.unmet(engine, record.key, "no fuel");
    let said = RefusalReason::UnmetEverywhere("engine 1: no fuel".into());
    assert_eq!(refusal(&bench.results()[0]), said);
}

#[test]
fn a_timeout_interrupts_then_kills() {
    let mut bench = Bench::new(config(), 1);
    bench.submit_with(timeout(10 * MS));
    bench.schedule();
    let (_, record) = bench.assigns().remove(0);
    bench.pass(10 * MS);
    assert_eq!(
        bench.revokes(),
        [(0, record.key)],
        "perhaps it never started"
    );
    bench.revoked(0, record.key, false);
    assert_eq!(interrupts(&mut bench), 1);
    bench.pass(config().interrupt_grace_ns);
    assert_eq!(kills(&mut bench), [(100, 9)]);
    bench.engine_down(0, &[]);
    assert_eq!(bench.ends(), [(0, Status::Timeout)]);
}

#[test]
fn an_abort_interrupts_then_kills() {
    // A second abort does not give it more time, nor does asking it to end.
    for again in [ControlRequest::Cancel, ControlRequest::InterruptTasks] {
        let mut bench = Bench::new(config(), 1);
        bench.submit_with(retries(5));
        bench.schedule();
        let (_, record) = bench.assigns_one();
        bench.request(ControlRequest::Cancel(vec![TaskSeq(0)]));
        bench.revoked(0, record.key, false);
        assert_eq!(interrupts(&mut bench), 1);
        bench.pass(config().interrupt_grace_ns / 2);
        bench.request(again(vec![TaskSeq(0)]));
        assert_eq!(interrupts(&mut bench), 1);
        bench.pass(config().interrupt_grace_ns / 2);
        assert_eq!(kills(&mut bench), [(100, 9)]);
        bench.engine_down(0, &[]);
        assert_eq!(bench.ends(), [(0, Status::Cancelled)], "and not retried");
    }
}

#[test]
fn an_abort_of_a_task_known_to_run_interrupts_then_kills() {
    let mut bench = Bench::new(config(), 1);
    bench.submit_with(timeout(10 * MS));
    bench.schedule();
    let (_, record) = bench.assigns_one();
    bench.request(ControlRequest::InterruptTasks(vec![TaskSeq(0)]));
    bench.revoked(0, record.key, false);
    bench.request(ControlRequest::Cancel(vec![TaskSeq(0)]));
    assert_eq!(interrupts(&mut bench), 2);
    // The grace period counts from the abort, whatever the task's own time limit.
    bench.pass(config().interrupt_grace_ns - MS);
    assert_eq!(kills(&mut bench), []);
    bench.pass(MS);
    assert_eq!(kills(&mut bench), [(100, 9)]);
}

#[test]
fn a_task_that_is_only_asked_to_end_takes_its_time() {
    let mut bench = Bench::new(config(), 1);
    bench.submit(1);
    let (_, record) = bench.assigns_one();
    bench.request(ControlRequest::InterruptTasks(vec![TaskSeq(0)]));
    bench.revoked(0, record.key, false);
    assert_eq!(interrupts(&mut bench), 1);
    assert_eq!(bench.controller.next_deadline(), None);
    bench.done(0, record.key, Status::Error, MS);
    assert_eq!(bench.ends(), [(0, Status::Cancelled)]);
}

#[test]
fn a_task_that_was_aborted_is_killed_though_its_client_has_left() {
    let mut bench = Bench::new(config(), 1);
    bench.submit(1);
    let (_, record) = bench.assigns_one();
    bench.request(ControlRequest::Cancel(vec![TaskSeq(0)]));
    bench.input(Input::ClientDown { client: CLIENT });
    bench.revoked(0, record.key, false);
    assert_eq!(interrupts(&mut bench), 1);
    bench.pass(config().interrupt_grace_ns);
    assert_eq!(kills(&mut bench), [(100, 9)]);
}

#[test]
fn a_timeout_counts_from_the_start_and_not_from_the_queue() {
    let mut bench = Bench::new(config(), 1);
    bench.submit(1);
    bench.submit_with(timeout(10 * MS));
    bench.schedule();
    let assigns = bench.assigns();
    bench.pass(100 * MS);
    assert_eq!(bench.revokes(), []);
    bench.done(0, assigns[0].1.key, Status::Ok, MS);
    bench.pass(10 * MS);
    assert_eq!(bench.revokes(), [(0, assigns[1].1.key)]);
    bench.revoked(0, assigns[1].1.key, true);
    assert_eq!(
        bench.assigned(),
        [(0, 1)],
        "it had not started: it starts anew"
    );
}

#[test]
fn a_timed_out_task_that_yields_to_the_interrupt_spares_its_engine() {
    let mut bench = Bench::new(config(), 1);
    bench.submit_with(timeout(10 * MS));
    bench.schedule();
    let (_, record) = bench.assigns().remove(0);
    bench.pass(10 * MS);
    bench.revoked(0, record.key, false);
    bench.done(0, record.key, Status::Error, 11 * MS);
    assert_eq!(bench.ends(), [(0, Status::Timeout)]);
    assert_eq!(bench.controller.next_deadline(), None);
}

#[test]
fn cancel_finds_tasks_wherever_they_are() {
    let mut bench = Bench::new(config(), 1);
    bench.submit(3);
    bench.submit_after(TaskOptions::default(), &[0], &[]);
    let assigns = bench.assigns();
    let all = (0..4).map(TaskSeq).collect();
    bench.request(ControlRequest::Cancel(all));
    assert_eq!(
        bench.ends(),
        [(2, Status::Cancelled), (3, Status::Cancelled)]
    );
    bench.revoked(0, assigns[1].1.key, true);
    assert_eq!(bench.ends(), [(1, Status::Cancelled)]);
    bench.revoked(0, assigns[0].1.key, false);
    assert_eq!(interrupts(&mut bench), 1);
    bench.done(0, assigns[0].1.key, Status::Error, MS);
    assert_eq!(bench.ends(), [(0, Status::Cancelled)]);
}

#[test]
fn a_cancelled_task_that_finished_keeps_its_value() {
    let mut bench = Bench::new(config(), 1);
    bench.submit(1);
    let (_, record) = bench.assigns().remove(0);
    bench.request(ControlRequest::Cancel(vec![TaskSeq(0)]));
    bench.done(0, record.key, Status::Ok, MS);
    assert_eq!(bench.ends(), [(0, Status::Ok)]);
    bench.revoked(0, record.key, false);
    assert_eq!(interrupts(&mut bench), 0);
}

#[test]
fn a_client_that_leaves_leaves_nothing_behind() {
    let mut bench = Bench::new(config(), 1);
    bench.submit(4);
    bench.submit_after(TaskOptions::default(), &[0], &[]);
    let assigns = bench.assigns();
    bench.input(Input::ClientDown { client: CLIENT });
    assert_eq!(
        bench.controller.counters().live,
        2,
        "only what is at the engine"
    );
    bench.revoked(0, assigns[1].1.key, true);
    bench.revoked(0, assigns[0].1.key, false);
    assert_eq!(interrupts(&mut bench), 0, "what runs is left to finish");
    bench.done(0, assigns[0].1.key, Status::Ok, MS);
    let counters = bench.controller.counters();
    assert_eq!(
        (counters.live, counters.functions, counters.discarded),
        (0, 0, 5)
    );
    assert_eq!(bench.results(), []);
}

#[test]
fn a_number_used_before_is_ignored() {
    let mut bench = Bench::new(config(), 1);
    bench.submit(1);
    bench.run_all(MS);
    bench.results();
    bench.submit_record(CLIENT, 0, broadleaf_proto::OptionsId(0), 0, &[], &[]);
    bench.schedule();
    assert_eq!(bench.assigned(), []);
    let absurd = u64::MAX;
    bench.submit_record(CLIENT, absurd, broadleaf_proto::OptionsId(0), 0, &[], &[]);
    assert_eq!(bench.controller.counters().ignored, 2);
}

fn output(bench: &mut Bench, engine: u32, task: TaskKey, stream: u8, bytes: &'static [u8]) {
    let engine = EngineId(engine);
    let record = OutputRecord {
        task: task.0,
        engine,
        stream,
        bytes: bytes.into(),
    };
    let host = HostId::CONTROLLER;
    bench.input(Input::Output {
        host,
        engine,
        record,
    });
}

fn outputs(bench: &mut Bench) -> Vec<(u64, u8, String)> {
    bench.take(|o| match o {
        Output::ClientOutput { record, .. } => Some((
            record.task,
            record.stream,
            String::from_utf8_lossy(&record.bytes).into_owned(),
        )),
        _ => None,
    })
}

fn congested(bench: &mut Bench, congested: bool) {
    let client = CLIENT;
    bench.input(Input::ClientCongested { client, congested });
}

#[test]
fn output_that_nobody_reads_is_dropped_and_said() {
    let mut bench = Bench::new(config(), 1);
    bench.submit(2);
    bench.schedule();
    let tasks = bench.assigns();
    let (first, second) = (tasks[0].1.key, tasks[1].1.key);
    output(&mut bench, 0, first, 1, b"one");
    congested(&mut bench, true);
    output(&mut bench, 0, first, 1, b"two");
    output(&mut bench, 0, first, 2, b"three");
    output(&mut bench, 0, first, 3, b"a message");
    output(&mut bench, 0, first, 3, b"another");
    congested(&mut bench, false);
    output(&mut bench, 0, first, 1, b"four");
    let said = |n: u64| format!("[broadleaf: {n} bytes of output were dropped here]\n");
    let text = |task, stream, text: &str| (task, stream, text.to_owned());
    assert_eq!(
        outputs(&mut bench),
        [
            text(0, 1, "one"),
            text(0, 1, &said(3)),
            text(0, 2, &said(5)),
            text(0, 2, &dropped_messages_notice(2)),
            text(0, 1, "four"),
        ]
    );
    congested(&mut bench, true);
    output(&mut bench, 0, first, 2, b"five");
    bench.done(0, first, Status::Ok, MS);
    let news = bench.take(|o| match o {
        Output::ClientOutput { record, .. } => Some(Some(record.stream)),
        Output::Result { .. } => Some(None),
        _ => None,
    });
    assert_eq!(news, [Some(2), None], "before the result");
    bench.done(0, second, Status::Ok, MS);
    assert_eq!(outputs(&mut bench), []);
}

#[test]
fn a_message_alone_that_nobody_reads_is_dropped_and_said() {
    let mut bench = Bench::new(config(), 1);
    bench.submit(1);
    bench.schedule();
    let task = bench.assigns()[0].1.key;
    congested(&mut bench, true);
    output(&mut bench, 0, task, 3, b"a message");
    assert_eq!(outputs(&mut bench), []);
    bench.done(0, task, Status::Ok, MS);
    assert_eq!(outputs(&mut bench), [(0, 2, dropped_messages_notice(1))]);
}
