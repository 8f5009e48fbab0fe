//! MPI worlds: slots in the order of ranks, and one end for all.

use broadleaf_core::{Input, Output};
use broadleaf_proto::control::{
    ControlRequest, DeathCause, EngineInfo, Event, ForkServerEvent, ForkServerOrder,
};
use broadleaf_proto::host::{EngineOrder, EngineReport};
use broadleaf_proto::ids::{EngineId, HostId};
use broadleaf_proto::{Status, TargetSet};

use crate::bench::{Bench, CLIENT, MS, config, each};

const HERE: HostId = HostId::CONTROLLER;
const THERE: HostId = HostId(1);

fn fork_server(bench: &mut Bench, host: HostId, event: ForkServerEvent) {
    let report = EngineReport::ForkServer(event);
    bench.input(Input::Report { host, report });
}

fn guest(bench: &mut Bench, host: HostId, world: &str, size: u32, rank: u32) {
    let event = ForkServerEvent::Guest {
        world: world.to_owned(),
        size,
        rank,
        pid: 500 + rank,
    };
    fork_server(bench, host, event);
}

fn seats(bench: &mut Bench) -> Vec<(u32, u32)> {
    bench.take(|o| match o {
        Output::Order(EngineOrder::ForkServer(ForkServerOrder::Seat { engine, rank, .. })) => {
            Some((engine.0, *rank))
        }
        _ => None,
    })
}

fn up(bench: &mut Bench, host: HostId, engine: u32, rank: u32) {
    let pid = 500 + rank;
    fork_server(bench, host, ForkServerEvent::Spawned(EngineId(engine), pid));
    let info = EngineInfo {
        engine: EngineId(engine),
        uuid: format!("uuid of {engine}"),
        pid,
        host: "here".into(),
    };
    let report = EngineReport::Up(info);
    bench.input(Input::Report { host, report });
}

/// Engine 0 on its own, and a world of three in slots 1 to 3: rank 1 is at a relay.
fn bench() -> Bench {
    let mut bench = Bench::new(config(), 1);
    bench.input(Input::ForkServerUp);
    bench.input(Input::HostUp {
        host: THERE,
        name: "there:guests".into(),
        n_engines: 0,
        n_cores: 1,
        ends_in_ns: None,
    });
    for (rank, host) in [(2, HERE), (1, THERE), (0, HERE)] {
        guest(&mut bench, host, "w", 3, rank);
        up(&mut bench, host, 1 + rank, rank);
    }
    bench
}

fn exited(bench: &mut Bench, host: HostId, engine: u32, rank: u32) {
    let event = ForkServerEvent::Exited {
        engine: EngineId(engine),
        pid: 500 + rank,
        code: None,
        signal: None,
        out_of_memory: false,
        last_output: "mpiexec says".into(),
    };
    fork_server(bench, host, event);
}

fn request(bench: &mut Bench, request: ControlRequest) {
    bench.input(Input::Request {
        client: CLIENT,
        number: 1,
        request,
    });
}

fn deaths(bench: &mut Bench) -> Vec<(u32, DeathCause)> {
    bench.take(|o| match o {
        Output::Event {
            event: Event::EngineDown(certificate),
            ..
        } => Some((certificate.engine.0, certificate.cause.clone())),
        _ => None,
    })
}

#[test]
fn slots_are_in_the_order_of_ranks_whoever_comes_first_and_wherever() {
    let mut bench = bench();
    assert_eq!(seats(&mut bench), [(3, 2), (2, 1), (1, 0)]);
    let hosts: Vec<String> = bench
        .controller
        .engines()
        .into_iter()
        .map(|e| e.host)
        .collect();
    assert_eq!(hosts, ["here", "here:w", "here:w", "here:w"]);
}

#[test]
fn a_second_world_has_slots_of_its_own() {
    let mut bench = bench();
    seats(&mut bench);
    guest(&mut bench, HERE, "v", 2, 1);
    assert_eq!(seats(&mut bench), [(5, 1)]);
}

