//! Ended tasks are stored in bounded memory, for other clients and to be run again.

use broadleaf_core::{Config, Input, Output};
use broadleaf_proto::Status;
use broadleaf_proto::control::{ControlReply, ControlRequest, RefusalReason, TaskRecord};
use broadleaf_proto::ids::{ClientId, EngineId, HostId, OptionsId, SegmentId, TaskSeq};
use broadleaf_proto::task::{DoneRecord, Payload, ResultRecord, SegmentRef};
use bytes::Bytes;

use crate::bench::{Bench, CLIENT, MS, config, each, refusal};

const OTHER: ClientId = ClientId(8);

fn ask(bench: &mut Bench, client: ClientId, request: ControlRequest) -> ControlReply {
    bench.input(Input::Request {
        client,
        number: 5,
        request,
    });
    bench.schedule();
    let replies = bench.take(|output| match output {
        Output::Reply { reply, .. } => Some(reply.clone()),
        _ => None,
    });
    replies.into_iter().next().unwrap()
}

fn records(bench: &mut Bench, names: Option<Vec<(ClientId, TaskSeq)>>) -> Vec<TaskRecord> {
    match ask(bench, CLIENT, ControlRequest::Records(names)) {
        ControlReply::Records { records, .. } => records,
        other => panic!("{other:?}"),
    }
}

fn results_of(bench: &mut Bench, of: ClientId) -> Vec<ResultRecord> {
    let results = bench.take(|output| match output {
        Output::Result { client, record } if *client == of => Some(vec![record.clone()]),
        Output::Refused { client, record } if *client == of => Some(record.results().collect()),
        _ => None,
    });
    results.into_iter().flatten().collect()
}

fn subscribe(bench: &mut Bench, first: u64, seqs: &[u64]) {
    let tasks = seqs.iter().map(|seq| (CLIENT, TaskSeq(*seq))).collect();
    let first = TaskSeq(first);
    ask(bench, OTHER, ControlRequest::Subscribe { first, tasks });
}

fn bench(kept_results_bytes: u64) -> Bench {
    let mut bench = Bench::new(
        Config {
            kept_results_bytes,
            ..config()
        },
        1,
    );
    bench.client(OTHER);
    bench
}

#[test]
fn another_client_adopts_ended_and_living_tasks() {
    let mut bench = bench(10_000);
    bench.submit(1);
    bench.run_all(MS);
    bench.submit(1);
    subscribe(&mut bench, 40, &[0, 1, 99]);
    let now = results_of(&mut bench, OTHER);
    let ends: Vec<_> = now.iter().map(|r| (r.seq.0, r.status)).collect();
    assert_eq!(ends, [(40, Status::Ok), (42, Status::Refused)]);
    assert_eq!(refusal(&now[1]), RefusalReason::NotStored);
    bench.run_all(MS);
    let then = results_of(&mut bench, OTHER);
    assert_eq!((then[0].seq.0, then[0].status), (41, Status::Ok));
    assert_eq!(results_of(&mut bench, CLIENT).len(), 2);
}

#[test]
fn a_copy_is_for_other_clients_and_its_own_gets_the_segments() {
    let mut bench = bench(10_000);
    bench.submit(1);
    let (engine, record) = bench.assigns_one();
    let range = SegmentRef {
        segment: SegmentId(7),
        offset_bytes: 0,
        len_bytes: 5,
    };
    let record = DoneRecord {
        key: record.key,
        status: Status::Ok,
        started_ns: 1,
        completed_ns: 2,
        cpu_ns: 0,
        payload: Payload {
            bytes: Bytes::from_static(b"head"),
            segments: smallvec::smallvec![range],
            lease: None,
        },
    };
    let copy = Some(Bytes::from_static(b"whole"));
    let engine = EngineId(engine);
    bench.input(Input::Done {
        host: HostId::CONTROLLER,
        engine,
        record,
        copy: copy.map(Box::new),
    });
    let own = results_of(&mut bench, CLIENT);
    assert_eq!(own[0].payload.segments[..], [range]);
    subscribe(&mut bench, 40, &[0]);
    let others = results_of(&mut bench, OTHER);
    assert_eq!(others[0].payload.bytes, Bytes::from_static(b"whole"));
    assert!(others[0].payload.segments.is_empty());
}

