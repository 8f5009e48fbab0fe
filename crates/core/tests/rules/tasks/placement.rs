use broadleaf_core::{Config, Input, Output};
use broadleaf_proto::control::{ControlReply, ControlRequest, RefusalReason};
use broadleaf_proto::ids::{ClientId, EngineId, OptionsId, TaskSeq};
use broadleaf_proto::{Status, TaskOptions};

use crate::bench::{Bench, CLIENT, MS, config, each, on, refusal};

#[test]
fn a_batch_is_spread_evenly() {
    let mut bench = Bench::new(config(), 4);
    bench.submit(6);
    let engines: Vec<u32> = bench.assigned().into_iter().map(|(e, _)| e).collect();
    assert_eq!(engines, [0, 1, 2, 3, 0, 1]);
}

#[test]
fn the_window_starts_small_and_doubles_up_to_the_target_over_the_task_time() {
    let mut bench = Bench::new(config(), 1);
    bench.submit(60);
    let mut outstanding = bench.assigns();
    assert_eq!(outstanding.len(), 2);
    for window in [4, 8, 16, 20, 20] {
        let (engine, record) = outstanding.remove(0);
        bench.done(
            engine,
            record.key,
            Status::Ok,
            config().prefetch_target_ns / 20,
        );
        outstanding.extend(bench.assigns());
        assert_eq!(outstanding.len(), window);
    }
}

#[test]
fn long_tasks_keep_one_ahead() {
    let mut bench = Bench::new(config(), 1);
    bench.submit(100);
    for _ in 0..5 {
        let (engine, record) = bench.assigns().remove(0);
        bench.done(engine, record.key, Status::Ok, 500 * MS);
        assert_eq!(bench.controller.counters().offered, 2);
    }
}

#[test]
fn an_idle_engine_takes_half_of_the_longest_tail_latest_first() {
    let mut bench = Bench::new(
        Config {
            prefetch_min: 5,
            steal_after_ns: 0,
            ..config()
        },
        1,
    );
    bench.submit(5);
    let offered = bench.assigns();
    bench.engine_up(1);
    bench.schedule();
    let expected = [(0, offered[4].1.key), (0, offered[3].1.key)];
    assert_eq!(bench.revokes(), expected);
    bench.schedule();
    assert_eq!(bench.revokes(), [], "not again while answers are due");

    bench.revoked(0, offered[4].1.key, true);
    assert_eq!(bench.assigned(), [(1, 4)]);
    bench.revoked(0, offered[3].1.key, false);
    assert_eq!(bench.assigned(), [], "it runs where it was");
    bench.done(0, offered[3].1.key, Status::Ok, MS);
    assert_eq!(bench.ends(), [(3, Status::Ok)]);
}

#[test]
fn a_short_tail_is_left_alone_until_its_head_takes_too_long() {
    let patient = Config {
        prefetch_min: 3,
        steal_after_ns: MS,
        ..config()
    };
    let mut bench = Bench::new(patient, 1);
    bench.submit(3);
    let offered = bench.assigns();
    bench.engine_up(1);
    bench.schedule();
    assert_eq!(bench.revokes(), [], "nobody knows yet that it takes long");
    bench.pass(MS / 2);
    bench.schedule();
    assert_eq!(bench.revokes(), []);
    bench.pass(MS / 2);
    bench.schedule();
    assert_eq!(bench.revokes(), [(0, offered[2].1.key)]);
}

#[test]
fn a_tail_of_long_tasks_is_taken_from_at_once() {
    let patient = Config {
        prefetch_min: 3,
        steal_after_ns: MS,
        ..config()
    };
    let mut bench = Bench::new(patient, 1);
    bench.submit(1);
    let first = bench.assigns().remove(0).1;
    bench.done(0, first.key, Status::Ok, 5 * MS);
    bench.submit(3);
    let offered = bench.assigns();
    bench.engine_up(1);
    bench.schedule();
    assert_eq!(bench.revokes(), [(0, offered[2].1.key)]);
}

#[test]
fn a_task_of_mode_each_is_never_taken_elsewhere() {
    let mut bench = Bench::new(config(), 1);
    bench.submit_with(each(&[0]));
    bench.submit_with(each(&[0]));
    bench.engine_up(1);
    bench.schedule();
    assert_eq!(bench.assigned(), [(0, 0), (0, 1)]);
    assert_eq!(bench.revokes(), []);
}

