//! What a client's messages may cost: they are charged before memory is taken, and refused to that
//! client alone.

use broadleaf_core::{Config, Input, Output};
use broadleaf_proto::control::{ControlReply, ControlRequest, DefineOptions, RefusalReason};
use broadleaf_proto::ids::{ClientId, EngineId, FunctionId, HostId, OptionsId, TaskSeq};
use broadleaf_proto::task::Status;
use broadleaf_proto::{Mode, RefusedRun, TargetSet, TaskOptions};

use crate::bench::{Bench, CLIENT, config, each, refusal};

/// Every engine that could exist.
fn everywhere(mode: Mode) -> TaskOptions {
    TaskOptions {
        mode,
        targets: TargetSet::Ranges(vec![(EngineId(0), EngineId(65_536))]),
        ..TaskOptions::default()
    }
}

fn define(bench: &mut Bench, id: u32, options: TaskOptions) {
    let id = OptionsId(id);
    bench.input(Input::Options {
        client: CLIENT,
        define: DefineOptions { id, options },
    });
}

fn runs(bench: &mut Bench) -> Vec<RefusedRun> {
    bench.take(|output| match output {
        Output::Refused { record, .. } => Some(record.clone()),
        _ => None,
    })
}

#[test]
fn a_broadcast_that_is_refused_is_answered_in_a_few_bytes() {
    let mut bench = Bench::new(config(), 1);
    for (function, reason) in [
        (5, RefusalReason::Undefined),
        (0, RefusalReason::NoSuchEngine(EngineId(1))),
    ] {
        define(&mut bench, 1, everywhere(Mode::Each));
        let seq = 1_000_000 * u64::from(function + 1);
        bench.submit_record(CLIENT, seq, OptionsId(1), function, &[], &[]);
        let runs = runs(&mut bench);
        let [run] = runs.as_slice() else {
            panic!("{} runs", runs.len());
        };
        assert_eq!(run.reason, reason);
        let there = u64::from(function == 0);
        assert_eq!(u64::from(run.n_tasks), 65_536 - there);
        assert_eq!(run.seq.0, seq + there);
        let last = run.results().last().map(|r| r.seq.0);
        assert_eq!(last, Some(seq + 65_535));
    }
}

#[test]
fn refused_runs_are_remembered_as_refused() {
    let mut bench = Bench::new(config(), 1);
    define(&mut bench, 1, everywhere(Mode::Each));
    bench.submit_record(CLIENT, 100, OptionsId(1), 9, &[], &[]);
    bench.results();
    // A number of that run is not accepted again.
    bench.submit_record(CLIENT, 60_000, OptionsId(0), 0, &[], &[]);
    assert_eq!(bench.results(), []);
    // A task that may run after a failure does run.
    let mut after = TaskOptions::default();
    after.after.failure = true;
    define(&mut bench, 2, after);
    bench.submit_record(CLIENT, 70_000, OptionsId(2), 0, &[60_000], &[]);
    bench.schedule();
    assert_eq!(bench.assigned().len(), 1);
}

#[test]
fn targets_that_are_gone_in_any_order_cost_no_more_than_those_that_are_there() {
    let mut bench = Bench::new(config(), 2);
    bench.engine_down(1, &[]);
    bench.out.clear();
    let targets: Vec<u32> = (0..20_000).map(|n| [1, 5][n % 2]).collect();
    bench.submit_with(each(&targets));
    assert!(runs(&mut bench).len() <= 65);
    // All parts are answered, numbered in order.
    bench.submit_with(each(&targets));
    let seqs: Vec<u64> = bench.results().iter().map(|r| r.seq.0).collect();
    assert_eq!(seqs, (20_000..40_000).collect::<Vec<_>>());
}

#[test]
fn a_record_is_taken_whole_or_not_at_all() {
    let limits = Config {
        max_outstanding_tasks: 2,
        ..config()
    };
    let mut bench = Bench::new(limits, 3);
    bench.submit_with(each(&[0, 1, 2]));
    let results = bench.results();
    assert_eq!(results.len(), 3);
    assert!(
        results
            .iter()
            .all(|r| refusal(r) == RefusalReason::OverLimit)
    );
    bench.submit_with(each(&[0, 1]));
    assert_eq!(bench.results(), []);
}

#[test]
fn sets_of_options_count_for_their_client() {
    let mut bench = Bench::new(config(), 1);
    // Every other engine, so that there are many ranges.
    let many: Vec<u32> = (0..30_000).map(|n| 2 * n).collect();
    let mut options = each(&many);
    options.mode = Mode::Balanced;
    let mut n_taken = 0;
    for id in 1..1000 {
        define(&mut bench, id, options.clone());
        bench.submit_record(CLIENT, id.into(), OptionsId(id), 0, &[], &[]);
        if bench.results().is_empty() {
            n_taken += 1;
        }
        bench.controller.check().unwrap();
    }
    assert!((100..400).contains(&n_taken), "{n_taken}");
    // Another client has room.
    bench.client(ClientId(8));
    let define = DefineOptions {
        id: OptionsId(1),
        options: options.clone(),
    };
    let client = ClientId(8);
    bench.input(Input::Options { client, define });
    bench.submit_record(client, 0, OptionsId(1), 0, &[], &[]);
    assert_eq!(bench.results(), []);
    // A range of all engines takes hardly any room.
    for id in 2..10_000 {
        let options = everywhere(Mode::Balanced);
        let id = OptionsId(id);
        let define = DefineOptions { id, options };
        bench
            .controller
            .on_input(bench.now, Input::Options { client, define }, &mut bench.out);
    }
    bench.submit_record(client, 1, OptionsId(9_999), 0, &[], &[]);
    assert_eq!(bench.results(), []);
}

