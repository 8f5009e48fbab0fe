use broadleaf_proto::control::ControlRequest;
use broadleaf_proto::error_head::ErrorHead;
use broadleaf_proto::ids::TaskSeq;
use broadleaf_proto::{Status, TaskOptions};
use bytes::Bytes;

use crate::bench::{Bench, MS, config};

fn record(kind: u64, n_items: u32, text: &'static [u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let text = Bytes::from_static(text);
    ErrorHead {
        kind,
        n_items,
        text,
    }
    .encode(&mut bytes);
    bytes
}

/// Submits a task, and lets it raise.
fn raise(bench: &mut Bench, record: Vec<u8>) -> u32 {
    bench.submit(1);
    bench.schedule();
    let (engine, task) = bench.assigns().remove(0);
    bench.raised(engine, task.key, record);
    engine
}

#[test]
fn errors_are_counted_by_kind() {
    let mut bench = Bench::new(config(), 2);
    raise(&mut bench, record(1, 1, b"first"));
    raise(&mut bench, record(2, 5, b""));
    bench.now += MS;
    let engine = raise(&mut bench, record(1, 3, b"second"));
    raise(&mut bench, b"no head".to_vec());
    let failures = bench.controller.failures();
    let counts = failures.iter().map(|f| (f.kind, f.tasks, f.items));
    let mut counts: Vec<_> = counts.collect();
    counts.sort_unstable();
    assert_eq!(counts, [(0, 1, 1), (1, 2, 4), (2, 1, 5)]);
    let first = failures.iter().find(|f| f.kind == 1).unwrap();
    assert_eq!((&first.text[..], first.engine.0), (&b"first"[..], engine));
    assert_eq!(first.last_ns - first.first_ns, MS);
}

#[test]
fn a_description_that_comes_later_is_taken() {
    let mut bench = Bench::new(config(), 1);
    raise(&mut bench, record(1, 1, b""));
    raise(&mut bench, record(1, 1, b"later"));
    assert_eq!(&bench.controller.failures()[0].text[..], b"later");
}

#[test]
fn the_kind_that_was_seen_longest_ago_is_forgotten() {
    let mut bench = Bench::new(config(), 1);
    for kind in 1..=130 {
        bench.now += MS;
        raise(&mut bench, record(kind, 1, b""));
    }
    let failures = bench.controller.failures();
    assert_eq!(failures.len(), 128);
    assert_eq!((failures[0].kind, failures[127].kind), (130, 3));
}

#[test]
fn what_an_abort_ends_is_no_failure() {
    let mut bench = Bench::new(config(), 1);
    bench.submit(1);
    bench.schedule();
    let (engine, task) = bench.assigns().remove(0);
    bench.request(ControlRequest::Cancel(vec![TaskSeq(0)]));
    bench.raised(engine, task.key, record(1, 1, b""));
    assert_eq!(bench.ends(), [(0, Status::Cancelled)]);
    assert_eq!(
        bench.controller.failures(),
        [] as [&broadleaf_core::Failure; 0]
    );
}

#[test]
fn unfinished_tasks_of_a_function_are_counted() {
    let mut bench = Bench::new(config(), 1);
    bench.submit_with(TaskOptions::default());
    bench.submit_with(TaskOptions::default());
    let unfinished = |bench: &Bench| -> Vec<u64> {
        let called = bench.controller.called_functions();
        called.map(|f| f.unfinished).collect()
    };
    assert_eq!(unfinished(&bench), [2]);
    bench.schedule();
    let (engine, task) = bench.assigns().remove(0);
    bench.done(engine, task.key, Status::Ok, MS);
    assert_eq!(unfinished(&bench), [1]);
}
