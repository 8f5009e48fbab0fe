//! A controller in the middle of its work: engines 0 and 1 of its own host, 2 and 3 of one relay, 4 of another, and
//! tasks of two clients on all of them.

use std::sync::LazyLock;

use broadleaf_core::{Config, Controller, Input, Output};
use broadleaf_proto::control::{DefineOptions, EngineInfo, ForkServerEvent};
use broadleaf_proto::host::EngineReport;
use broadleaf_proto::task::{FunctionRecord, Payload};
use broadleaf_proto::{
    ClientId, EngineId, FunctionHash, FunctionId, HostId, Mode, OptionsId, SubmitRecord, TaskKey,
    TaskOptions, TaskSeq,
};
use bytes::Bytes;
use smallvec::SmallVec;

/// The client whose messages are tried.
pub const CLIENT: ClientId = ClientId(1);
/// Another client, which must come to no harm.
pub const OTHER_CLIENT: ClientId = ClientId(2);
/// The relay whose messages are tried.
pub const HOST: HostId = HostId(1);
/// Its engines.
pub const HOST_ENGINES: [u32; 2] = [2, 3];
/// Another relay, which must come to no harm.
pub const OTHER_HOST: HostId = HostId(2);
/// Number of engines, all up.
pub const N_ENGINES: u32 = 5;

/// Number of first messages after each of which every invariant is verified.
const FIRST_MESSAGES: u64 = 4;
/// Of later messages, one in this many is followed by that check.
const CHECKED_MESSAGES: u64 = 16;

/// The beginning, made once: what follows differs from input to input.
static BEGINNING: LazyLock<World> = LazyLock::new(World::build);

/// See the module.
#[derive(Clone)]
pub struct World {
    /// The controller.
    pub controller: Controller,
    /// Its clock.
    pub now: u64,
    /// Its outputs since they were last taken.
    pub out: Vec<Output>,
    /// Tasks that were offered at the beginning: engine, key.
    pub offered: Vec<(EngineId, TaskKey)>,
    n_messages: u64,
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

fn process_of(engine: u32) -> u32 {
    1000 + engine
}

/// What an engine says in its hello.
pub fn info(engine: u32) -> EngineInfo {
    EngineInfo {
        engine: EngineId(engine),
        uuid: format!("{engine:032x}"),
        pid: process_of(engine),
        host: "here".into(),
    }
}

impl World {
    /// The beginning.
    pub fn new() -> Self {
        BEGINNING.clone()
    }

    fn build() -> Self {
        let config = Config {
            max_outstanding_tasks: 4096,
            max_outstanding_bytes: 1 << 20,
            function_cache_bytes: 1 << 16,
            kept_results_bytes: 1 << 16,
            history_tasks: 64,
            ..Config::default()
        };
        let mut world = Self {
            controller: Controller::new(config),
            now: 1_000_000_000,
            out: Vec::new(),
            offered: Vec::new(),
            n_messages: 0,
        };
        world.input(Input::ForkServerUp);
        for engine in 0..2 {
            let (host, report) = (HostId::CONTROLLER, EngineReport::Up(info(engine)));
            world.input(Input::Report { host, report });
        }
        for (host, engines) in [(HOST, &HOST_ENGINES[..]), (OTHER_HOST, &[4])] {
            world.input(Input::HostUp {
                host,
                name: format!("host {}", host.0),
                n_engines: engines.len() as u32,
                n_cores: 2,
                ends_in_ns: None,
            });
            for engine in engines {
                let spawned = ForkServerEvent::Spawned(EngineId(*engine), process_of(*engine));
                for report in [
                    EngineReport::ForkServer(spawned),
                    EngineReport::Up(info(*engine)),
                ] {
                    world.input(Input::Report { host, report });
                }
            }
        }
        for client in [CLIENT, OTHER_CLIENT] {
            world.input(Input::ClientUp {
                client,
                name: "client".into(),
            });
            let record = FunctionRecord {
                function: FunctionId(0),
                hash: FunctionHash([7; 16]),
                name: Bytes::from_static(b"name"),
                body: Bytes::from_static(b"body"),
            };
            world.input(Input::Function { client, record });
            let options = TaskOptions {
                mode: Mode::Each,
                coalesce: client == CLIENT,
                ..TaskOptions::default()
            };
            let id = OptionsId(1);
            world.input(Input::Options {
                client,
                define: DefineOptions { id, options },
            });
            for (seq, options) in [(0, 1), (5, 0), (6, 0), (7, 0)] {
                let record = SubmitRecord {
                    seq: TaskSeq(seq),
                    function: FunctionId(0),
                    options: OptionsId(options),
                    depth: 0,
                    after: SmallVec::new(),
                    follow: SmallVec::new(),
                    payload: Payload {
                        bytes: Bytes::from_static(b"arguments"),
                        ..Payload::default()
                    },
                };
                world.input(Input::Submit { client, record });
            }
        }
        world.schedule();
        let offers = world.out.drain(..).filter_map(|output| match output {
            Output::Assign { engine, record, .. } => Some((engine, record.key)),
            _ => None,
        });
        world.offered = offers.collect();
        world
    }

    /// Tells the controller something.
    pub fn input(&mut self, input: Input) {
        self.controller.on_input(self.now, input, &mut self.out);
    }

    /// Places ready tasks, and lets time pass.
    pub fn schedule(&mut self) {
        self.now += 50_000_000;
        self.controller.on_deadline(self.now, &mut self.out);
        self.controller.schedule(self.now, &mut self.out);
    }

    /// Engines that take tasks.
    pub fn up(&self) -> Vec<u32> {
        let up = self.controller.engines();
        up.iter().map(|info| info.engine.0).collect()
    }

    /// Places ready tasks after a message, and verifies every invariant: after each of the first messages, and then
    /// after some. Verification after each message would take most of the time. A state that is skipped here is the
    /// last one of a shorter input, and callers verify that with [`Self::check`].
    ///
    /// # Panics
    /// When one is broken.
    pub fn after_message(&mut self) {
        self.schedule();
        self.n_messages += 1;
        if self.n_messages <= FIRST_MESSAGES || self.n_messages.is_multiple_of(CHECKED_MESSAGES) {
            self.check();
        }
    }

    /// Verifies every invariant.
    ///
    /// # Panics
    /// When one is broken.
    pub fn check(&self) {
        if let Err(violation) = self.controller.check() {
            panic!("{violation}");
        }
    }
}
