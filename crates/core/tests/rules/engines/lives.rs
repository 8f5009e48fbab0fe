use broadleaf_core::{Config, Input, Output};
use broadleaf_proto::control::{
    ControlReply, ControlRequest, DeathCause, Event, ForkServerEvent, ForkServerOrder,
    RefusalReason,
};
use broadleaf_proto::host::EngineOrder;
use broadleaf_proto::ids::EngineId;
use broadleaf_proto::{Status, TargetSet, TaskOptions};

use crate::bench::{Bench, MS, certificate, config, each, refusal};

/// Engines started by a fork server.
fn spawned(mut config: Config, n_engines: u32) -> Bench {
    config.n_engines = n_engines;
    let mut bench = Bench::new(config, 0);
    bench.input(Input::ForkServerUp);
    for engine in 0..n_engines {
        let event = ForkServerEvent::Spawned(EngineId(engine), 100 + engine);
        bench.fork_server(event);
        bench.engine_up(engine);
    }
    let spawns = bench.take(|o| {
        matches!(
            o,
            Output::Order(EngineOrder::ForkServer(ForkServerOrder::Spawn { .. }))
        )
        .then_some(())
    });
    assert_eq!(spawns.len(), n_engines as usize);
    bench.out.clear();
    bench
}

fn deaths(bench: &mut Bench) -> Vec<DeathCause> {
    bench.take(|output| match output {
        Output::Event {
            event: Event::EngineDown(certificate),
            ..
        } => Some(certificate.cause.clone()),
        _ => None,
    })
}

fn count(bench: &mut Bench, pick: impl Fn(&Output) -> bool) -> usize {
    bench.take(|output| pick(output).then_some(())).len()
}

#[test]
fn a_dead_engines_tasks_are_lost_if_started_and_moved_if_not() {
    let mut bench = spawned(config(), 2);
    bench.submit(4);
    bench.assigns();
    bench.engine_down(0, &[1]);
    assert_eq!(bench.ends(), [], "the cause may still come");
    bench.exited(0, 11);
    let results = bench.results();
    assert_eq!(results.len(), 1);
    let certificate = certificate(&results[0]);
    assert_eq!(certificate.cause, DeathCause::Signal(11));
    assert_eq!(certificate.last_output, "oh no");
    assert!(certificate.task_started);
    assert_eq!(deaths(&mut bench), [DeathCause::Signal(11)]);
    bench.schedule();
    let counters = bench.controller.counters();
    assert_eq!(
        (counters.live, counters.ready),
        (3, 1),
        "its other task waits for engine 1"
    );
}

#[test]
fn the_exit_may_come_before_the_end_of_the_link() {
    let mut bench = spawned(config(), 1);
    bench.submit(1);
    let (_, record) = bench.assigns().remove(0);
    bench.exited(0, 9);
    bench.done(0, record.key, Status::Ok, MS);
    assert_eq!(bench.ends(), [(0, Status::Ok)], "it was on the way");
    bench.engine_down(0, &[]);
    assert_eq!(deaths(&mut bench), [DeathCause::Signal(9)]);
}

#[test]
fn without_an_exit_the_cause_is_a_lost_connection() {
    let mut bench = spawned(config(), 1);
    bench.submit(1);
    bench.engine_down(0, &[]);
    bench.pass(config().certificate_wait_ns - MS);
    assert_eq!(bench.results(), [], "its host may still say how it ended");
    bench.pass(MS);
    let cause = certificate(&bench.results()[0]).cause;
    assert_eq!(cause, DeathCause::Disconnected);
    assert_eq!(deaths(&mut bench), [DeathCause::Disconnected]);
    bench.exited(0, 9);
    assert_eq!(deaths(&mut bench), [], "announced once");
}

#[test]
fn a_death_costs_a_retry_only_if_the_task_had_started() {
    let mut bench = spawned(config(), 2);
    let retries = TaskOptions {
        retries: 1,
        ..TaskOptions::default()
    };
    bench.submit_with(retries);
    bench.schedule();
    let (engine, _) = bench.assigns().remove(0);
    bench.engine_down(engine, &[]);
    let (other, record) = bench.assigns().remove(0);
    assert_ne!(engine, other);
    bench.done(other, record.key, Status::Ok, MS);
    assert_eq!(bench.ends(), [(0, Status::Ok)]);
    assert_eq!(bench.controller.counters().retried, 1);
}

