use broadleaf_core::Times;
use broadleaf_proto::Status;
use broadleaf_proto::ids::TaskKey;

use crate::bench::{Bench, MS, config};

#[test]
fn what_a_functions_tasks_took_is_counted() {
    let mut bench = Bench::new(config(), 1);
    assert_eq!(bench.controller.busiest_functions(9), []);
    bench.submit(3);
    let mut ends = [(Status::Ok, 2), (Status::Error, 7), (Status::Ok, 4)].into_iter();
    loop {
        let assigns = bench.assigns();
        if assigns.is_empty() {
            break;
        }
        for (engine, record) in assigns {
            let (status, ms) = ends.next().unwrap();
            assert_ne!(bench.controller.function_tag(record.key), 0);
            bench.done(engine, record.key, status, ms * MS);
            assert_eq!(bench.controller.function_tag(record.key), 0, "it is over");
        }
    }
    let busiest = bench.controller.busiest_functions(9);
    assert_eq!(busiest.len(), 1);
    assert_eq!(&busiest[0].name[..], b"body");
    let times = Times {
        tasks: 3,
        errors: 1,
        total_ns: 13 * MS,
        max_ns: 7 * MS,
    };
    assert_eq!(busiest[0].times, times);
    assert_eq!(bench.controller.busiest_functions(0), []);
    let called: Vec<_> = bench.controller.called_functions().collect();
    assert_eq!(called, busiest);
}

#[test]
fn an_engine_says_what_it_runs_and_since_when() {
    let mut bench = Bench::new(config(), 2);
    let running = |bench: &Bench| {
        let engines = bench.controller.counters().engines;
        engines.into_iter().map(|e| e.running).collect::<Vec<_>>()
    };
    assert_eq!(running(&bench), [None, None]);
    bench.submit(1);
    let began = bench.now;
    let (engine, record) = bench.assigns_one();
    bench.pass(5 * MS);
    let runs = running(&bench);
    let (name, since) = runs[engine as usize].as_ref().unwrap();
    assert_eq!((&name[..], *since), (&b"body"[..], began));
    assert_eq!(runs[1 - engine as usize], None);
    bench.done(engine, record.key, Status::Ok, MS);
    assert_eq!(running(&bench), [None, None]);
    assert_eq!(bench.controller.counters().engines[0].host, "here");
    assert_eq!(bench.controller.function_tag(TaskKey(99)), 0);
}