#[test]
fn higher_priority_first_and_clients_in_turn() {
    let one_by_one = Config {
        n_engines: 1,
        prefetch_min: 1,
        prefetch_max: 1,
        ..config()
    };
    let mut bench = Bench::new(one_by_one, 0);
    bench.client(ClientId(8));
    for _ in 0..3 {
        bench.submit_with(TaskOptions::default());
    }
    for seq in 10..12 {
        bench.submit_record(ClientId(8), seq, OptionsId(0), 0, &[], &[]);
    }
    let urgent = TaskOptions {
        priority: 5,
        ..TaskOptions::default()
    };
    bench.submit_with(urgent);
    bench.engine_up(0);
    bench.schedule();
    let mut order = Vec::new();
    while let Some((_, record)) = bench.assigns().first().cloned() {
        order.push(record.payload.bytes[0]);
        bench.done(0, record.key, Status::Ok, MS);
    }
    assert_eq!(order, [3, 10, 0, 11, 1, 2]);
}

#[test]
fn each_goes_before_balanced_in_submission_order() {
    let mut bench = Bench::new(config(), 1);
    bench.submit_with(TaskOptions::default());
    bench.submit_with(each(&[0]));
    bench.submit_with(each(&[0]));
    bench.schedule();
    assert_eq!(bench.assigned(), [(0, 1), (0, 2)]);
}

#[test]
fn an_unknown_target_is_refused_alone() {
    let mut bench = Bench::new(config(), 2);
    bench.submit_with(each(&[1, 9, 0]));
    bench.schedule();
    let results = bench.results();
    assert_eq!(results.len(), 1);
    assert_eq!(results[0].seq, TaskSeq(1));
    assert_eq!(
        refusal(&results[0]),
        RefusalReason::NoSuchEngine(EngineId(9))
    );
    assert_eq!(
        bench.assigns().iter().map(|a| a.0).collect::<Vec<_>>(),
        [0, 1]
    );
}

#[test]
fn restricted_tasks_wait_for_their_engines_without_holding_up_others() {
    let mut bench = Bench::new(config(), 2);
    for _ in 0..3 {
        bench.submit_with(on(&[1]));
    }
    bench.submit(2);
    assert_eq!(bench.assigned(), [(1, 0), (1, 1), (0, 3), (0, 4)]);
    let why = bench.request(ControlRequest::Explain(TaskSeq(2)));
    let expected = "waits for engine 1, all busy; next in its queue";
    assert_eq!(why, [ControlReply::Text(expected.into())]);
}

#[test]
fn without_any_engine_to_come_tasks_are_refused() {
    let mut bench = Bench::new(config(), 0);
    bench.submit(1);
    assert_eq!(refusal(&bench.results()[0]), RefusalReason::NoEngines);
}

#[test]
fn tasks_wait_for_engines_that_are_to_come() {
    let mut bench = Bench::new(
        Config {
            n_engines: 1,
            ..config()
        },
        0,
    );
    bench.submit(1);
    bench.submit_with(each(&[0]));
    assert_eq!(bench.results(), []);
    bench.engine_up(0);
    bench.schedule();
    assert_eq!(bench.assigned(), [(0, 1), (0, 0)]);
}

#[test]
fn a_congested_client_gets_nothing_assigned() {
    let mut bench = Bench::new(config(), 1);
    let congested = true;
    bench.input(Input::ClientCongested {
        client: CLIENT,
        congested,
    });
    bench.submit(1);
    bench.submit_with(each(&[0]));
    bench.schedule();
    assert_eq!(bench.assigned(), []);
    let congested = false;
    bench.input(Input::ClientCongested {
        client: CLIENT,
        congested,
    });
    bench.schedule();
    assert_eq!(bench.assigned(), [(0, 1), (0, 0)]);
}

#[test]
fn over_its_bound_a_client_is_refused() {
    let limits = Config {
        max_outstanding_tasks: 2,
        ..config()
    };
    let mut bench = Bench::new(limits, 1);
    bench.submit(3);
    let results = bench.results();
    assert_eq!(results.len(), 1);
    assert_eq!(refusal(&results[0]), RefusalReason::OverLimit);
    bench.run_all(MS);
    bench.submit(1);
    assert_eq!(bench.assigned().len(), 1);

    let limits = Config {
        max_outstanding_bytes: 12,
        ..config()
    };
    let mut bench = Bench::new(limits, 1);
    bench.submit(2);
    assert_eq!(refusal(&bench.results()[0]), RefusalReason::OverLimit);
}

#[test]
fn a_broadcast_over_the_bound_goes_to_all_or_to_none() {
    let limits = Config {
        max_outstanding_bytes: 2,
        ..config()
    };
    let mut bench = Bench::new(limits, 3);
    // The only request of a client is admitted, however large it is.
    bench.submit_with(each(&[0, 1, 2]));
    assert_eq!(bench.results().len(), 0);
    bench.submit_with(each(&[0, 1, 2]));
    let refused = bench.results();
    assert_eq!(refused.len(), 3);
    assert!(
        refused
            .iter()
            .all(|r| refusal(r) == RefusalReason::OverLimit)
    );
    bench.schedule();
    bench.run_all(MS);
    let ended = bench.results();
    assert_eq!(ended.len(), 3);
    assert!(ended.iter().all(|r| r.status == Status::Ok));
    bench.submit_with(each(&[0, 1, 2]));
    assert_eq!(bench.results().len(), 0);
}

