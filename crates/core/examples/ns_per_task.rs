//! Nanoseconds that the controller spends on a plain task: submit, assign, done and result. With
//! and without the result store, and by the number of engines, in turns; prints JSON lines.

#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a benchmark of the pure core needs the clock that the core must not have"
)]

use std::time::Instant;

use broadleaf_core::{Config, Controller, Input, Output};
use broadleaf_proto::control::EngineInfo;
use broadleaf_proto::ids::{ClientId, EngineId, FunctionHash, FunctionId, OptionsId, TaskSeq};
use broadleaf_proto::task::{DoneRecord, FunctionRecord, Payload, Status, SubmitRecord};
use bytes::Bytes;
use smallvec::SmallVec;

const TASKS: u64 = 200_000;
const ENGINES: [u32; 4] = [4, 100, 1_000, 10_000];
const ROUNDS: usize = 5;
const BATCH: u64 = 256;

fn main() {
    let kept_bytes = [0, Config::default().kept_results_bytes];
    for n_engines in ENGINES {
        for kept_results_bytes in kept_bytes {
            let mut times: Vec<u128> = (0..ROUNDS)
                .map(|_| ns_per_task(n_engines, kept_results_bytes))
                .collect();
            times.sort_unstable();
            let median = times[ROUNDS / 2];
            println!(
                "{{\"case\": \"core\", \"engines\": {n_engines}, \"kept_results_bytes\": {kept_results_bytes}, \"ns_per_task\": {median}}}"
            );
        }
    }
}

fn ns_per_task(n_engines: u32, kept_results_bytes: u64) -> u128 {
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
        controller.on_input(0, Input::EngineUp { info }, &mut out);
    }
    let arguments = Bytes::from(vec![0; 32]);
    let (mut submitted, mut results, mut now) = (0, 0, 0);
    let mut inputs = Vec::new();
    out.clear();
    let start = Instant::now();
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
                    engine,
                    record: DoneRecord {
                        key: record.key,
                        status: Status::Ok,
                        started_ns: now,
                        completed_ns: now + 1000,
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
    start.elapsed().as_nanos() / u128::from(TASKS)
}
