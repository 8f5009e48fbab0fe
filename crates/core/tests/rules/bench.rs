//! A controller on a test bench: inputs by hand, outputs collected.

use std::collections::BTreeMap;

use broadleaf_core::{Config, Controller, Input, Output};
use broadleaf_proto::control::{
    self, ControlReply, ControlRequest, DeathCertificate, DefineOptions, EngineInfo,
    ForkServerEvent, RefusalReason,
};
use broadleaf_proto::host::{EngineOrder, EngineReport};
use broadleaf_proto::ids::{
    ClientId, EngineId, FunctionHash, FunctionId, HostId, OptionsId, SegmentId, TaskSeq,
};
use broadleaf_proto::task::{
    AssignRecord, DoneRecord, FunctionRecord, Payload, ResultRecord, SegmentRef, SubmitRecord,
};
use broadleaf_proto::{Mode, Status, TargetSet, TaskKey, TaskOptions};
use bytes::Bytes;
use smallvec::SmallVec;

pub const MS: u64 = 1_000_000;
pub const CLIENT: ClientId = ClientId(7);

pub struct Bench {
    pub controller: Controller,
    pub now: u64,
    pub out: Vec<Output>,
    next_seq: u64,
    next_options: u32,
    /// The nesting depth of tasks submitted from now on.
    pub depth: u16,
    /// By engine: the number after its last offer.
    next_offers: BTreeMap<EngineId, u32>,
}

/// Settings without engines of their own.
pub fn config() -> Config {
    Config {
        prefetch_min: 2,
        ..Config::default()
    }
}

pub fn each(engines: &[u32]) -> TaskOptions {
    TaskOptions {
        mode: Mode::Each,
        ..on(engines)
    }
}

pub fn on(engines: &[u32]) -> TaskOptions {
    let ranges = engines.iter().map(|e| (EngineId(*e), EngineId(e + 1)));
    TaskOptions {
        targets: TargetSet::Ranges(ranges.collect()),
        ..TaskOptions::default()
    }
}

pub fn info(engine: u32) -> EngineInfo {
    EngineInfo {
        engine: EngineId(engine),
        uuid: format!("uuid of {engine}"),
        pid: 100 + engine,
        host: "here".into(),
    }
}

impl Bench {
    /// A client with one function, and engines 0..n.
    pub fn new(config: Config, n_engines: u32) -> Self {
        let mut bench = Self {
            controller: Controller::new(config),
            now: 1_000 * MS,
            out: Vec::new(),
            next_seq: 0,
            next_options: 1,
            depth: 0,
            next_offers: BTreeMap::new(),
        };
        bench.client(CLIENT);
        for engine in 0..n_engines {
            bench.engine_up(engine);
        }
        bench.out.clear();
        bench
    }

    pub fn input(&mut self, input: Input) {
        self.controller.on_input(self.now, input, &mut self.out);
        self.controller.check().unwrap();
    }

    /// The controller's own host reports something.
    pub fn reports(&mut self, report: EngineReport) {
        if let EngineReport::Up(info) = &report {
            self.next_offers.remove(&info.engine);
        }
        let host = HostId::CONTROLLER;
        self.input(Input::Report { host, report });
    }

    /// The fork server of that host says something.
    pub fn fork_server(&mut self, event: ForkServerEvent) {
        self.reports(EngineReport::ForkServer(event));
    }

    pub fn schedule(&mut self) {
        let before = self.out.len();
        self.controller.schedule(self.now, &mut self.out);
        for output in &self.out[before..] {
            if let Output::Assign { engine, record, .. } = output {
                self.next_offers.insert(*engine, record.offer + 1);
            }
        }
        self.controller.check().unwrap();
    }

    pub fn pass(&mut self, ns: u64) {
        self.now += ns;
        self.controller.on_deadline(self.now, &mut self.out);
        self.schedule();
    }

    pub fn client(&mut self, client: ClientId) {
        let name = "test".into();
        self.input(Input::ClientUp { client, name });
        self.function(client, 0, b"body");
    }

    pub fn function(&mut self, client: ClientId, function: u32, body: &'static [u8]) {
        let mut hash = [0; 16];
        hash[..body.len().min(16)].copy_from_slice(&body[..body.len().min(16)]);
        let record = FunctionRecord {
            function: FunctionId(function),
            hash: FunctionHash(hash),
            name: Bytes::from_static(body),
            body: Bytes::from_static(body),
        };
        self.input(Input::Function { client, record });
    }