#[test]
fn a_rank_that_dies_takes_its_world_along_and_nobody_else() {
    let mut bench = bench();
    seats(&mut bench);
    let job = bench.submit_with(each(&[1]));
    bench.schedule();
    bench.out.clear();
    let report = EngineReport::Down {
        engine: EngineId(2),
        unclaimed_offers: vec![],
        next_offer: 0,
    };
    let host = THERE;
    bench.input(Input::Report { host, report });
    exited(&mut bench, THERE, 2, 1);
    let killed = bench.take(|o| match o {
        Output::Order(EngineOrder::Kill { engine, pid, .. }) => Some((engine.0, *pid)),
        _ => None,
    });
    assert_eq!(killed, [(1, 500), (3, 502)]);
    for (engine, rank) in [(1, 0), (3, 2)] {
        bench.engine_down(engine, &[]);
        exited(&mut bench, HERE, engine, rank);
    }
    let certified = deaths(&mut bench);
    let by_rank_1 = DeathCause::RankDied(1);
    assert_eq!(
        certified,
        [
            (2, by_rank_1.clone()),
            (1, by_rank_1.clone()),
            (3, by_rank_1)
        ]
    );
    assert_eq!(bench.ends(), [(job, Status::Lost)]);
    let living: Vec<u32> = bench
        .controller
        .engines()
        .iter()
        .map(|e| e.engine.0)
        .collect();
    assert_eq!(living, [0]);
}

#[test]
fn a_world_that_is_started_again_has_its_slots_again() {
    let mut bench = bench();
    seats(&mut bench);
    request(
        &mut bench,
        ControlRequest::StopEngines(TargetSet::Ranges(vec![(EngineId(2), EngineId(3))])),
    );
    let stopped = bench.take(|o| match o {
        Output::Order(EngineOrder::Stop { engine }) => Some(engine.0),
        _ => None,
    });
    assert_eq!(stopped, [1, 2, 3]); // one does not leave alone
    guest(&mut bench, HERE, "w", 3, 0);
    assert_eq!(seats(&mut bench), []); // the one before it is still there
    bench.input(Input::HostDown { host: THERE });
    for engine in [1, 3] {
        bench.engine_down(engine, &[]);
    }
    bench.pass(config().certificate_wait_ns);
    request(&mut bench, ControlRequest::RestartEngines(TargetSet::All));
    assert_eq!(seats(&mut bench), []);
    for rank in 0..3 {
        guest(&mut bench, HERE, "w", 3, rank);
    }
    assert_eq!(seats(&mut bench), [(1, 0), (2, 1), (3, 2)]);
}

#[test]
fn a_world_that_cannot_be_is_refused() {
    let mut bench = bench();
    seats(&mut bench);
    for (world, size, rank) in [("w", 4, 3), ("v", 2, 2), ("v", 0, 0), ("v", 70_000, 0)] {
        guest(&mut bench, HERE, world, size, rank);
        assert_eq!(seats(&mut bench), [], "{world} {size} {rank}");
    }
    guest(&mut bench, THERE, "w", 4, 3);
    let expelled =
        bench.take(|o| matches!(o, Output::Expel { host } if *host == THERE).then_some(()));
    assert_eq!(expelled.len(), 1);
}

#[test]
fn ranks_leave_together_when_the_host_of_one_is_released() {
    let mut bench = bench();
    bench.submit_with(each(&[1]));
    bench.schedule();
    bench.request(ControlRequest::Drain {
        targets: TargetSet::Ranges(Vec::new()),
        hosts: vec![THERE],
        within_ns: None,
        stateless: true,
    });
    let stops = |bench: &mut Bench| {
        bench.take(|output| match output {
            Output::Order(EngineOrder::Stop { engine }) => Some(engine.0),
            _ => None,
        })
    };
    assert_eq!(stops(&mut bench), [] as [u32; 0], "rank 0 has a task");
    bench.run_all(MS);
    assert_eq!(stops(&mut bench), [1, 2, 3]);
}