#[test]
fn restarts_wait_longer_each_time_and_end_at_their_cap() {
    let mut bench = spawned(
        Config {
            restart_engines: true,
            max_restarts_per_minute: 3,
            ..config()
        },
        1,
    );
    bench.submit_with(each(&[0]));
    let mut waits = Vec::new();
    loop {
        bench.exited(0, 11);
        bench.engine_down(0, &[0]);
        let Some(at) = bench.controller.next_deadline() else {
            break;
        };
        waits.push((at - bench.now) / MS);
        bench.pass(at - bench.now);
        assert_eq!(
            count(&mut bench, |o| matches!(
                o,
                Output::Order(EngineOrder::ForkServer(ForkServerOrder::Spawn { .. }))
            )),
            1
        );
        bench.fork_server(ForkServerEvent::Spawned(EngineId(0), 100));
        bench.engine_up(0);
        bench.schedule();
    }
    assert_eq!(waits.len(), 3);
    for (wait, min_ms) in waits.iter().zip([100, 200, 400]) {
        assert!((min_ms..=min_ms * 5 / 4).contains(wait), "{wait} ms");
    }
    let lost = certificate(&bench.results()[0]);
    assert!(!lost.task_started, "it waited through the restarts");
    bench.submit_with(each(&[0]));
    let reason = refusal(&bench.results()[0]);
    assert_eq!(reason, RefusalReason::NoSuchEngine(EngineId(0)));
}

#[test]
fn an_engine_that_never_says_hello_is_given_up() {
    let mut bench = Bench::new(
        Config {
            n_engines: 1,
            ..config()
        },
        0,
    );
    bench.input(Input::ForkServerUp);
    bench.submit(1);
    bench.pass(60_000 * MS);
    assert_eq!(refusal(&bench.results()[0]), RefusalReason::NoEngines);
}

fn not_started(bench: &mut Bench, engine: u32) {
    bench.fork_server(ForkServerEvent::NotStarted {
        engine: EngineId(engine),
        reason: "no processes left".into(),
    });
}

#[test]
fn an_engine_that_gets_no_process_is_tried_again_and_the_others_live_on() {
    let mut bench = spawned(config(), 1);
    bench.submit_with(each(&[0]));
    bench.schedule();
    bench.request(ControlRequest::AddEngines(1));
    bench.take(|o| {
        matches!(
            o,
            Output::Order(EngineOrder::ForkServer(ForkServerOrder::Spawn { .. }))
        )
        .then_some(())
    });
    let mut waits = Vec::new();
    for _ in 0..3 {
        not_started(&mut bench, 1);
        assert_eq!(deaths(&mut bench), [DeathCause::NotStarted]);
        let at = bench.controller.next_deadline().unwrap();
        waits.push((at - bench.now) / MS);
        bench.pass(at - bench.now);
        assert_eq!(
            count(&mut bench, |o| matches!(
                o,
                Output::Order(EngineOrder::ForkServer(ForkServerOrder::Spawn { .. }))
            )),
            1
        );
    }
    for (wait, min_ms) in waits.iter().zip([100, 200, 400]) {
        assert!((min_ms..=min_ms * 5 / 4).contains(wait), "{wait} ms");
    }
    bench.fork_server(ForkServerEvent::Spawned(EngineId(1), 101));
    bench.engine_up(1);
    not_started(&mut bench, 0);
    let (_, record) = bench.assigns().remove(0);
    bench.done(0, record.key, Status::Ok, MS);
    assert_eq!(bench.ends(), [(0, Status::Ok)], "late news change nothing");
}

#[test]
fn an_engine_that_gets_no_process_in_time_is_given_up() {
    let mut bench = spawned(config(), 1);
    bench.request(ControlRequest::AddEngines(1));
    bench.submit_with(each(&[1]));
    let (mut n_attempts, began) = (0, bench.now);
    while count(&mut bench, |o| {
        matches!(
            o,
            Output::Order(EngineOrder::ForkServer(ForkServerOrder::Spawn { .. }))
        )
    }) == 1
    {
        n_attempts += 1;
        not_started(&mut bench, 1);
        let Some(at) = bench.controller.next_deadline() else {
            break;
        };
        bench.pass(at - bench.now);
    }
    assert!((5..30).contains(&n_attempts), "{n_attempts} attempts");
    assert!(bench.now - began <= config().start_timeout_ns);
    let lost = certificate(&bench.results()[0]);
    assert_eq!(lost.cause, DeathCause::NotStarted);
    assert_eq!(lost.last_output, "no processes left");
    assert!(!lost.task_started);
}

