//! Short tasks go to engines that are awake, and nobody waits behind one that turns out to be long.

use broadleaf_core::{Config, Input};
use broadleaf_proto::host::EngineReport;
use broadleaf_proto::ids::HostId;
use broadleaf_proto::task::AssignRecord;
use broadleaf_proto::{Status, TaskOptions};

use crate::bench::{Bench, MS, each, info};

const US: u64 = 1_000;

/// Two cores, and windows that are large from the start. More than 50 us of work on an engine wake another.
fn two_cores() -> Config {
    Config {
        n_cores: 2,
        prefetch_min: 100,
        ..Config::default()
    }
}

/// A bench whose function has taken this long so far.
fn bench_of(config: Config, n_engines: u32, task_ns: u64) -> Bench {
    let mut bench = Bench::new(config, n_engines);
    bench.submit(1);
    bench.run_all(task_ns);
    bench.results();
    bench.out.clear();
    bench
}

/// How many tasks each engine was given.
fn counts(assigned: &[(u32, AssignRecord)], n_engines: u32) -> Vec<usize> {
    let of = |engine| assigned.iter().filter(|(at, _)| *at == engine).count();
    (0..n_engines).map(of).collect()
}

#[test]
fn short_tasks_fill_one_engine_and_wake_another_beyond_the_bound() {
    // Each counts as 4 us + 1 us.
    let mut bench = bench_of(two_cores(), 4, 4 * US);
    let mut of_batch = |n| {
        bench.submit(n);
        let assigned = bench.assigns();
        let counts = counts(&assigned, 4);
        for (engine, record) in assigned {
            bench.done(engine, record.key, Status::Ok, 4 * US);
        }
        counts
    };
    // The engine that ran the task before is used again.
    assert_eq!(of_batch(1), [1, 0, 0, 0]);
    assert_eq!(of_batch(8), [8, 0, 0, 0]);
    let mut counts = of_batch(16);
    counts.sort_unstable();
    assert_eq!(counts[..2], [0, 0]);
    assert!(counts[3] <= 12, "{counts:?}");
    // There are two cores, so the others sleep on.
    let mut counts = of_batch(60);
    counts.sort_unstable();
    assert_eq!(counts[..2], [0, 0]);
    assert!(counts[2] >= 28, "{counts:?}");
}

#[test]
fn long_tasks_unknown_ones_and_all_without_stealing_are_spread() {
    let spread = [2, 2, 2, 2];
    let mut bench = Bench::new(two_cores(), 4);
    bench.submit(8);
    assert_eq!(counts(&bench.assigns(), 4), spread, "of unknown time");

    let mut bench = bench_of(two_cores(), 4, 25 * US);
    bench.submit(8);
    assert_eq!(counts(&bench.assigns(), 4), spread, "long");

    for config in [
        Config {
            steal: false,
            ..two_cores()
        },
        Config {
            wake_cost_ns: 0,
            ..two_cores()
        },
    ] {
        let mut bench = bench_of(config, 4, 4 * US);
        bench.submit(8);
        assert_eq!(counts(&bench.assigns(), 4), spread);
    }
}

#[test]
fn the_first_run_on_an_engine_does_not_make_a_function_long() {
    let mut bench = Bench::new(two_cores(), 100);
    let mut tried = [false; 100];
    for _ in 0..20 {
        bench.submit(1);
        let (engine, record) = bench.assigns_one();
        let is_first = !std::mem::replace(&mut tried[engine as usize], true);
        let task_ns = if is_first { 500 * US } else { 4 * US };
        bench.done(engine, record.key, Status::Ok, task_ns);
    }
    assert_eq!(tried.iter().filter(|was| **was).count(), 1);
    // A burst wakes a second one, whose first run is no reason to wake others.
    for _ in 0..3 {
        bench.submit(60);
        for (engine, record) in bench.assigns() {
            let is_first = !std::mem::replace(&mut tried[engine as usize], true);
            let task_ns = if is_first { 500 * US } else { 4 * US };
            bench.done(engine, record.key, Status::Ok, task_ns);
        }
    }
    assert_eq!(tried.iter().filter(|was| **was).count(), 2);
}

#[test]
fn an_engine_that_waits_for_the_processor_does_not_make_a_function_long() {
    let mut bench = bench_of(two_cores(), 100, 4 * US);
    let mut used = [false; 100];
    let mut n_ended = 0;
    for _ in 0..20 {
        bench.submit(10);
        for (engine, record) in bench.assigns() {
            used[engine as usize] = true;
            n_ended += 1;
            let task_ns = if n_ended % 10 == 0 { 4 * MS } else { 4 * US };
            bench.done(engine, record.key, Status::Ok, task_ns);
        }
    }
    assert!(used.iter().filter(|was| **was).count() <= 2);
    // Where all are long, that is known soon.
    for _ in 0..12 {
        bench.submit(1);
        let (engine, record) = bench.assigns_one();
        bench.done(engine, record.key, Status::Ok, 4 * MS);
    }
    bench.submit(100);
    assert_eq!(counts(&bench.assigns(), 100), [1; 100]);
}

