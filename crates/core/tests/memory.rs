//! What the controller keeps of a queued task, of an ended one and of an engine: bytes, measured as growth of this
//! process. One test at a time may do that, so they are one.

use broadleaf_core::{Config, Controller, Input, Output};
use broadleaf_proto::control::EngineInfo;
use broadleaf_proto::host::EngineReport;
use broadleaf_proto::ids::{
    ClientId, EngineId, FunctionHash, FunctionId, HostId, OptionsId, TaskSeq,
};
use broadleaf_proto::task::{DoneRecord, FunctionRecord, Payload, Status, SubmitRecord};
use bytes::Bytes;
use smallvec::SmallVec;

const CLIENT: ClientId = ClientId(1);
/// As many as fill the tables that double when they are full.
const TASKS: u64 = 1 << 17;
const ENGINES: u32 = 1 << 13;

fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux counts pages");
    let pages = text.split(' ').nth(1).and_then(|n| n.parse::<usize>().ok());
    pages.expect("the second word is their number") * 4096
}

/// Growth of this process while `made` is made, for each of `n`.
fn growth<T>(n: u64, made: impl FnOnce() -> T) -> (u64, T) {
    let before = resident_bytes();
    let made = made();
    let grown = resident_bytes().saturating_sub(before) as u64;
    (grown.div_ceil(n), made)
}

fn controller(config: Config) -> Controller {
    let mut controller = Controller::new(config);
    let mut out = Vec::new();
    let client = CLIENT;
    let name = "bench".to_string();
    controller.on_input(0, Input::ClientUp { client, name }, &mut out);
    let record = FunctionRecord {
        function: FunctionId(0),
        hash: FunctionHash([0; 16]),
        name: Bytes::from_static(b"f"),
        body: Bytes::from_static(b"f"),
    };
    controller.on_input(0, Input::Function { client, record }, &mut out);
    controller
}

fn engine_up(controller: &mut Controller, engine: u32, out: &mut Vec<Output>) {
    let info = EngineInfo {
        engine: EngineId(engine),
        uuid: format!("{engine:032x}"),
        pid: engine + 1,
        host: "here".into(),
    };
    let (host, report) = (HostId::CONTROLLER, EngineReport::Up(info));
    controller.on_input(0, Input::Report { host, report }, out);
}

fn submit(controller: &mut Controller, seq: u64, out: &mut Vec<Output>) {
    let record = SubmitRecord {
        seq: TaskSeq(seq),
        function: FunctionId(0),
        options: OptionsId(0),
        depth: 0,
        after: SmallVec::new(),
        follow: SmallVec::new(),
        payload: Payload {
            bytes: Bytes::from_static(&[0; 32]),
            segments: SmallVec::new(),
            lease: None,
        },
    };
    let client = CLIENT;
    controller.on_input(0, Input::Submit { client, record }, out);
}

/// Runs every task that was assigned.
fn run_assigned(controller: &mut Controller, out: &mut Vec<Output>) {
    controller.schedule(0, out);
    for output in std::mem::take(out) {
        let Output::Assign { engine, record, .. } = output else {
            continue;
        };
        let record = DoneRecord {
            key: record.key,
            status: Status::Ok,
            started_ns: 0,
            completed_ns: 1_000,
            cpu_ns: 0,
            payload: Payload::default(),
        };
        let copy = None;
        let done = Input::Done {
            host: HostId::CONTROLLER,
            engine,
            record,
            copy,
        };
        controller.on_input(0, done, out);
    }
}

#[test]
fn tasks_and_engines_take_few_bytes() {
    let waiting = Config {
        n_engines: 1,
        ..Config::default()
    };
    let mut out = Vec::new();
    let (queued, kept) = growth(TASKS, || {
        let mut controller = controller(waiting);
        (0..TASKS).for_each(|seq| submit(&mut controller, seq, &mut out));
        controller
    });
    assert_eq!(kept.counters().ready, TASKS);

    let remembering = Config {
        history_tasks: TASKS as usize,
        kept_results_bytes: 0,
        ..Config::default()
    };
    let (ended, done) = growth(TASKS, || {
        let mut controller = controller(remembering);
        engine_up(&mut controller, 0, &mut out);
        for seq in 0..TASKS {
            submit(&mut controller, seq, &mut out);
            run_assigned(&mut controller, &mut out);
        }
        controller
    });
    let resolved = done.counters().resolved[Status::Ok as usize];
    assert_eq!(resolved, TASKS);

    let (engine, many) = growth(u64::from(ENGINES), || {
        let mut controller = controller(Config::default());
        (0..ENGINES).for_each(|engine| engine_up(&mut controller, engine, &mut out));
        controller
    });
    assert_eq!(many.counters().engines.len(), ENGINES as usize);

    println!("bytes of a queued task {queued}, of an ended one {ended}, of an engine {engine}");
    assert!(queued <= 256, "{queued} bytes of a queued task");
    assert!(ended <= 48, "{ended} bytes of an ended task");
    assert!(engine <= 1_024, "{engine} bytes of an engine");
}