#[test]
fn a_task_runs_from_when_it_is_first_on_its_engine_until_it_ends() {
    let mut bench = bench(10_000);
    bench.submit(3);
    bench.schedule();
    let running = |bench: &mut Bench| {
        let records = records(bench, None);
        let running = records.iter().filter(|r| r.is_running);
        running.map(|r| r.seq.0).collect::<Vec<_>>()
    };
    assert_eq!(running(&mut bench), [0], "one engine, one task");
    let assigned = bench.assigns();
    assert_eq!(assigned.len(), 2, "the second waits on its board");
    bench.done(0, assigned[0].1.key, Status::Ok, MS);
    assert_eq!(running(&mut bench), [1]);
    bench.done(0, assigned[1].1.key, Status::Ok, MS);
    bench.run_all(MS);
    assert_eq!(running(&mut bench), [0; 0]);
}

#[test]
fn what_is_stored_is_bounded_and_can_be_forgotten() {
    let mut bench = bench(1000);
    bench.submit(10);
    bench.run_all(MS);
    let kept = records(&mut bench, None);
    let seqs: Vec<_> = kept.iter().map(|r| r.seq.0).collect();
    let n = seqs.len() as u64;
    assert!((2..10).contains(&n));
    assert_eq!(seqs, (10 - n..10).collect::<Vec<_>>());
    assert!(kept.iter().all(|r| r.has_result && r.can_run_again));
    ask(
        &mut bench,
        OTHER,
        ControlRequest::Forget(Some(vec![(CLIENT, TaskSeq(8))])),
    );
    assert_eq!(records(&mut bench, None).len() as u64, n - 1);
    let names = vec![(CLIENT, TaskSeq(9)), (CLIENT, TaskSeq(8))];
    assert_eq!(records(&mut bench, Some(names)).len(), 1);
    ask(&mut bench, OTHER, ControlRequest::Forget(None));
    assert_eq!(records(&mut bench, None), []);
}

#[test]
fn nothing_is_stored_when_that_is_off() {
    let mut bench = bench(0);
    bench.submit(3);
    bench.run_all(MS);
    assert_eq!(records(&mut bench, None), []);
}

#[test]
fn tasks_of_a_client_that_leaves_go_on_and_their_results_wait() {
    let mut bench = bench(10_000);
    bench.submit(4);
    assert_eq!(
        ask(&mut bench, CLIENT, ControlRequest::Leave),
        ControlReply::Done
    );
    bench.input(Input::ClientDown { client: CLIENT });
    subscribe(&mut bench, 0, &[3]);
    bench.run_all(MS);
    assert_eq!(results_of(&mut bench, OTHER).len(), 1);
    subscribe(&mut bench, 1, &[0, 1, 2]);
    let waited = results_of(&mut bench, OTHER);
    assert!(waited.iter().all(|r| r.status == Status::Ok));
    assert_eq!(waited.len(), 3);
    assert_eq!(results_of(&mut bench, CLIENT), []);
    assert_eq!(bench.controller.counters().clients, 1);
}

#[test]
fn tasks_of_a_client_that_is_gone_end_for_those_who_adopted_them() {
    let mut bench = bench(10_000);
    bench.submit(4);
    subscribe(&mut bench, 0, &[0, 3]);
    bench.input(Input::ClientDown { client: CLIENT });
    for (engine, key) in bench.revokes() {
        let won = key.slot() != 0;
        bench.revoked(engine, key, won);
    }
    bench.run_all(MS);
    let mut ends: Vec<_> = results_of(&mut bench, OTHER)
        .iter()
        .map(|r| (r.seq.0, r.status))
        .collect();
    ends.sort_unstable_by_key(|end| end.0);
    assert_eq!(ends, [(0, Status::Ok), (1, Status::Cancelled)]);
}

#[test]
fn a_subscriber_that_is_gone_is_told_nothing() {
    let mut bench = bench(10_000);
    bench.submit(1);
    subscribe(&mut bench, 0, &[0]);
    bench.input(Input::ClientDown { client: OTHER });
    bench.run_all(MS);
    assert_eq!(results_of(&mut bench, OTHER), []);
    assert_eq!(bench.results().len(), 1);
}

