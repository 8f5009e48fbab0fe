//! What observers are told of hosts, and what nobody owes any more.

use broadleaf_core::{Input, Output};
use broadleaf_proto::control::{
    ControlReply, ControlRequest, Event, ForkServerEvent, ForkServerOrder,
};
use broadleaf_proto::host::{EngineOrder, EngineReport};
use broadleaf_proto::ids::{EngineId, HostId};
use broadleaf_proto::limits::MAX_WRITTEN_BYTES;
use broadleaf_proto::relay::HostCounts;

use crate::bench::{Bench, CLIENT, config, info};

const HOST: HostId = HostId(1);
const OTHER: HostId = HostId(2);

/// Engine 0 of the controller's host, which has a fork server, and one relay each for engines 1 and 2.
fn bench() -> Bench {
    let mut bench = Bench::new(config(), 1);
    bench.input(Input::ForkServerUp);
    for (host, engine) in [(HOST, 1), (OTHER, 2)] {
        bench.input(Input::HostUp {
            host,
            name: format!("host {}", host.0),
            n_engines: 1,
            n_cores: 1,
            ends_in_ns: None,
        });
        let spawned = ForkServerEvent::Spawned(EngineId(engine), 100 + engine);
        says(&mut bench, host, EngineReport::ForkServer(spawned));
        says(&mut bench, host, EngineReport::Up(info(engine)));
    }
    bench.out.clear();
    bench
}

fn says(bench: &mut Bench, host: HostId, report: EngineReport) {
    bench.input(Input::Report { host, report });
}

fn asked_for_figures(bench: &mut Bench) -> Vec<HostId> {
    bench.input(Input::Observed);
    let out = std::mem::take(&mut bench.out);
    let asked = out.into_iter().filter_map(|output| match output {
        Output::Measure { host } => Some(host),
        _ => None,
    });
    asked.collect()
}

/// Asks what an engine has written; returns the number of the request at its host.
fn ask(bench: &mut Bench, number: u64, engine: u32) -> Option<u64> {
    let request = ControlRequest::Written {
        engine: EngineId(engine),
        seen: None,
    };
    bench.input(Input::Request {
        client: CLIENT,
        number,
        request,
    });
    let sent = bench.out.iter().find_map(|output| match output {
        Output::Order(EngineOrder::ForkServer(ForkServerOrder::ReadWritten(read))) => {
            Some((read.engine, read.pid, read.reading))
        }
        _ => None,
    });
    let (asked, pid, reading) = sent?;
    assert_eq!((asked, pid), (EngineId(engine), 100 + engine));
    bench.out.clear();
    Some(reading)
}

fn answers(bench: &mut Bench, host: HostId, reading: u64, text: &str) {
    let text = text.to_owned();
    let written = ForkServerEvent::Written { reading, text };
    says(bench, host, EngineReport::ForkServer(written));
}

fn replies(bench: &mut Bench) -> Vec<(u64, ControlReply)> {
    let out = std::mem::take(&mut bench.out);
    let replies = out.into_iter().filter_map(|output| match output {
        Output::Reply { number, reply, .. } => Some((number, reply)),
        _ => None,
    });
    replies.collect()
}

#[test]
fn a_host_is_asked_for_its_figures_again_only_when_it_has_answered() {
    let mut bench = bench();
    assert_eq!(asked_for_figures(&mut bench), [HOST, OTHER]);
    assert_eq!(asked_for_figures(&mut bench), []);
    let counts = HostCounts {
        cores: 8,
        ..HostCounts::default()
    };
    let host = OTHER;
    bench.input(Input::Measured { host, counts });
    let told: Vec<_> = bench
        .controller
        .measured()
        .map(|(name, counts, at)| (name, counts.cores, at))
        .collect();
    assert_eq!(told, [("host 2".to_owned(), 8, bench.now)]);
    assert_eq!(asked_for_figures(&mut bench), [OTHER]);
    bench.input(Input::HostDown { host: OTHER });
    assert_eq!(bench.controller.measured().count(), 0);
    assert_eq!(asked_for_figures(&mut bench), []);
}

#[test]
fn the_host_of_an_engine_tells_what_it_has_written() {
    let mut bench = bench();
    let reading = ask(&mut bench, 5, 1).unwrap();
    answers(&mut bench, OTHER, reading, "of another host");
    answers(&mut bench, HOST, reading + 1, "to nothing");
    assert_eq!(replies(&mut bench), []);
    answers(&mut bench, HOST, reading, "{}");
    assert_eq!(replies(&mut bench), [(5, ControlReply::Text("{}".into()))]);
    answers(&mut bench, HOST, reading, "again");
    assert_eq!(replies(&mut bench), []);

    let reading = ask(&mut bench, 6, 0).unwrap();
    let text = "here".to_owned();
    bench.fork_server(ForkServerEvent::Written { reading, text });
    assert_eq!(
        replies(&mut bench),
        [(6, ControlReply::Text("here".into()))]
    );
}

#[test]
fn an_answer_that_is_missing_or_too_long_is_a_failure() {
    let mut bench = bench();
    for text in [String::new(), "x".repeat(MAX_WRITTEN_BYTES + 1)] {
        let reading = ask(&mut bench, 5, 1).unwrap();
        answers(&mut bench, HOST, reading, &text);
        let told = replies(&mut bench);
        assert!(
            matches!(&told[..], [(5, ControlReply::Failed(_))]),
            "{told:?}"
        );
    }
    assert_eq!(ask(&mut bench, 6, 77), None);
    let told = replies(&mut bench);
    assert!(
        matches!(&told[..], [(6, ControlReply::Failed(why))] if why.contains("77")),
        "{told:?}"
    );
}

#[test]
fn a_request_is_answered_when_its_host_is_lost_and_after_the_deaths_there() {
    let mut bench = bench();
    ask(&mut bench, 5, 1).unwrap();
    ask(&mut bench, 6, 2).unwrap();
    bench.input(Input::HostDown { host: HOST });
    let last = bench.out.last().cloned();
    let told = |o: &Output| {
        matches!(
            o,
            Output::Event {
                event: Event::EngineDown(_),
                ..
            }
        )
    };
    assert!(bench.out.iter().any(told), "{:?}", bench.out);
    assert!(
        matches!(
            &last,
            Some(Output::Reply {
                number: 5,
                reply: ControlReply::Failed(_),
                ..
            })
        ),
        "{last:?}"
    );
    bench.out.clear();
    bench.input(Input::ForkServerDown);
    assert_eq!(replies(&mut bench), [], "engine 2 is on another host");
}

#[test]
fn nothing_is_owed_to_an_observer_that_is_gone() {
    let mut bench = bench();
    let reading = ask(&mut bench, 5, 1).unwrap();
    bench.input(Input::ClientDown { client: CLIENT });
    answers(&mut bench, HOST, reading, "too late");
    assert_eq!(replies(&mut bench), []);
}

#[test]
fn only_so_many_requests_may_be_unanswered() {
    let mut bench = bench();
    let n = (0..1_000)
        .take_while(|number| ask(&mut bench, *number, 1).is_some())
        .count();
    assert_eq!(n, 256);
    let told = replies(&mut bench);
    assert!(
        matches!(&told[..], [(256, ControlReply::Failed(_))]),
        "{told:?}"
    );
}