#[test]
fn a_range_counts_once_however_many_tasks_name_it() {
    let limits = Config {
        max_outstanding_bytes: 100,
        ..config()
    };
    let mut bench = Bench::new(limits, 1);
    for _ in 0..5 {
        bench.submit_ranges(1, &[(7, 60)]);
    }
    // A range of another segment, or of another length, is a different range.
    bench.submit_ranges(1, &[(8, 60)]);
    bench.submit_ranges(1, &[(7, 59)]);
    let refused = bench.results();
    assert_eq!(refused.len(), 2);
    assert!(
        refused
            .iter()
            .all(|r| refusal(r) == RefusalReason::OverLimit)
    );
    bench.run_all(MS);
    assert_eq!(bench.results().len(), 5);
    // The range is released with the last task that named it.
    bench.submit_ranges(1, &[(8, 60)]);
    bench.submit_ranges(1, &[(9, 30)]);
    assert_eq!(bench.results().len(), 0);
}

#[test]
fn no_more_engines_are_looked_at_for_a_task_if_there_are_more() {
    // Not looked at by the bench itself, which checks every invariant after each input.
    let visits_of = |n_engines: u32| {
        let mut bench = Bench::new(config(), n_engines);
        let before = bench.controller.engine_visits();
        for _ in 0..10 {
            bench.submit(20);
            bench.submit_with(on(&[1, 2]));
            bench.submit_with(each(&[3]));
            bench.schedule();
            bench.run_all(5_000);
        }
        assert_eq!(bench.results().len(), 220);
        bench.controller.engine_visits() - before
    };
    for n_engines in [4, 40, 400] {
        let visits = visits_of(n_engines);
        assert!(
            visits <= 220 * 6,
            "{visits} visits with {n_engines} engines"
        );
    }
}

#[test]
fn calls_that_name_the_same_large_value_do_not_wait_for_each_other() {
    let limits = Config {
        max_outstanding_bytes: 100,
        ..config()
    };
    let mut bench = Bench::new(limits, 1);
    // More than the limit by itself; the other ranges of each call are its own.
    for call in 1..=4 {
        bench.submit_ranges(1, &[(7, 300), (7 + call, 20)]);
    }
    assert_eq!(bench.results().len(), 0);
    bench.submit_ranges(1, &[(7, 300), (20, 30)]);
    assert_eq!(refusal(&bench.results()[0]), RefusalReason::OverLimit);
    // Naming it twice does not make room.
    bench.submit_ranges(1, &[(7, 300), (7, 300), (20, 30)]);
    assert_eq!(refusal(&bench.results()[0]), RefusalReason::OverLimit);
    bench.run_all(MS);
    assert_eq!(bench.results().len(), 4);
    bench.submit_ranges(1, &[(20, 30)]);
    assert_eq!(bench.results().len(), 0);
}

#[test]
fn very_many_bytes_need_not_wait_for_a_few() {
    let limits = Config {
        max_outstanding_bytes: 100,
        ..config()
    };
    let mut bench = Bench::new(limits, 1);
    bench.submit_ranges(0, &[]);
    bench.submit_ranges(10, &[]);
    bench.submit_ranges(1, &[(7, 1_000)]);
    assert_eq!(bench.results().len(), 0);
    bench.submit_ranges(1, &[(8, 1_000)]);
    assert_eq!(refusal(&bench.results()[0]), RefusalReason::OverLimit);
}

#[test]
fn a_function_is_sent_once_to_each_engine_and_freed_with_its_last_user() {
    let mut bench = Bench::new(
        Config {
            function_cache_bytes: 6,
            kept_results_bytes: 0,
            ..config()
        },
        2,
    );
    bench.client(ClientId(8));
    bench.submit(4);
    let sent = bench.take(|output| match output {
        Output::Function { engine, .. } => Some(engine.0),
        _ => None,
    });
    assert_eq!(sent, [0, 1]);
    assert_eq!(
        bench.controller.counters().functions,
        1,
        "same content, kept once"
    );
    bench.function(CLIENT, 1, b"too much");
    bench.submit_record(CLIENT, 50, OptionsId(0), 1, &[], &[]);
    assert_eq!(refusal(&bench.results()[0]), RefusalReason::OverLimit);
    bench.submit_record(CLIENT, 51, OptionsId(0), 77, &[], &[]);
    assert_eq!(refusal(&bench.results()[0]), RefusalReason::Undefined);
    bench.run_all(MS);
    for client in [CLIENT, ClientId(8)] {
        bench.input(Input::ClientDown { client });
    }
    assert_eq!(bench.controller.counters().functions, 0);
    assert_eq!(bench.controller.counters().function_bytes, 0);
}
