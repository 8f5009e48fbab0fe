//! What relays report, and about whom.

use broadleaf_core::{Input, Output};
use broadleaf_proto::Status;
use broadleaf_proto::control::{EngineInfo, Event, ForkServerEvent, ForkServerOrder};
use broadleaf_proto::host::{EngineOrder, EngineReport};
use broadleaf_proto::ids::{EngineId, HostId, TaskKey};
use broadleaf_proto::task::{DoneRecord, OutputRecord, Payload};
use bytes::Bytes;

use crate::bench::{Bench, config, info};

const OWN: HostId = HostId(1);
const OTHER: HostId = HostId(2);

/// Engine 0 of the controller's host, and one relay each for engines 1 and 2, all up.
fn bench() -> Bench {
    let mut bench = Bench::new(config(), 1);
    for (host, engine) in [(OWN, 1), (OTHER, 2)] {
        host_up(&mut bench, host, &format!("host {}", host.0), 1);
        says(
            &mut bench,
            host,
            EngineReport::ForkServer(ForkServerEvent::Spawned(EngineId(engine), 100 + engine)),
        );
        says(&mut bench, host, EngineReport::Up(info(engine)));
    }
    assert_eq!(up(&bench), [0, 1, 2]);
    bench.out.clear();
    bench
}

fn host_up(bench: &mut Bench, host: HostId, name: &str, n_engines: u32) {
    let name = name.to_owned();
    bench.input(Input::HostUp {
        host,
        name,
        n_engines,
        n_cores: 1,
        ends_in_ns: None,
    });
}

fn says(bench: &mut Bench, host: HostId, report: EngineReport) {
    bench.input(Input::Report { host, report });
}

fn up(bench: &Bench) -> Vec<u32> {
    bench
        .controller
        .engines()
        .iter()
        .map(|e| e.engine.0)
        .collect()
}

fn is_expelled(bench: &mut Bench, host: HostId) -> bool {
    let out = std::mem::take(&mut bench.out);
    assert!(
        out.iter()
            .all(|o| *o == Output::Expel { host } || !matches!(o, Output::Expel { .. })),
        "{out:?}"
    );
    out.contains(&Output::Expel { host })
}

#[test]
fn a_relay_that_names_the_process_of_another_host_has_nobody_killed() {
    let mut bench = bench();
    bench.engine_down(0, &[]);
    for engine in [0, 2, 77] {
        let lie = ForkServerEvent::Spawned(EngineId(engine), 4242);
        says(&mut bench, OWN, EngineReport::ForkServer(lie));
        let kills = |o: &Output| matches!(o, Output::Order(EngineOrder::Kill { .. }));
        assert!(!bench.out.iter().any(kills), "{:?}", bench.out);
        assert!(is_expelled(&mut bench, OWN), "engine {engine}");
    }
}

#[test]
fn a_relay_speaks_of_its_own_engines_alone() {
    let mut bench = bench();
    let (engine, key) = (EngineId(2), TaskKey(0));
    let events = [
        EngineReport::Up(info(2)),
        EngineReport::Down {
            engine,
            unclaimed_offers: Vec::new(),
            next_offer: 0,
        },
        EngineReport::Revoked {
            engine,
            key,
            won: true,
        },
        EngineReport::Waits {
            engine,
            event: broadleaf_proto::engine::EngineEvent::WaitStarted(key),
        },
        EngineReport::Delivered { engine, key },
        EngineReport::Undeliverable {
            engine,
            key,
            reason: String::new(),
        },
    ];
    for event in events {
        says(&mut bench, OWN, event.clone());
        assert!(is_expelled(&mut bench, OWN), "{event:?}");
    }
    let record = DoneRecord {
        key,
        status: Status::Ok,
        started_ns: 0,
        completed_ns: 0,
        cpu_ns: 0,
        payload: Payload::default(),
    };
    let host = OWN;
    bench.input(Input::Done {
        host,
        engine,
        record,
        copy: None,
    });
    assert!(is_expelled(&mut bench, OWN));
    let record = OutputRecord {
        task: 0,
        engine,
        stream: 1,
        bytes: Bytes::new(),
    };
    let host = OWN;
    bench.input(Input::Output {
        host,
        engine,
        record,
    });
    assert!(is_expelled(&mut bench, OWN));
    assert_eq!(up(&bench), [0, 1, 2], "nobody else came to harm");
    bench.input(Input::HostDown { host: OWN });
    assert_eq!(up(&bench), [0, 2]);
    // This was still on its way from the relay.
    says(
        &mut bench,
        OWN,
        EngineReport::ForkServer(ForkServerEvent::Spawned(EngineId(1), 1)),
    );
    assert!(!is_expelled(&mut bench, OWN));
}

