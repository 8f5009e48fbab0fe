//! Nanoseconds of processor time that the controller spends on a plain task: submit, assign, done and result. With
//! and without the result store, of short and of long tasks, and by the number of engines, in turns; prints JSON lines.

use broadleaf_core::{Config, Controller, Input, Output};
use broadleaf_proto::control::EngineInfo;
use broadleaf_proto::host::EngineReport;
use broadleaf_proto::ids::{
    ClientId, EngineId, FunctionHash, FunctionId, HostId, OptionsId, TaskSeq,
};
use broadleaf_proto::task::{DoneRecord, FunctionRecord, Payload, Status, SubmitRecord};
use bytes::Bytes;
use smallvec::SmallVec;

const TASKS: u64 = 400_000;
const ENGINES: [u32; 4] = [4, 100, 1_000, 10_000];
/// Short tasks fill few engines, long ones are spread over all.
const KINDS: [(&str, u64); 2] = [("short", 1_000), ("long", 100_000)];
const ROUNDS: usize = 5;
const BATCH: u64 = 256;

/// Processor time of this thread so far. Other programs hardly disturb it.
fn processor_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat");
    let text = text.expect("Linux counts the processor time of threads");
    let first = text.split(' ').next().and_then(|word| word.parse().ok());
    first.expect("it starts with a number")
}

fn main() {
    let kept_bytes = [0, Config::default().kept_results_bytes];
    let mut cases = Vec::new();
    for (kind, task_ns) in KINDS {
        for kept_results_bytes in kept_bytes {
            for n_engines in ENGINES {
                cases.push((kind, task_ns, kept_results_bytes, n_engines, Vec::new()));
            }
        }
    }
    // In turns, so that what else the machine does meets all alike.
    for _ in 0..ROUNDS {
        for (_, task_ns, kept_results_bytes, n_engines, runs) in &mut cases {
            runs.push(run(*n_engines, *kept_results_bytes, *task_ns));
        }
    }
    for (kind, _, kept_results_bytes, n_engines, runs) in cases {
        let ns: Vec<u64> = runs.iter().map(|(ns, _)| *ns).collect();
        let visits: Vec<f64> = runs.iter().map(|(_, n)| *n as f64 / TASKS as f64).collect();
        println!(
            "{{\"case\": \"core\", \"tasks\": \"{kind}\", \"engines\": {n_engines}, \"kept_results_bytes\": {kept_results_bytes}, \"ns_per_task\": {ns:?}, \"engine_visits_per_task\": {visits:?}}}"
        );
    }
}

/// Nanoseconds of each task, and engines looked at for all of them.
fn run(n_engines: u32, kept_results_bytes: u64, task_ns: u64) -> (u64, u64) {
    let client = ClientId(1);
    let mut controller = Controller::new(Config {
        kept_results_bytes,
        ..Config::default()
    });
    let mut out = Vec::new();
    let name = "bench".to_string();
    controller.on_input(0, Input::ClientUp { client, name }, &mut out);
    let record = FunctionRecord {
        function: FunctionId(0),
        hash: FunctionHash([0; 16]),
        name: Bytes::from_static(b"f"),
        body: Bytes::from_static(b"f"),
    };
    controller.on_input(0, Input::Function { client, record }, &mut out);
    for engine in 0..n_engines {
        let info = EngineInfo {
            engine: EngineId(engine),
            uuid: engine.to_string(),
            pid: engine + 1,
            host: "here".into(),
        };
        let (host, report) = (HostId::CONTROLLER, EngineReport::Up(info));
        controller.on_input(0, Input::Report { host, report }, &mut out);
    }
    let arguments = Bytes::from(vec![0; 32]);
    let (mut submitted, mut results, mut now) = (0, 0, 0);
    let mut inputs = Vec::new();
    out.clear();
    let visits_before = controller.engine_visits();
    let start_ns = processor_ns();
    while results < TASKS {
        let end = TASKS.min(submitted + BATCH);
        for seq in submitted..end {
            let record = SubmitRecord {
                seq: TaskSeq(seq),
                function: FunctionId(0),
                options: OptionsId(0),
                depth: 0,
                after: SmallVec::new(),
                follow: SmallVec::new(),
                payload: Payload {
                    bytes: arguments.clone(),
                    segments: SmallVec::new(),
                    lease: None,
                },
            };
            inputs.push(Input::Submit { client, record });
        }
        submitted = end;
        now += 100_000;
        for input in inputs.drain(..) {
            controller.on_input(now, input, &mut out);
        }
        controller.schedule(now, &mut out);
        for output in out.drain(..) {
            match output {
                Output::Assign { engine, record, .. } => inputs.push(Input::Done {
                    host: HostId::CONTROLLER,
                    engine,
                    record: DoneRecord {
                        key: record.key,
                        status: Status::Ok,
                        started_ns: now,
                        completed_ns: now + task_ns,
                        cpu_ns: 0,
                        payload: record.payload,
                    },
                    copy: None,
                }),
                Output::Result { .. } => results += 1,
                _ => {}
            }
        }
    }
    let ns_per_task = (processor_ns() - start_ns) / TASKS;
    (ns_per_task, controller.engine_visits() - visits_before)
}
