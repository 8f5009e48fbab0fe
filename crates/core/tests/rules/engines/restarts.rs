//! A controller that was started again, and its predecessor's hosts.

use broadleaf_core::journal::{Fact, Facts, Member, Members};
use broadleaf_core::{Config, Controller, Input, Output};
use broadleaf_proto::Status;
use broadleaf_proto::control::{
    DeathCause, DeathCertificate, Event, ForkServerEvent, ForkServerOrder,
};
use broadleaf_proto::host::{EngineOrder, EngineReport};
use broadleaf_proto::ids::{ClientId, EngineId, HostId, TaskKey};
use broadleaf_proto::relay::{HeldEngine, HeldLink, Holdings};
use broadleaf_proto::task::{DoneRecord, Payload};

use crate::bench::{Bench, CLIENT, MS, config, each, info};

const HOST: HostId = HostId(3);
/// What an earlier controller called a task; the keys of this one begin otherwise.
const FORMER: TaskKey = TaskKey(5 << 32);

/// After one other controller, which had engines 0 and 1 on one host.
fn restored() -> Bench {
    let slots = (0..2).map(|engine| (EngineId(engine), Some(info(engine))));
    let member = Member {
        host: HOST,
        name: "node".into(),
        slots: slots.collect(),
    };
    begin(member)
}

fn begin(member: Member) -> Bench {
    let mut bench = Bench::new(config(), 0);
    bench.controller = Controller::new(config());
    bench.input(Input::Restored {
        members: Members {
            n_before: 1,
            hosts: vec![member],
        },
    });
    bench.client(CLIENT);
    bench
}

fn held(engine: u32, next_offer: u32, unfinished: &[(u32, TaskKey)]) -> HeldEngine {
    HeldEngine {
        engine: EngineId(engine),
        pid: 100 + engine,
        link: Some(HeldLink {
            info: info(engine),
            next_offer,
            unfinished: unfinished.to_vec(),
        }),
    }
}

fn rejoin(bench: &mut Bench, engines: Vec<HeldEngine>) {
    rejoin_after(bench, engines, Vec::new());
}

fn rejoin_after(bench: &mut Bench, engines: Vec<HeldEngine>, ends: Vec<ForkServerEvent>) {
    let holdings = Holdings {
        n_cores: 2,
        ends_in_ns: None,
        engines,
        ends,
    };
    bench.input(Input::HostRejoined {
        host: HOST,
        holdings,
    });
    bench.input(Input::HostBack { host: HOST });
    bench.schedule();
}

fn done(bench: &mut Bench, engine: u32, key: TaskKey) {
    let record = DoneRecord {
        key,
        status: Status::Ok,
        started_ns: bench.now,
        completed_ns: bench.now + MS,
        cpu_ns: 0,
        payload: Payload::default(),
    };
    bench.input(Input::Done {
        host: HOST,
        engine: EngineId(engine),
        record,
        copy: None,
    });
    bench.schedule();
}

fn deaths(bench: &mut Bench) -> Vec<(u32, DeathCause)> {
    bench.take(|output| match output {
        Output::Event {
            event: Event::EngineDown(DeathCertificate { engine, cause, .. }),
            ..
        } => Some((engine.0, cause.clone())),
        _ => None,
    })
}

fn is_expelled(bench: &Bench) -> bool {
    bench.out.contains(&Output::Expel { host: HOST })
}

#[test]
fn engines_keep_their_numbers_and_get_tasks_once_their_host_is_back() {
    let mut bench = restored();
    let ids = bench
        .controller
        .engines()
        .iter()
        .map(|e| e.engine.0)
        .collect::<Vec<_>>();
    assert_eq!(ids, [0, 1]);
    bench.submit_with(each(&[0, 1]));
    bench.submit(1);
    assert_eq!(bench.assigned(), [], "their host is away");
    rejoin(&mut bench, vec![held(0, 17, &[]), held(1, 0, &[])]);
    let assigns = bench.assigns();
    let mut first: Vec<(u32, u32)> = Vec::new();
    for (engine, record) in &assigns {
        if first.iter().all(|(other, _)| other != engine) {
            first.push((*engine, record.offer));
        }
    }
    first.sort_unstable();
    assert_eq!(first, [(0, 17), (1, 0)], "offers go on where they were");
    assert_eq!(assigns.len(), 3);
    assert_eq!(deaths(&mut bench), []);
}

#[test]
fn a_task_that_was_begun_occupies_its_engine_until_it_ends() {
    let mut bench = restored();
    rejoin(
        &mut bench,
        vec![held(0, 6, &[(5, FORMER)]), held(1, 0, &[])],
    );
    let counters = bench.controller.counters();
    assert_eq!(counters.engines[0].outstanding, 1);
    bench.submit_with(each(&[0]));
    bench.schedule();
    let (engine, record) = bench.assigns_one();
    assert_eq!((engine, record.offer), (0, 6));
    assert_ne!(record.key, FORMER);
    done(&mut bench, 0, FORMER);
    assert_eq!(bench.ends(), [], "nobody waits for its end");
    done(&mut bench, 0, FORMER);
    done(&mut bench, 0, record.key);
    assert_eq!(bench.ends(), [(0, Status::Ok)]);
    assert_eq!(bench.controller.counters().live, 0);
}

