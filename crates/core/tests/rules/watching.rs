use broadleaf_core::{Course, Times};
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
            assert_ne!(bench.controller.course(record.key).function, 0);
            bench.done(engine, record.key, status, ms * MS);
            assert_eq!(
                bench.controller.course(record.key),
                Course::default(),
                "it is over"
            );
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
    assert_eq!(bench.controller.course(TaskKey(99)), Course::default());
}

#[test]
fn a_task_is_known_with_the_times_at_which_it_came_and_was_sent_on() {
    let mut bench = Bench::new(config(), 1);
    bench.submit(1);
    let (came, (engine, first)) = (bench.now, bench.assigns_one());
    bench.pass(3 * MS);
    bench.submit(2);
    let came_second = bench.now;
    let course = bench.controller.course(first.key);
    assert_eq!((course.received_ns, course.sent_ns), (came, came));
    assert_eq!(course.in_bytes, first.payload.weight_bytes());
    // The window of a new engine has no room for both: the last waits for the end of the first.
    let mut keys: Vec<_> = bench.assigns().into_iter().map(|(_, r)| r.key).collect();
    bench.pass(4 * MS);
    bench.done(engine, first.key, Status::Ok, MS);
    keys.extend(bench.assigns().into_iter().map(|(_, r)| r.key));
    let courses: Vec<_> = keys
        .iter()
        .map(|key| bench.controller.course(*key))
        .collect();
    assert!(courses.iter().all(|c| c.received_ns == came_second));
    let last = courses.iter().map(|c| c.sent_ns).max();
    assert_eq!(
        last,
        Some(bench.now),
        "the last was sent on when there was room"
    );
}