#[test]
fn stop_is_polite_first() {
    let mut bench = spawned(config(), 2);
    bench.submit(4);
    bench.assigns();
    let one = TargetSet::Ranges(vec![(EngineId(1), EngineId(2))]);
    let reply = bench.request(ControlRequest::StopEngines(one));
    assert_eq!(reply, [ControlReply::Done]);
    assert_eq!(
        count(&mut bench, |o| matches!(
            o,
            Output::Order(EngineOrder::Stop { .. })
        )),
        1
    );
    assert_eq!(bench.revokes().len(), 1, "what waits there goes elsewhere");
    bench.pass(config().stop_grace_ns);
    assert_eq!(
        count(&mut bench, |o| matches!(
            o,
            Output::Order(EngineOrder::Kill { .. })
        )),
        1
    );
    bench.exited(1, 9);
    bench.engine_down(1, &[1]);
    assert_eq!(deaths(&mut bench), [DeathCause::Stopped]);
}

#[test]
fn a_restart_keeps_the_slot_and_what_waits_for_it() {
    let mut bench = spawned(config(), 1);
    bench.request(ControlRequest::RestartEngines(TargetSet::All));
    bench.submit_with(each(&[0]));
    bench.schedule();
    assert_eq!(bench.assigned(), []);
    bench.exited(0, 15);
    bench.engine_down(0, &[]);
    bench.pass(1);
    assert_eq!(
        count(&mut bench, |o| matches!(
            o,
            Output::Order(EngineOrder::ForkServer(ForkServerOrder::Spawn { .. }))
        )),
        1
    );
    bench.engine_up(0);
    bench.schedule();
    assert_eq!(bench.assigned(), [(0, 0)]);
}

/// The engines that the client was told are leaving.
fn leaving(bench: &mut Bench) -> Vec<u32> {
    bench.take(|output| match output {
        Output::Event {
            event: Event::EngineLeaving(engine),
            ..
        } => Some(engine.0),
        _ => None,
    })
}

#[test]
fn clients_hear_at_once_which_engines_a_restart_ends() {
    let mut bench = spawned(config(), 3);
    let one = TargetSet::Ranges(vec![(EngineId(1), EngineId(2))]);
    bench.request(ControlRequest::RestartEngines(one));
    assert_eq!(leaving(&mut bench), [1]);
    bench.request(ControlRequest::RestartEngines(TargetSet::All));
    assert_eq!(leaving(&mut bench), [0, 2], "engine 1 is leaving");
    bench.request(ControlRequest::Shutdown);
    assert_eq!(leaving(&mut bench), [] as [u32; 0]);
}

#[test]
fn more_engines_get_new_slots() {
    let mut bench = spawned(config(), 1);
    bench.request(ControlRequest::AddEngines(2));
    let slots = bench.take(|output| match output {
        Output::Order(EngineOrder::ForkServer(ForkServerOrder::Spawn { engine })) => Some(engine.0),
        _ => None,
    });
    assert_eq!(slots, [1, 2]);
}

#[test]
fn shutdown_lets_running_tasks_finish_and_leaves_nothing() {
    let mut bench = spawned(config(), 1);
    bench.submit(3);
    let assigns = bench.assigns();
    assert_eq!(
        bench.request(ControlRequest::Shutdown),
        [ControlReply::Done]
    );
    assert_eq!(bench.ends(), [(2, Status::Refused)]);
    bench.submit(1);
    assert_eq!(refusal(&bench.results()[0]), RefusalReason::Stopping);
    bench.done(0, assigns[0].1.key, Status::Ok, MS);
    bench.exited(0, 0);
    bench.engine_down(0, &[1]);
    assert_eq!(bench.ends(), [(0, Status::Ok), (1, Status::Refused)]);
    assert_eq!(count(&mut bench, |o| *o == Output::StopForkServer), 1);
    bench.input(Input::ForkServerDown);
    assert_eq!(count(&mut bench, |o| *o == Output::Finished), 1);
    assert_eq!(bench.controller.next_deadline(), None);
}

#[test]
fn a_cluster_ends_with_its_fork_server() {
    let mut bench = spawned(config(), 1);
    bench.submit(3);
    let assigns = bench.assigns();
    bench.input(Input::ForkServerDown);
    assert_eq!(bench.ends(), [(2, Status::Refused)]);
    // The kernel ends the engines with it; their links close.
    bench.engine_down(0, &[assigns[1].1.offer]);
    bench.pass(60_000 * MS);
    assert_eq!(bench.ends(), [(1, Status::Refused), (0, Status::Lost)]);
    assert_eq!(count(&mut bench, |o| *o == Output::StopForkServer), 0);
    assert_eq!(count(&mut bench, |o| *o == Output::Finished), 1);
    assert_eq!(bench.controller.next_deadline(), None);
}