    pub fn engine_up(&mut self, engine: u32) {
        self.reports(EngineReport::Up(info(engine)));
    }

    pub fn engine_down(&mut self, engine: u32, unclaimed_offers: &[u32]) {
        let unclaimed_offers = unclaimed_offers.to_vec();
        let engine = EngineId(engine);
        let next_offer = self.next_offers.get(&engine).copied().unwrap_or(0);
        self.reports(EngineReport::Down {
            engine,
            unclaimed_offers,
            next_offer,
        });
        self.schedule();
    }

    pub fn exited(&mut self, engine: u32, signal: i32) {
        self.fork_server(ForkServerEvent::Exited {
            engine: EngineId(engine),
            pid: 100 + engine,
            code: None,
            signal: Some(signal),
            out_of_memory: false,
            last_output: "oh no".into(),
        });
    }

    pub fn options(&mut self, options: TaskOptions) -> OptionsId {
        let id = OptionsId(self.next_options);
        self.next_options += 1;
        let define = DefineOptions { id, options };
        self.input(Input::Options {
            client: CLIENT,
            define,
        });
        id
    }

    /// Submits with these options and dependencies; returns the (first) number.
    pub fn submit_after(&mut self, options: TaskOptions, after: &[u64], follow: &[u64]) -> u64 {
        let parts = match (&options.mode, &options.targets) {
            (Mode::Each, TargetSet::Ranges(ranges)) => ranges.len() as u64,
            _ => 1,
        };
        let id = self.options(options);
        let seq = self.next_seq;
        self.next_seq += parts;
        self.submit_record(CLIENT, seq, id, 0, after, follow);
        seq
    }

    pub fn submit_record(
        &mut self,
        client: ClientId,
        seq: u64,
        options: OptionsId,
        function: u32,
        after: &[u64],
        follow: &[u64],
    ) {
        let record = SubmitRecord {
            seq: TaskSeq(seq),
            function: FunctionId(function),
            options,
            depth: self.depth,
            after: after.iter().copied().map(TaskSeq).collect(),
            follow: follow.iter().copied().map(TaskSeq).collect(),
            payload: Payload {
                bytes: Bytes::from(seq.to_le_bytes().to_vec()),
                segments: SmallVec::new(),
                lease: None,
            },
        };
        self.input(Input::Submit { client, record });
    }