/// The relay says that its engine is gone, and how many offers it was made.
fn loses_engine(bench: &mut Bench, next_offer: u32) {
    says(
        bench,
        OWN,
        EngineReport::Down {
            engine: EngineId(1),
            unclaimed_offers: Vec::new(),
            next_offer,
        },
    );
}

#[test]
fn offers_that_were_never_made_are_not_counted() {
    for next_offer in [2, 500_000_001, u32::MAX, u32::MAX - 499_999_998] {
        let mut bench = bench();
        bench.submit(3);
        bench.out.clear();
        loses_engine(&mut bench, next_offer);
        assert!(is_expelled(&mut bench, OWN), "{next_offer}");
        assert_eq!(up(&bench), [0, 1, 2]);
    }
}

#[test]
fn offers_on_their_way_to_a_relay_run_elsewhere_when_their_engine_is_gone() {
    let mut bench = bench();
    bench.submit(3);
    bench.out.clear();
    loses_engine(&mut bench, 0);
    bench.schedule();
    let again = bench
        .out
        .iter()
        .filter(|o| matches!(o, Output::Assign { .. }));
    assert_eq!(again.count(), 1, "{:?}", bench.out);
    assert!(!is_expelled(&mut bench, OWN));
}

#[test]
fn names_of_a_relay_are_bounded_and_so_are_its_engines() {
    let mut bench = bench();
    let long = "n".repeat(256);
    host_up(&mut bench, HostId(3), &long, 1);
    assert!(is_expelled(&mut bench, HostId(3)));
    let info = EngineInfo {
        host: long,
        ..info(1)
    };
    says(&mut bench, OWN, EngineReport::Up(info));
    assert!(is_expelled(&mut bench, OWN));
    host_up(&mut bench, HostId(4), "greedy", u32::MAX);
    let spawns = |o: &&Output| {
        matches!(
            o,
            Output::Order(EngineOrder::ForkServer(ForkServerOrder::Spawn { .. }))
        )
    };
    assert_eq!(bench.out.iter().filter(spawns).count(), 4096);
}

#[test]
fn an_engine_started_by_hand_gets_no_slot_of_another_host() {
    let mut bench = bench();
    assert!(!bench.controller.expects(EngineId(1)));
    bench.input(Input::HostDown { host: OWN });
    assert!(!bench.controller.expects(EngineId(1)));
    assert!(bench.controller.expects(EngineId(3)));
}

#[test]
fn the_death_of_an_engine_that_was_never_up_names_its_host() {
    let mut bench = Bench::new(config(), 1);
    host_up(&mut bench, OWN, "n1:ssh-0", 1);
    let engine = EngineId(1);
    for event in [
        ForkServerEvent::Spawned(engine, 101),
        ForkServerEvent::Exited {
            engine,
            pid: 101,
            code: Some(70),
            signal: None,
            out_of_memory: false,
            last_output: String::new(),
        },
    ] {
        says(&mut bench, OWN, EngineReport::ForkServer(event));
    }
    let hosts = bench.take(|output| match output {
        Output::Event {
            event: Event::EngineDown(certificate),
            ..
        } => Some(certificate.host.clone()),
        _ => None,
    });
    assert_eq!(hosts, ["n1:ssh-0"]);
}