#[test]
fn a_cluster_without_engines_ends_with_its_fork_server_at_once() {
    let mut bench = spawned(config(), 0);
    bench.input(Input::ForkServerDown);
    assert_eq!(count(&mut bench, |o| *o == Output::Finished), 1);
}

#[test]
fn what_one_client_tells_others_are_told() {
    let mut bench = spawned(config(), 1);
    let notice = |text: &str| ControlRequest::Notice {
        about: "n1:slurm-30".into(),
        text: text.into(),
    };
    assert_eq!(
        bench.request(notice("it was preempted")),
        [ControlReply::Done]
    );
    let asked = ControlRequest::Noticed("n1:slurm-30".into());
    let told = ControlReply::Text("it was preempted".into());
    assert_eq!(bench.request(asked), [told]);
}

#[test]
fn a_restart_of_all_leaves_alone_who_is_just_being_stopped_for_good() {
    let mut bench = spawned(config(), 2);
    let one = || TargetSet::Ranges(vec![(EngineId(1), EngineId(2))]);
    bench.request(ControlRequest::StopEngines(one()));
    bench.request(ControlRequest::RestartEngines(TargetSet::All));
    for engine in [0, 1] {
        bench.exited(engine, 15);
        bench.engine_down(engine, &[]);
    }
    bench.pass(1);
    assert_eq!(spawns(&mut bench), [0]);

    bench.engine_up(0);
    bench.request(ControlRequest::RestartEngines(one()));
    assert_eq!(spawns(&mut bench), [1], "it was asked for by its number");
    bench.engine_up(1);
    bench.request(ControlRequest::StopEngines(one()));
    bench.request(ControlRequest::RestartEngines(one()));
    bench.exited(1, 15);
    bench.engine_down(1, &[]);
    bench.pass(1);
    assert_eq!(spawns(&mut bench), [1], "and while it was being stopped");
}

/// Engines that were told to start since the last call.
fn spawns(bench: &mut Bench) -> Vec<u32> {
    bench.take(|output| match output {
        Output::Order(EngineOrder::ForkServer(ForkServerOrder::Spawn { engine })) => Some(engine.0),
        _ => None,
    })
}

#[test]
fn a_restart_of_all_starts_the_dead_but_not_those_stopped_for_good() {
    let mut bench = spawned(config(), 3);
    for engine in [0, 1] {
        if engine == 1 {
            let one = TargetSet::Ranges(vec![(EngineId(1), EngineId(2))]);
            bench.request(ControlRequest::StopEngines(one));
        }
        bench.exited(engine, 9);
        bench.engine_down(engine, &[]);
    }
    bench.pass(1);
    assert!(spawns(&mut bench).is_empty());
    let reply = bench.request(ControlRequest::RestartEngines(TargetSet::All));
    assert_eq!(reply, [ControlReply::Done]);
    assert_eq!(spawns(&mut bench), [0], "engine 2 is asked to stop first");
    assert_eq!(bench.controller.counters().engines[0].restarts, 1);
    let stopped = TargetSet::Ranges(vec![(EngineId(1), EngineId(2))]);
    bench.request(ControlRequest::RestartEngines(stopped));
    assert_eq!(spawns(&mut bench), [1], "it was asked for by its number");
}

#[test]
fn a_restart_of_all_leaves_the_dead_alone_that_nobody_can_start() {
    let mut bench = Bench::new(config(), 1);
    bench.engine_down(0, &[]);
    bench.request(ControlRequest::RestartEngines(TargetSet::All));
    assert!(spawns(&mut bench).is_empty(), "it was started by hand");
}

#[test]
fn the_last_death_of_a_slot_is_remembered() {
    let mut bench = spawned(config(), 1);
    let death = |bench: &Bench| bench.controller.counters().engines[0].last_death.clone();
    assert_eq!(death(&bench), None);
    bench.exited(0, 11);
    bench.engine_down(0, &[]);
    let at = bench.now;
    bench.pass(MS);
    bench.request(ControlRequest::RestartEngines(TargetSet::All));
    bench.engine_up(0);
    let (certificate, when) = death(&bench).unwrap();
    assert_eq!(certificate.cause, DeathCause::Signal(11));
    assert_eq!((certificate.last_output.as_str(), when), ("oh no", at));
}
