use broadleaf_core::{Input, Output};
use broadleaf_proto::Status;
use broadleaf_proto::control::{ControlReply, ControlRequest};
use broadleaf_proto::ids::{ClientId, FunctionId};

use crate::bench::{Bench, CLIENT, MS, config};

/// Takes the functions sent so far: (engine, body).
fn sent(bench: &mut Bench) -> Vec<(u32, String)> {
    bench.take(|output| match output {
        Output::Function { engine, record } => {
            Some((engine.0, String::from_utf8(record.body.to_vec()).unwrap()))
        }
        _ => None,
    })
}

fn prepare(bench: &mut Bench, name: &str, function: u32, reload: bool) -> Vec<ControlReply> {
    bench.request(ControlRequest::Prepare {
        name: name.into(),
        function: FunctionId(function),
        reload,
    })
}

fn of(engine: u32, body: &str) -> (u32, String) {
    (engine, body.into())
}

#[test]
fn engines_prepare_at_once_and_later_ones_before_their_first_task() {
    let mut bench = Bench::new(config(), 1);
    bench.function(CLIENT, 1, b"path");
    assert_eq!(prepare(&mut bench, "path", 1, false), [ControlReply::Done]);
    assert_eq!(sent(&mut bench), [of(0, "path")]);
    bench.submit(3);
    assert_eq!(sent(&mut bench), [of(0, "body")]);
    bench.engine_up(1);
    bench.schedule();
    assert_eq!(sent(&mut bench), [of(1, "path"), of(1, "body")]);
}

#[test]
fn the_latest_of_a_name_counts_and_the_order_is_that_of_the_requests() {
    let mut bench = Bench::new(config(), 0);
    for (function, body) in [(1, &b"one"[..]), (2, b"two"), (3, b"three")] {
        bench.function(CLIENT, function, body);
    }
    prepare(&mut bench, "a", 1, false);
    prepare(&mut bench, "b", 2, false);
    prepare(&mut bench, "a", 3, false);
    bench.engine_up(0);
    assert_eq!(sent(&mut bench), [of(0, "two"), of(0, "three")]);
}

/// Runs a task to its end; returns the functions that its engine was sent for it.
fn run_one(bench: &mut Bench) -> Vec<(u32, String)> {
    bench.submit(1);
    let (engine, record) = bench.assigns().remove(0);
    bench.done(engine, record.key, Status::Ok, MS);
    sent(bench)
}

#[test]
fn a_reload_has_functions_sent_again() {
    let mut bench = Bench::new(config(), 1);
    bench.function(CLIENT, 1, b"path");
    bench.function(CLIENT, 2, b"module");
    assert_eq!(run_one(&mut bench), [of(0, "body")]);
    prepare(&mut bench, "path", 1, false);
    assert_eq!(run_one(&mut bench), [of(0, "path")], "it has the other");
    prepare(&mut bench, "module", 2, true);
    assert_eq!(run_one(&mut bench), [of(0, "module"), of(0, "body")]);
}

#[test]
fn a_client_that_is_gone_prepares_nobody() {
    let mut bench = Bench::new(config(), 0);
    let other = ClientId(8);
    bench.client(other);
    bench.function(other, 1, b"others");
    bench.input(Input::Request {
        client: other,
        number: 1,
        request: ControlRequest::Prepare {
            name: "path".into(),
            function: FunctionId(1),
            reload: false,
        },
    });
    bench.input(Input::ClientDown { client: other });
    bench.engine_up(0);
    assert_eq!(sent(&mut bench), []);
}

#[test]
fn what_was_never_sent_cannot_be_prepared() {
    let mut bench = Bench::new(config(), 1);
    let reply = prepare(&mut bench, "path", 9, false);
    assert!(matches!(reply[..], [ControlReply::Failed(_)]), "{reply:?}");
}

#[test]
fn preparations_of_a_client_are_bounded() {
    let mut bench = Bench::new(config(), 0);
    let failed = (0..2000).find(|n| {
        let reply = prepare(&mut bench, &n.to_string(), 0, false);
        reply != [ControlReply::Done]
    });
    assert_eq!(failed, Some(1024));
    assert_eq!(prepare(&mut bench, "7", 0, false), [ControlReply::Done]);
}
