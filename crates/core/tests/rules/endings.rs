use broadleaf_core::{Input, Output};
use broadleaf_proto::control::{ControlRequest, RefusalReason};
use broadleaf_proto::ids::TaskSeq;
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
    let found = bench.take(|o| matches!(o, Output::Interrupt { .. }).then_some(()));
    found.len()
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
        bench.done(engine, record.key, Status::Unmet, MS);
    }
    tried.sort_unstable();
    assert_eq!(tried, [0, 1, 2]);
    assert_eq!(refusal(&bench.results()[0]), RefusalReason::UnmetEverywhere);

    bench.submit_with(each(&[1]));
    bench.schedule();
    let (engine, record) = bench.assigns().remove(0);
    bench.done(engine, record.key, Status::Unmet, MS);
    assert_eq!(refusal(&bench.results()[0]), RefusalReason::UnmetEverywhere);
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
    let killed = bench.take(|o| match o {
        Output::Kill { pid, signal, .. } => Some((*pid, *signal)),
        _ => None,
    });
    assert_eq!(killed, [(100, 9)]);
    bench.engine_down(0, &[]);
    assert_eq!(bench.ends(), [(0, Status::Timeout)]);
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