    /// Submits a load-balanced task with this many bytes of inline arguments, and these ranges:
    /// segment and length.
    pub fn submit_ranges(&mut self, inline_bytes: usize, ranges: &[(u64, u64)]) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        let segment_range = |(segment, len_bytes): &(u64, u64)| SegmentRef {
            segment: SegmentId(*segment),
            offset_bytes: 0,
            len_bytes: *len_bytes,
        };
        let record = SubmitRecord {
            seq: TaskSeq(seq),
            function: FunctionId(0),
            options: OptionsId(0),
            depth: 0,
            after: SmallVec::new(),
            follow: SmallVec::new(),
            payload: Payload {
                bytes: Bytes::from(vec![0; inline_bytes]),
                segments: ranges.iter().map(segment_range).collect(),
                lease: None,
            },
        };
        self.input(Input::Submit {
            client: CLIENT,
            record,
        });
        self.schedule();
        seq
    }

    pub fn submit_with(&mut self, options: TaskOptions) -> u64 {
        self.submit_after(options, &[], &[])
    }

    /// Submits plain tasks, then schedules; returns their numbers.
    pub fn submit(&mut self, n: u64) -> Vec<u64> {
        let seqs = (0..n).map(|_| self.submit_with(TaskOptions::default()));
        let seqs = seqs.collect();
        self.schedule();
        seqs
    }

    /// Takes the assignments so far: (engine, number of the task).
    pub fn assigned(&mut self) -> Vec<(u32, u64)> {
        let of = |(engine, r): (u32, AssignRecord)| {
            (
                engine,
                u64::from_le_bytes(r.payload.bytes[..].try_into().unwrap()),
            )
        };
        self.assigns().into_iter().map(of).collect()
    }

    pub fn assigns(&mut self) -> Vec<(u32, AssignRecord)> {
        self.take(|output| match output {
            Output::Assign { engine, record, .. } => Some((engine.0, record.clone())),
            _ => None,
        })
    }

    /// Takes the outputs that `pick` picks.
    pub fn take<T>(&mut self, pick: impl Fn(&Output) -> Option<T>) -> Vec<T> {
        let taken = self.out.iter().filter_map(&pick).collect();
        self.out.retain(|output| pick(output).is_none());
        taken
    }

    /// Takes the results so far; those of refused runs are expanded.
    pub fn results(&mut self) -> Vec<ResultRecord> {
        let results = self.take(|output| match output {
            Output::Result { record, .. } => Some(vec![record.clone()]),
            Output::Refused { record, .. } => Some(record.results().collect()),
            _ => None,
        });
        results.into_iter().flatten().collect()
    }

    /// Takes the results so far: (number, status).
    pub fn ends(&mut self) -> Vec<(u64, Status)> {
        let results = self.results().into_iter();
        results.map(|r| (r.seq.0, r.status)).collect()
    }

    pub fn revokes(&mut self) -> Vec<(u32, TaskKey)> {
        self.take(|output| match output {
            Output::Order(EngineOrder::Revoke { engine, key, .. }) => Some((engine.0, *key)),
            _ => None,
        })
    }

    pub fn revoked(&mut self, engine: u32, key: TaskKey, won: bool) {
        let engine = EngineId(engine);
        self.reports(EngineReport::Revoked { engine, key, won });
        self.schedule();
    }

    pub fn done(&mut self, engine: u32, key: TaskKey, status: Status, task_ns: u64) {
        self.end(engine, key, status, task_ns, Vec::new());
    }

    /// A task raised, and left this error record.
    pub fn raised(&mut self, engine: u32, key: TaskKey, record: Vec<u8>) {
        self.end(engine, key, Status::Error, MS, record);
    }

    fn end(&mut self, engine: u32, key: TaskKey, status: Status, task_ns: u64, value: Vec<u8>) {
        let record = DoneRecord {
            key,
            status,
            started_ns: self.now,
            completed_ns: self.now + task_ns,
            cpu_ns: 0,
            payload: Payload {
                bytes: Bytes::from(value),
                ..Payload::default()
            },
        };
        let engine = EngineId(engine);
        self.input(Input::Done {
            host: HostId::CONTROLLER,
            engine,
            record,
            copy: None,
        });
        self.schedule();
    }

    /// Takes the first assignment.
    pub fn assigns_one(&mut self) -> (u32, AssignRecord) {
        let at = self
            .out
            .iter()
            .position(|o| matches!(o, Output::Assign { .. }));
        match self.out.remove(at.unwrap()) {
            Output::Assign { engine, record, .. } => (engine.0, record),
            other => panic!("{other:?}"),
        }
    }

    /// Ends a task with this value.
    pub fn done_with(&mut self, engine: u32, key: TaskKey, value: Vec<u8>) {
        self.end(engine, key, Status::Ok, MS, value);
    }

    /// An engine does not meet a task's condition, and says why.
    pub fn unmet(&mut self, engine: u32, key: TaskKey, said: &str) {
        self.end(engine, key, Status::Unmet, MS, said.into());
    }

    /// Ends everything that was assigned, until nothing is assigned any more.
    pub fn run_all(&mut self, task_ns: u64) {
        loop {
            let assigns = self.assigns();
            if assigns.is_empty() {
                return;
            }
            for (engine, record) in assigns {
                self.done(engine, record.key, Status::Ok, task_ns);
            }
        }
    }

    pub fn request(&mut self, request: ControlRequest) -> Vec<ControlReply> {
        self.input(Input::Request {
            client: CLIENT,
            number: 1,
            request,
        });
        self.schedule();
        self.take(|output| match output {
            Output::Reply { reply, .. } => Some(reply.clone()),
            _ => None,
        })
    }
}

pub fn refusal(record: &ResultRecord) -> RefusalReason {
    assert_eq!(record.status, Status::Refused);
    control::decode(&record.payload.bytes).unwrap()
}

pub fn certificate(record: &ResultRecord) -> DeathCertificate {
    assert_eq!(record.status, Status::Lost);
    control::decode(&record.payload.bytes).unwrap()
}