#[test]
fn a_label_and_the_name_of_a_preparation_have_their_length() {
    let mut bench = Bench::new(config(), 1);
    let label = "x".repeat(1025);
    let options = TaskOptions {
        label: label.clone(),
        ..TaskOptions::default()
    };
    define(&mut bench, 1, options);
    bench.submit_record(CLIENT, 0, OptionsId(1), 0, &[], &[]);
    assert_eq!(refusal(&bench.results()[0]), RefusalReason::OverLimit);
    bench.input(Input::Request {
        client: CLIENT,
        number: 1,
        request: ControlRequest::Prepare {
            name: label,
            function: FunctionId(0),
            reload: false,
        },
    });
    let failed = |o: &Output| matches!(o, Output::Reply { reply: ControlReply::Failed(text), .. } if text.contains("1024"));
    assert!(bench.out.iter().any(failed), "{:?}", bench.out);
}

#[test]
fn dependencies_count_as_bytes() {
    let limits = Config {
        max_outstanding_bytes: 1600,
        ..config()
    };
    let mut bench = Bench::new(limits, 1);
    // The same task, again and again: the list is just as long.
    bench.submit_record(CLIENT, 0, OptionsId(0), 0, &[], &[]);
    bench.submit_record(CLIENT, 1, OptionsId(0), 0, &[0; 50], &[]);
    assert_eq!(bench.results(), []);
    bench.submit_record(CLIENT, 2, OptionsId(0), 0, &[0; 50], &[]);
    assert_eq!(refusal(&bench.results()[0]), RefusalReason::OverLimit);
    bench.schedule();
    bench.run_all(1);
    // Also without other tasks: the dependencies of a broadcast count once for each part.
    bench.results();
    bench.submit_record(CLIENT, 3, OptionsId(0), 0, &[0; 101], &[]);
    assert_eq!(refusal(&bench.results()[0]), RefusalReason::OverLimit);
    let options = TaskOptions {
        mode: Mode::Each,
        targets: TargetSet::Ranges(vec![(EngineId(0), EngineId(1)); 3]),
        ..TaskOptions::default()
    };
    define(&mut bench, 1, options);
    bench.submit_record(CLIENT, 10, OptionsId(1), 0, &[0; 40], &[]);
    assert_eq!(bench.results().len(), 3);
}

#[test]
fn functions_count_for_each_client_that_defines_them() {
    let limits = Config {
        function_cache_bytes: 10,
        ..config()
    };
    let mut bench = Bench::new(limits, 1);
    let other = ClientId(8);
    bench.client(other);
    bench.function(CLIENT, 1, b"123456");
    bench.function(CLIENT, 2, b"7");
    bench.function(other, 2, b"654321");
    for (client, function, expected) in [
        (CLIENT, 1, None),
        (CLIENT, 2, Some(RefusalReason::OverLimit)),
        (other, 2, None),
    ] {
        bench.submit_record(client, function.into(), OptionsId(0), function, &[], &[]);
        let refused = bench.results().first().map(refusal);
        assert_eq!(refused, expected, "{client:?} {function}");
    }
    // A function that is defined twice stays as it was.
    bench.function(CLIENT, 1, b"x");
    assert_eq!(bench.controller.counters().functions, 3);
}

#[test]
fn a_kept_result_is_not_sent_more_often_than_there_is_room() {
    let limits = Config {
        max_outstanding_bytes: 100,
        ..config()
    };
    let mut bench = Bench::new(limits, 1);
    bench.submit(1);
    let (engine, record) = bench.assigns_one();
    let done = broadleaf_proto::DoneRecord {
        key: record.key,
        status: Status::Ok,
        started_ns: 0,
        completed_ns: 0,
        cpu_ns: 0,
        payload: broadleaf_proto::Payload {
            bytes: bytes::Bytes::from(vec![7; 40]),
            ..Default::default()
        },
    };
    let engine = EngineId(engine);
    bench.input(Input::Done {
        host: HostId::CONTROLLER,
        engine,
        record: done,
        copy: None,
    });
    bench.results();
    for (first, expected) in [(TaskSeq(1000), 2), (TaskSeq(u64::MAX), 0)] {
        bench.input(Input::Request {
            client: CLIENT,
            number: 2,
            request: ControlRequest::Subscribe {
                first,
                tasks: vec![(CLIENT, TaskSeq(0)); 5],
            },
        });
        let results = bench.results();
        assert_eq!(results.len(), 5);
        let sent = results.iter().filter(|r| r.status == Status::Ok).count();
        assert_eq!(sent, expected);
    }
}
