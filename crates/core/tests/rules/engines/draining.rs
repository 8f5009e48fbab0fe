use broadleaf_core::{Config, Input, Output};
use broadleaf_proto::control::{
    ControlReply, ControlRequest, Event, ForkServerEvent, RefusalReason,
};
use broadleaf_proto::host::{EngineOrder, EngineReport};
use broadleaf_proto::ids::{EngineId, HostId, TaskSeq};
use broadleaf_proto::{Status, TargetSet, TaskOptions};

use crate::bench::{Bench, CLIENT, MS, config, each, info, refusal};

const RELAY: HostId = HostId(1);

fn drain(bench: &mut Bench, engines: &[u32], within_ns: Option<u64>) -> Vec<ControlReply> {
    request(bench, engines, &[], within_ns, true)
}

fn request(
    bench: &mut Bench,
    engines: &[u32],
    hosts: &[HostId],
    within_ns: Option<u64>,
    stateless: bool,
) -> Vec<ControlReply> {
    let ranges = engines.iter().map(|e| (EngineId(*e), EngineId(e + 1)));
    bench.request(ControlRequest::Drain {
        targets: TargetSet::Ranges(ranges.collect()),
        hosts: hosts.to_vec(),
        within_ns,
        stateless,
    })
}

fn state(bench: &Bench, engine: u32) -> &'static str {
    bench.controller.counters().engines[engine as usize].state
}

fn stops(bench: &mut Bench) -> Vec<u32> {
    bench.take(|output| match output {
        Output::Order(EngineOrder::Stop { engine }) => Some(engine.0),
        _ => None,
    })
}

fn released(bench: &mut Bench) -> usize {
    let is_release = |o: &Output| matches!(o, Output::Release { .. }).then_some(());
    bench.take(is_release).len()
}

fn host_up(bench: &mut Bench, n_engines: u32, ends_in_ns: Option<u64>) {
    bench.input(Input::HostUp {
        host: RELAY,
        name: "there".into(),
        n_engines,
        n_cores: 1,
        ends_in_ns,
    });
    bench.out.clear();
}

fn relay_says(bench: &mut Bench, report: EngineReport) {
    let host = RELAY;
    bench.input(Input::Report { host, report });
    bench.schedule();
}

fn told_of_end(bench: &mut Bench, ends_in_ns: u64) {
    let host = RELAY;
    bench.input(Input::HostEnds { host, ends_in_ns });
    bench.schedule();
}

fn timed(timeout_ns: u64) -> TaskOptions {
    TaskOptions {
        timeout_ns: Some(timeout_ns),
        ..TaskOptions::default()
    }
}

#[test]
fn an_engine_that_drains_ends_its_task_and_gives_back_the_others() {
    let mut bench = Bench::new(config(), 2);
    bench.submit(4);
    let mine: Vec<_> = bench.assigns();
    let mine = mine.into_iter().filter(|(engine, _)| *engine == 0);
    let mine: Vec<_> = mine.map(|(_, record)| record).collect();
    assert_eq!(mine.len(), 2);
    assert_eq!(drain(&mut bench, &[0], None), [ControlReply::Done]);
    assert_eq!(state(&bench, 0), "draining");
    let told = bench.take(|output| match output {
        Output::Event {
            event: Event::EngineLeaving(engine),
            ..
        } => Some(engine.0),
        _ => None,
    });
    assert_eq!(told, [0]);
    // Nobody knows which of them the engine has started: both are asked back, the last first.
    let revokes: Vec<_> = bench.revokes().into_iter().map(|(_, key)| key).collect();
    assert_eq!(revokes, [mine[1].key, mine[0].key]);
    bench.revoked(0, mine[1].key, true);
    bench.revoked(0, mine[0].key, false);
    assert_eq!(stops(&mut bench), [] as [u32; 0], "it runs one");
    assert_eq!(bench.assigned(), [], "engine 1 is busy");
    bench.done(0, mine[0].key, Status::Ok, MS);
    assert_eq!(stops(&mut bench), [0]);
    assert_eq!(bench.submit(1), [4]);
    assert_eq!(bench.assigned(), [], "it takes nothing new");
}