#[test]
fn short_tasks_wait_for_room_on_engines_that_are_awake() {
    let one_core = Config {
        n_cores: 1,
        prefetch_min: 2,
        ..Config::default()
    };
    let patience_ns = one_core.steal_after_ns;
    let mut bench = bench_of(one_core, 3, 4 * US);
    bench.submit(10);
    let first = bench.assigns();
    let at = first[0].0;
    assert!(first.iter().all(|(engine, _)| *engine == at));
    assert!(first.len() < 10);
    bench.controller.check_waits(bench.now).unwrap();
    let deadline = bench.controller.next_deadline();
    assert_eq!(deadline, Some(bench.now + patience_ns));
    bench.done(at, first[0].1.key, Status::Ok, 4 * US);
    let next = bench.assigns();
    assert!(!next.is_empty() && next.iter().all(|(engine, _)| *engine == at));
    // Its next task takes long: the others go elsewhere.
    bench.pass(patience_ns);
    let elsewhere = bench.assigns();
    assert!(!elsewhere.is_empty());
    assert!(elsewhere.iter().all(|(engine, _)| *engine != at));
    assert!(!bench.revokes().is_empty());
    bench.controller.check_waits(bench.now).unwrap();
}

#[test]
fn engines_that_are_tried_double_while_short_tasks_turn_out_to_be_long() {
    let patience_ns = two_cores().steal_after_ns;
    let mut bench = bench_of(two_cores(), 64, 4 * US);
    bench.submit(64);
    let mut begun = std::collections::BTreeSet::new();
    for tried in [2, 6, 14, 30, 62] {
        loop {
            let assigned = bench.assigns();
            begun.extend(assigned.iter().map(|(engine, _)| *engine));
            let revokes = bench.revokes();
            if assigned.is_empty() && revokes.is_empty() {
                break;
            }
            for (engine, key) in revokes {
                bench.revoked(engine, key, true);
            }
        }
        assert!(begun.len() >= tried, "{} of {tried} engines", begun.len());
        bench.controller.check_waits(bench.now).unwrap();
        bench.pass(patience_ns);
    }
}

#[test]
fn tasks_that_were_believed_short_are_taken_over_once_their_function_is_known_better() {
    let mut bench = bench_of(two_cores(), 4, 4 * US);
    bench.submit(100);
    let assigned = bench.assigns();
    let (at, first) = assigned[0].clone();
    bench.done(at, first.key, Status::Ok, 300 * US);
    assert!(!bench.revokes().is_empty());
    bench.controller.check_waits(bench.now).unwrap();
}

#[test]
fn a_long_task_takes_its_engine_out_of_those_for_short_ones() {
    let mut bench = bench_of(two_cores(), 3, 4 * US);
    let client = crate::bench::CLIENT;
    bench.function(client, 1, b"another");
    let id = bench.options(TaskOptions::default());
    bench.submit_record(client, 500, id, 1, &[], &[]);
    bench.schedule();
    let (long_at, long) = bench.assigns_one();
    bench.submit(100);
    let assigned = bench.assigns();
    assert!(assigned.iter().all(|(engine, _)| *engine != long_at));
    bench.done(long_at, long.key, Status::Ok, 1_000 * MS);
}

#[test]
fn tasks_of_one_engine_count_for_its_work() {
    let mut bench = bench_of(two_cores(), 2, 4 * US);
    for _ in 0..12 {
        bench.submit_with(each(&[0]));
    }
    bench.schedule();
    assert_eq!(counts(&bench.assigns(), 2), [12, 0]);
    bench.submit(2);
    assert_eq!(counts(&bench.assigns(), 2), [0, 2]);
}

#[test]
fn each_host_has_cores_of_its_own() {
    let mut bench = bench_of(
        Config {
            n_cores: 1,
            ..two_cores()
        },
        2,
        4 * US,
    );
    let host = HostId(1);
    bench.input(Input::HostUp {
        host,
        name: "there".into(),
        n_engines: 3,
        n_cores: 2,
        ends_in_ns: None,
    });
    for engine in 2..5 {
        let report = EngineReport::Up(info(engine));
        bench.input(Input::Report { host, report });
    }
    bench.out.clear();
    bench.submit(60);
    let counts = counts(&bench.assigns(), 5);
    let n_awake =
        |engines: core::ops::Range<usize>| counts[engines].iter().filter(|n| **n > 0).count();
    assert_eq!((n_awake(0..2), n_awake(2..5)), (1, 2), "{counts:?}");
}