#[test]
fn ended_and_living_tasks_are_run_again() {
    let mut bench = bench(10_000);
    bench.engine_up(1);
    let pinned = bench.submit_with(each(&[1]));
    bench.schedule();
    bench.run_all(MS);
    bench.submit(1);
    let tasks = [pinned, 1, 77].map(|seq| (CLIENT, TaskSeq(seq))).to_vec();
    let first = TaskSeq(10);
    bench.assigned();
    ask(
        &mut bench,
        OTHER,
        ControlRequest::Resubmit {
            first,
            tasks,
            depth: 0,
        },
    );
    let mut again = bench.assigned();
    again.sort_unstable();
    assert_eq!(again.len(), 2);
    assert!(again.contains(&(1, pinned)));
    let refused = results_of(&mut bench, OTHER);
    assert_eq!(refused[0].seq.0, 12);
    assert_eq!(refusal(&refused[0]), RefusalReason::NotStored);
}

#[test]
fn arguments_and_values_of_all_sizes_come_back_after_others_were_forgotten() {
    let sizes = [0, 1000, 64 * 1024, 64 * 1024 + 1];
    let mut bench = bench(160_000);
    // The first ones make room for the last.
    bench.submit(300);
    bench.run_all(MS);
    bench.submit(4);
    for size in sizes {
        let (engine, record) = bench.assigns_one();
        bench.done_with(engine, record.key, vec![size as u8; size]);
    }
    let forgotten = Some(vec![(CLIENT, TaskSeq(301))]);
    ask(&mut bench, OTHER, ControlRequest::Forget(forgotten));
    subscribe(&mut bench, 0, &[300, 302, 303]);
    let values = results_of(&mut bench, OTHER);
    for (record, size) in values.iter().zip([0, 64 * 1024, 64 * 1024 + 1]) {
        assert_eq!(record.status, Status::Ok);
        assert_eq!(record.payload.bytes, vec![size as u8; size]);
    }
    let tasks = [300, 302, 303].map(|seq| (CLIENT, TaskSeq(seq)));
    let first = TaskSeq(10);
    bench.assigned();
    ask(
        &mut bench,
        OTHER,
        ControlRequest::Resubmit {
            first,
            tasks: tasks.to_vec(),
            depth: 0,
        },
    );
    let mut again = Vec::new();
    for _ in 0..3 {
        let (engine, record) = bench.assigns_one();
        again.push(u64::from_le_bytes(
            record.payload.bytes[..].try_into().unwrap(),
        ));
        bench.done_with(engine, record.key, Vec::new());
    }
    assert_eq!(again, [300, 302, 303]);
}

#[test]
fn what_is_stored_makes_room_for_new_functions() {
    let mut bench = Bench::new(
        Config {
            function_cache_bytes: 10,
            ..config()
        },
        1,
    );
    bench.client(OTHER);
    bench.submit_record(OTHER, 0, OptionsId(0), 0, &[], &[]);
    bench.schedule();
    bench.run_all(MS);
    bench.input(Input::ClientDown { client: OTHER });
    bench.input(Input::ClientDown { client: CLIENT });
    assert_eq!(
        bench.controller.counters().functions,
        1,
        "the ended task can be run again"
    );
    bench.input(Input::ClientUp {
        client: ClientId(9),
        name: "new".into(),
    });
    bench.function(ClientId(9), 2, b"too much for all");
    assert_eq!(bench.controller.counters().functions, 1);
    bench.function(ClientId(9), 1, b"another");
    bench.submit_record(ClientId(9), 0, OptionsId(0), 1, &[], &[]);
    bench.schedule();
    bench.run_all(MS);
    let ends = results_of(&mut bench, ClientId(9));
    assert_eq!(ends[0].status, Status::Ok);
}

#[test]
fn numbers_may_come_in_any_order_but_only_once() {
    let mut bench = bench(10_000);
    for seq in [5, 3, 5] {
        bench.submit_record(CLIENT, seq, OptionsId(0), 0, &[], &[]);
    }
    bench.schedule();
    bench.run_all(MS);
    let mut ends = bench.ends();
    ends.sort_unstable_by_key(|end| end.0);
    assert_eq!(ends, [(3, Status::Ok), (5, Status::Ok)]);
    assert_eq!(bench.controller.counters().ignored, 1);
}