#[test]
fn keys_of_another_controllers_tasks_are_never_this_ones() {
    let mut bench = restored();
    rejoin(&mut bench, vec![held(0, 0, &[])]);
    bench.submit(1);
    let (engine, record) = bench.assigns_one();
    assert_eq!(record.key.generation() >> 24, 1);
    assert!(bench.controller.is_offered(EngineId(engine), record.key));
    assert!(!bench.controller.is_offered(EngineId(engine), TaskKey(0)));
}

#[test]
fn a_host_that_does_not_come_back_is_lost_with_its_engines() {
    let mut bench = restored();
    bench.submit_with(each(&[0]));
    bench.input(Input::HostDown { host: HOST });
    bench.schedule();
    assert_eq!(
        deaths(&mut bench),
        [(0, DeathCause::HostGone), (1, DeathCause::HostGone)]
    );
    assert_eq!(bench.ends(), [(0, Status::Lost)]);
}

#[test]
fn an_engine_that_died_meanwhile_is_told_with_its_cause() {
    let exited = |engine, signal| ForkServerEvent::Exited {
        engine: EngineId(engine),
        pid: 100 + engine,
        code: None,
        signal: Some(signal),
        out_of_memory: false,
        last_output: String::new(),
    };
    let mut bench = restored();
    let ends = vec![exited(0, 11), exited(7, 9)];
    rejoin_after(&mut bench, vec![held(1, 0, &[])], ends);
    assert_eq!(deaths(&mut bench), [(0, DeathCause::Signal(11))]);
    assert!(!is_expelled(&bench), "the other slot was given up before");
}

#[test]
fn an_engine_that_was_being_started_is_awaited_or_started_again() {
    let mut bench = begin(Member {
        host: HOST,
        name: "node".into(),
        slots: vec![(EngineId(0), None), (EngineId(1), None)],
    });
    let starting = HeldEngine {
        engine: EngineId(0),
        pid: 100,
        link: None,
    };
    rejoin(&mut bench, vec![starting]);
    let spawned = bench.take(|output| match output {
        Output::Order(EngineOrder::ForkServer(ForkServerOrder::Spawn { engine })) => Some(engine.0),
        _ => None,
    });
    assert_eq!(spawned, [1], "the order for the other one was carried out");
    let report = EngineReport::Up(info(0));
    bench.input(Input::Report { host: HOST, report });
    assert_eq!(bench.controller.engines(), [info(0)]);
}

#[test]
fn a_host_that_says_what_cannot_be_is_cut_off() {
    let far = (0..2).map(|n| (n * 5000, TaskKey(u64::from(n))));
    let wrong = [
        held(0, 5, &[(5, FORMER)]),
        held(0, 5, &[(4, FORMER), (3, TaskKey(1))]),
        held(0, 5, &[(4, FORMER), (4, TaskKey(1))]),
        held(0, 5001, &far.collect::<Vec<_>>()),
        held(1 << 30, 0, &[]),
        HeldEngine {
            engine: EngineId(1),
            ..held(0, 0, &[])
        },
    ];
    for engine in wrong {
        let mut bench = restored();
        rejoin(&mut bench, vec![engine.clone()]);
        assert!(is_expelled(&bench), "{engine:?}");
    }
    let mut bench = restored();
    rejoin(&mut bench, vec![held(0, 0, &[]), held(1, 0, &[])]);
    assert!(!is_expelled(&bench));
    rejoin(&mut bench, vec![held(0, 0, &[])]);
    assert!(is_expelled(&bench), "it has said that before");
}

#[test]
fn what_a_controller_notes_is_what_a_later_one_is_told() {
    let journal = Config {
        journal: true,
        ..config()
    };
    let mut bench = Bench::new(journal, 1);
    for (host, name) in [(HostId(1), "a"), (HostId(2), "b")] {
        bench.input(Input::HostUp {
            host,
            name: name.into(),
            n_engines: 2,
            n_cores: 1,
            ends_in_ns: None,
        });
    }
    let report = EngineReport::Up(info(3));
    bench.input(Input::Report {
        host: HostId(2),
        report,
    });
    let mut facts = Facts::default();
    facts.start();
    let noted = |output: &Output| match output {
        Output::Note(fact) => Some(fact.clone()),
        _ => None,
    };
    for fact in bench.take(noted) {
        facts.add(fact);
    }
    let member = |host: u32, name: &str, slots: Vec<(EngineId, Option<_>)>| Member {
        host: HostId(host),
        name: name.into(),
        slots,
    };
    let a = member(1, "a", vec![(EngineId(1), None), (EngineId(2), None)]);
    let b_slots = vec![(EngineId(3), Some(info(3))), (EngineId(4), None)];
    let b = member(2, "b", b_slots);
    assert_eq!(facts.clone().start().hosts, [a, b.clone()]);
    bench.input(Input::HostDown { host: HostId(1) });
    for fact in bench.take(noted) {
        facts.add(fact);
    }
    let mut again = Facts::default();
    facts.all().into_iter().for_each(|fact| again.add(fact));
    assert_eq!(again, facts);
    let members = again.start();
    assert_eq!((members.n_before, members.hosts), (1, vec![b]));
}

#[test]
fn numbers_that_were_given_are_not_given_again() {
    let mut facts = Facts::default();
    facts.add(Fact::HostUp(HostId(4), "a".into()));
    facts.add(Fact::HostDown(HostId(4)));
    facts.add(Fact::ClientNumber(ClientId(6)));
    let mut again = Facts::default();
    facts.all().into_iter().for_each(|fact| again.add(fact));
    assert_eq!(again.last_host(), HostId(4));
    assert_eq!(again.next_client(), ClientId(7));
}
