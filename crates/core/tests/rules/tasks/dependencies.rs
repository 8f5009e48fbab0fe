use broadleaf_proto::control::{ControlReply, ControlRequest, RefusalReason};
use broadleaf_proto::ids::TaskSeq;
use broadleaf_proto::{DependencyRule, Status, TaskOptions};

use crate::bench::{Bench, MS, config, on, refusal};

fn plain() -> TaskOptions {
    TaskOptions::default()
}

#[test]
fn a_task_waits_for_those_it_comes_after() {
    let mut bench = Bench::new(config(), 2);
    bench.submit(2);
    let first = bench.assigns();
    bench.submit_after(plain(), &[0, 1], &[]);
    bench.schedule();
    let why = bench.request(ControlRequest::Explain(TaskSeq(2)));
    assert_eq!(
        why,
        [ControlReply::Text("waits after task t0 and 1 more".into())]
    );
    bench.done(first[0].0, first[0].1.key, Status::Ok, MS);
    assert_eq!(bench.assigned(), []);
    bench.done(first[1].0, first[1].1.key, Status::Ok, MS);
    assert_eq!(bench.assigned().len(), 1);
}

#[test]
fn a_failed_dependency_is_impossible_down_the_chain() {
    let mut bench = Bench::new(config(), 1);
    bench.submit(1);
    for seq in 0..50 {
        bench.submit_after(plain(), &[seq], &[]);
    }
    let (engine, record) = bench.assigns().remove(0);
    bench.done(engine, record.key, Status::Error, MS);
    let results = bench.results();
    assert_eq!(results.len(), 51);
    assert_eq!(refusal(&results[50]), RefusalReason::ImpossibleDependency);
}

#[test]
fn a_failure_counts_if_the_rule_says_so() {
    let mut bench = Bench::new(config(), 1);
    bench.submit(1);
    let after = DependencyRule {
        all: true,
        success: false,
        failure: true,
    };
    bench.submit_after(TaskOptions { after, ..plain() }, &[0], &[]);
    let (engine, record) = bench.assigns().remove(0);
    bench.done(engine, record.key, Status::Error, MS);
    assert_eq!(bench.assigned(), [(0, 1)]);
}

#[test]
fn dependencies_on_itself_later_tasks_and_the_unknown() {
    let mut bench = Bench::new(config(), 1);
    bench.submit_after(plain(), &[0], &[]);
    bench.submit_after(plain(), &[9], &[]);
    let results = bench.results();
    assert_eq!(refusal(&results[0]), RefusalReason::InvalidDependency);
    assert_eq!(refusal(&results[1]), RefusalReason::InvalidDependency);
    bench.submit_record(
        crate::bench::CLIENT,
        10,
        broadleaf_proto::OptionsId(0),
        0,
        &[5],
        &[],
    );
    assert_eq!(
        refusal(&bench.results()[0]),
        RefusalReason::ImpossibleDependency
    );
}

#[test]
fn a_task_runs_on_the_engine_of_the_one_it_follows() {
    let mut bench = Bench::new(config(), 3);
    bench.submit_with(on(&[2]));
    bench.schedule();
    bench.run_all(MS);
    for _ in 0..2 {
        bench.submit_after(plain(), &[], &[0]);
    }
    bench.schedule();
    assert_eq!(bench.assigned(), [(2, 1), (2, 2)]);
}

#[test]
fn tasks_on_two_engines_cannot_both_be_followed() {
    let mut bench = Bench::new(config(), 2);
    bench.submit_with(on(&[0]));
    bench.submit_with(on(&[1]));
    bench.schedule();
    bench.run_all(MS);
    bench.results();
    bench.submit_after(plain(), &[], &[0, 1]);
    assert_eq!(
        refusal(&bench.results()[0]),
        RefusalReason::ImpossibleDependency
    );
}

#[test]
fn dependencies_may_take_only_so_long() {
    let mut bench = Bench::new(config(), 1);
    bench.submit(1);
    let options = TaskOptions {
        dependency_timeout_ns: Some(50 * MS),
        ..plain()
    };
    bench.submit_after(options, &[0], &[]);
    bench.pass(49 * MS);
    assert_eq!(bench.ends(), []);
    bench.pass(MS);
    assert_eq!(bench.ends(), [(1, Status::Timeout)]);
    bench.run_all(MS);
    assert_eq!(bench.ends(), [(0, Status::Ok)]);
    assert_eq!(bench.controller.next_deadline(), None);
}