#[test]
fn tasks_that_must_run_there_are_ended_and_later_ones_refused() {
    let mut bench = Bench::new(config(), 2);
    for _ in 0..4 {
        bench.submit_with(each(&[0]));
    }
    bench.schedule();
    drain(&mut bench, &[0], None);
    let late = bench.submit_with(each(&[0, 1]));
    let results = bench.results();
    assert_eq!(results[0].seq.0, late);
    assert_eq!(
        refusal(&results[0]),
        RefusalReason::NoSuchEngine(EngineId(0))
    );
    assert_eq!(stops(&mut bench), [] as [u32; 0]);
    bench.run_all(MS);
    let ends = bench.ends();
    assert_eq!(ends.iter().filter(|(_, s)| *s == Status::Ok).count(), 5);
    assert_eq!(stops(&mut bench), [0]);
}

#[test]
fn an_engine_that_holds_data_is_not_drained_unless_it_may_be_lost() {
    let mut bench = Bench::new(config(), 2);
    bench.submit_with(each(&[1]));
    bench.schedule();
    bench.run_all(MS);
    let reply = request(&mut bench, &[0, 1], &[], None, false);
    assert!(
        matches!(&reply[..], [ControlReply::Failed(why)] if why.contains("on engines 1,")),
        "{reply:?}"
    );
    assert_eq!((state(&bench, 0), state(&bench, 1)), ("up", "up"));
    assert_eq!(
        request(&mut bench, &[0], &[], None, false),
        [ControlReply::Done]
    );
    assert_eq!(drain(&mut bench, &[1], None), [ControlReply::Done]);
}

#[test]
fn time_that_is_over_ends_a_drain() {
    let mut bench = Bench::new(config(), 1);
    bench.submit(1);
    let (_, record) = bench.assigns_one();
    drain(&mut bench, &[0], Some(50 * MS));
    bench.revoked(0, record.key, false);
    bench.pass(49 * MS);
    assert_eq!(state(&bench, 0), "draining");
    bench.pass(MS);
    assert_eq!(state(&bench, 0), "leaving");
    bench.pass(Config::default().stop_grace_ns);
    let killed = bench.take(|o| matches!(o, Output::Order(EngineOrder::Kill { .. })).then_some(()));
    assert_eq!(killed.len(), 1);
}

#[test]
fn a_task_that_waits_on_an_engine_that_drains_gets_what_it_waits_for() {
    let mut bench = Bench::new(config(), 1);
    bench.submit(1);
    let (_, parent) = bench.assigns_one();
    drain(&mut bench, &[0], None);
    bench.revoked(0, parent.key, false);
    let waits = broadleaf_proto::engine::EngineEvent::WaitStarted(parent.key);
    bench.reports(EngineReport::Waits {
        engine: EngineId(0),
        event: waits,
    });
    bench.submit(1);
    assert_eq!(bench.assigned(), [], "it is nobody's child");
    bench.depth = 1;
    let child = bench.submit(1);
    let (engine, record) = bench.assigns_one();
    assert_eq!(
        (engine, record.payload.bytes[0]),
        (0, u8::try_from(child[0]).unwrap())
    );
}

#[test]
fn engines_that_start_are_given_up_and_their_host_leaves() {
    let mut bench = Bench::new(config(), 1);
    host_up(&mut bench, 2, None);
    let spawned = ForkServerEvent::Spawned(EngineId(1), 7);
    relay_says(&mut bench, EngineReport::ForkServer(spawned));
    let reply = request(&mut bench, &[], &[RELAY], None, false);
    assert_eq!(reply, [ControlReply::Done]);
    assert_eq!(released(&mut bench), 1);
    assert_eq!((state(&bench, 1), state(&bench, 2)), ("gone", "gone"));
    // Nothing starts there any more.
    let all = ControlRequest::RestartEngines(TargetSet::Ranges(vec![(EngineId(1), EngineId(3))]));
    bench.request(all);
    assert_eq!((state(&bench, 1), state(&bench, 2)), ("gone", "gone"));
    relay_says(&mut bench, EngineReport::Up(info(1)));
    assert_eq!(state(&bench, 1), "leaving", "it came too late");
}

