use broadleaf_core::{Input, Output};
use broadleaf_proto::control::ControlRequest;
use broadleaf_proto::ids::{HostId, TaskSeq};
use broadleaf_proto::limits::MAX_COALESCED_BYTES;
use broadleaf_proto::task::{DoneRecord, Payload};
use broadleaf_proto::{EngineId, Status, TaskOptions};
use bytes::Bytes;

use crate::bench::{Bench, CLIENT, MS, config, each};

fn together(engines: &[u32]) -> TaskOptions {
    TaskOptions {
        coalesce: true,
        ..each(engines)
    }
}

/// Takes the coalesced results so far: (number, status, engine) of each part.
fn coalesced(bench: &mut Bench) -> Vec<Vec<(u64, Status, u32)>> {
    bench.take(|output| match output {
        Output::Coalesced { record, .. } => Some(
            record
                .results()
                .map(|r| (r.seq.0, r.status, r.engine.0))
                .collect(),
        ),
        _ => None,
    })
}

#[test]
fn results_wait_for_each_other_and_come_in_target_order() {
    let mut bench = Bench::new(config(), 3);
    bench.submit_with(together(&[2, 0, 1]));
    bench.schedule();
    let assigned = bench.assigns();
    for (engine, status) in [(1, Status::Ok), (0, Status::Error), (2, Status::Ok)] {
        assert_eq!(coalesced(&mut bench), [] as [Vec<_>; 0]);
        let (_, record) = assigned.iter().find(|(e, _)| *e == engine).unwrap();
        bench.done(engine, record.key, status, MS);
    }
    let expected = vec![
        (0, Status::Ok, 2),
        (1, Status::Error, 0),
        (2, Status::Ok, 1),
    ];
    assert_eq!(coalesced(&mut bench), [expected]);
    assert_eq!(bench.ends(), []);
}

#[test]
fn a_death_and_a_cancel_each_count_as_a_result() {
    let mut bench = Bench::new(config(), 3);
    let seq = bench.submit_with(together(&[0, 1, 2]));
    bench.schedule();
    let assigned = bench.assigns();
    bench.done(0, assigned[0].1.key, Status::Ok, MS);
    let request = ControlRequest::Cancel(vec![TaskSeq(seq + 2)]);
    bench.input(Input::Request {
        client: CLIENT,
        number: 1,
        request,
    });
    let (engine, key) = bench.revokes()[0];
    bench.revoked(engine, key, true);
    assert_eq!(coalesced(&mut bench), [] as [Vec<_>; 0]);
    bench.engine_down(1, &[]);
    bench.exited(1, 9);
    let statuses: Vec<Status> = coalesced(&mut bench)[0]
        .iter()
        .map(|(_, s, _)| *s)
        .collect();
    assert_eq!(statuses, [Status::Ok, Status::Lost, Status::Cancelled]);
}

#[test]
fn beside_a_target_that_is_not_there_results_come_one_by_one() {
    let mut bench = Bench::new(config(), 2);
    let seq = bench.submit_with(together(&[0, 9, 1]));
    bench.schedule();
    assert_eq!(bench.ends(), [(seq + 1, Status::Refused)]);
    bench.run_all(MS);
    assert_eq!(bench.ends(), [(seq, Status::Ok), (seq + 2, Status::Ok)]);
    assert_eq!(coalesced(&mut bench), [] as [Vec<_>; 0]);
}

#[test]
fn nothing_is_gathered_for_a_client_that_left() {
    let mut bench = Bench::new(config(), 2);
    bench.submit_with(together(&[0, 1]));
    bench.schedule();
    let assigned = bench.assigns();
    bench.done(0, assigned[0].1.key, Status::Ok, MS);
    bench.input(Input::ClientDown { client: CLIENT });
    bench.done(1, assigned[1].1.key, Status::Ok, MS);
    assert_eq!(coalesced(&mut bench), [] as [Vec<_>; 0]);
}

#[test]
fn values_too_large_for_one_record_travel_by_themselves() {
    let mut bench = Bench::new(config(), 2);
    bench.submit_with(together(&[0, 1]));
    bench.schedule();
    for (engine, assign) in bench.assigns() {
        let bytes = Bytes::from(vec![7; MAX_COALESCED_BYTES / 2 + 1]);
        let record = DoneRecord {
            key: assign.key,
            status: Status::Ok,
            started_ns: 1,
            completed_ns: 2,
            cpu_ns: 0,
            payload: Payload {
                bytes,
                ..Payload::default()
            },
        };
        bench.input(Input::Done {
            host: HostId::CONTROLLER,
            engine: EngineId(engine),
            record,
            copy: None,
        });
    }
    assert_eq!(coalesced(&mut bench), [] as [Vec<_>; 0]);
    assert_eq!(bench.ends(), [(0, Status::Ok), (1, Status::Ok)]);
}