#[test]
fn a_host_drains_before_its_job_ends() {
    let mut bench = Bench::new(config(), 0);
    host_up(&mut bench, 1, Some(1_000 * MS));
    relay_says(&mut bench, EngineReport::Up(info(0)));
    bench.pass(899 * MS);
    assert_eq!(state(&bench, 0), "up");
    bench.pass(MS);
    assert_eq!(stops(&mut bench), [0], "a tenth of its time is left");
    let down = EngineReport::Down {
        engine: EngineId(0),
        unclaimed_offers: Vec::new(),
        next_offer: 0,
    };
    relay_says(&mut bench, down);
    assert_eq!(released(&mut bench), 0, "its process may live");
    let exited = ForkServerEvent::Exited {
        engine: EngineId(0),
        pid: 100,
        code: Some(0),
        signal: None,
        out_of_memory: false,
        last_output: String::new(),
    };
    relay_says(&mut bench, EngineReport::ForkServer(exited));
    assert_eq!(released(&mut bench), 1);
    bench.input(Input::HostDown { host: RELAY });
    assert_eq!(released(&mut bench), 0);
}

#[test]
fn a_host_that_is_told_of_its_end_drains_at_once() {
    for ends_in_ns in [None, Some(1_000 * MS)] {
        let mut bench = Bench::new(config(), 0);
        host_up(&mut bench, 2, ends_in_ns);
        relay_says(&mut bench, EngineReport::Up(info(0)));
        relay_says(&mut bench, EngineReport::Up(info(1)));
        bench.submit(1);
        let (busy, record) = bench.assigns_one();
        told_of_end(&mut bench, 300 * MS);
        bench.revoked(busy, record.key, false);
        assert_eq!(stops(&mut bench), [1 - busy], "the other has a task");
        let counters = bench.controller.counters();
        assert!(counters.hosts[0].drains);
        assert_eq!(counters.hosts[0].ends_at, Some(bench.now + 300 * MS));
        bench.submit(1);
        assert_eq!(bench.assigned(), [], "nothing new");
        // Nothing changes if it is told again, or if its own end comes near.
        told_of_end(&mut bench, 600 * MS);
        let counters = bench.controller.counters();
        assert_eq!(counters.hosts[0].ends_at, Some(bench.now + 300 * MS));
        bench.done(busy, record.key, Status::Ok, MS);
        assert_eq!(stops(&mut bench), [busy]);
    }
}

#[test]
fn tasks_go_where_they_surely_end_in_time() {
    let mut bench = Bench::new(config(), 1);
    bench.submit_with(timed(700 * MS));
    host_up(&mut bench, 1, Some(1_000 * MS));
    relay_says(&mut bench, EngineReport::Up(info(1)));
    bench.pass(400 * MS);
    bench.run_all(MS);
    assert_eq!(bench.ends(), [(0, Status::Ok)]);
    bench.submit(2);
    for (engine, record) in bench.assigns() {
        bench.done(engine, record.key, Status::Ok, MS);
    }
    drain(&mut bench, &[0], None);
    for _ in 0..4 {
        bench.submit_with(timed(700 * MS));
    }
    bench.submit_with(timed(500 * MS));
    // Longer than the job ever was: no better host will come.
    bench.submit_with(timed(2_000 * MS));
    bench.schedule();
    let mut there = bench.assigned();
    there.sort_unstable();
    assert_eq!(there, [(1, 7), (1, 8)]);
    let why = bench.request(ControlRequest::Explain(TaskSeq(3)));
    assert!(
        matches!(&why[..], [ControlReply::Text(text)] if text.contains("lasts longer than its timeout")),
        "{why:?}"
    );
}

#[test]
fn tasks_wait_for_engines_while_somebody_starts_them() {
    let mut bench = Bench::new(config(), 0);
    bench.request(ControlRequest::AwaitEngines(true));
    bench.submit(1);
    assert_eq!(bench.ends(), []);
    bench.engine_up(0);
    bench.schedule();
    bench.run_all(MS);
    assert_eq!(bench.ends(), [(0, Status::Ok)]);
    drain(&mut bench, &[0], None);
    bench.engine_down(0, &[]);
    bench.submit(1);
    assert_eq!(bench.ends(), []);
    let other = broadleaf_proto::ids::ClientId(8);
    bench.client(other);
    bench.input(Input::ClientDown { client: other });
    assert_eq!(bench.ends(), [], "that was another client");
    bench.request(ControlRequest::AwaitEngines(false));
    let results = bench.results();
    assert_eq!(refusal(&results[0]), RefusalReason::NoEngines);
    assert!(bench.controller.client_name(CLIENT).is_some());
}
