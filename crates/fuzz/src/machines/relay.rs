//! What a relay sends to the controller. However it lies, engines of other hosts and their tasks come to no harm, only
//! processes of its own host are signalled, and the controller's outputs are limited.

use broadleaf_core::transfer::{TopologyChoice, Transfers};
use broadleaf_core::{Input, Output};
use broadleaf_proto::control::{EngineInfo, ForkServerEvent};
use broadleaf_proto::engine::EngineEvent;
use broadleaf_proto::host::{EngineOrder, EngineReport};
use broadleaf_proto::relay::{HostCounts, Progress, RelayEvent, RelayedDone, messages};
use broadleaf_proto::task::{DoneRecord, OutputRecord, Payload};
use broadleaf_proto::wire::Reader;
use broadleaf_proto::{
    EngineId, FrameKind, HostId, ObjectId, SegmentId, SegmentRef, Status, TaskKey,
};
use bytes::Bytes;

use super::super::choices::Choices;
use super::world::{HOST, HOST_ENGINES, N_ENGINES, World};

const OBJECT: ObjectId = ObjectId(7);
const OBJECT_BYTES: u64 = 8 << 20;
/// Maximum number of the controller's outputs after one event.
const MAX_OUTPUTS: usize = 256;

/// The first byte says whether frames follow, or choices.
pub fn run(data: &[u8]) {
    let Some((mode, data)) = data.split_first() else {
        return;
    };
    let mut trial = Trial::new();
    if mode % 2 == 0 {
        trial.frames(data);
    } else {
        let mut choices = Choices::new(data);
        while !choices.is_empty() {
            trial.choose(&mut choices);
        }
    }
    trial.world.check();
}

/// The bytes of one frame as [`run`] takes them.
pub fn frame(kind: FrameKind, body: &[u8], out: &mut Vec<u8>) {
    out.push(kind as u8);
    out.extend_from_slice(&(body.len() as u16).to_le_bytes());
    out.extend_from_slice(body);
}

struct Trial {
    world: World,
    transfers: Transfers,
    elsewhere: Vec<u32>,
    counted: u64,
}

impl Trial {
    fn new() -> Self {
        let world = World::new();
        let mut transfers = Transfers::default();
        let hosts: Vec<HostId> = (1..5).map(HostId).collect();
        for host in &hosts {
            transfers.on_host_up(*host, true);
        }
        let origin = HostId::CONTROLLER;
        let mut orders = Vec::new();
        transfers.want(
            world.now,
            OBJECT,
            OBJECT_BYTES,
            origin,
            &hosts,
            TopologyChoice::default(),
            &mut orders,
        );
        let elsewhere = world.up();
        let elsewhere = elsewhere.into_iter().filter(|e| !HOST_ENGINES.contains(e));
        Self {
            elsewhere: elsewhere.collect(),
            world,
            transfers,
            counted: 0,
        }
    }

    fn frames(&mut self, mut data: &[u8]) {
        while let [kind, low, high, rest @ ..] = data {
            let len = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
            let (body, rest) = rest.split_at(len);
            data = rest;
            if self.frame(*kind, body).is_none() {
                return; // The link is closed.
            }
        }
    }

    fn frame(&mut self, kind: u8, body: &[u8]) -> Option<()> {
        match FrameKind::try_from(kind).ok()? {
            FrameKind::RelayEvent => {
                for event in messages::<RelayEvent>(body) {
                    self.hear(event.ok()?);
                }
            }
            FrameKind::RelayedDone => {
                let mut reader = Reader::new(Bytes::copy_from_slice(body));
                while !reader.is_empty() {
                    let RelayedDone { engine, record } = RelayedDone::decode(&mut reader).ok()?;
                    self.done(engine, record);
                }
            }
            FrameKind::Output => {
                let mut reader = Reader::new(Bytes::copy_from_slice(body));
                while !reader.is_empty() {
                    self.output(OutputRecord::decode(&mut reader).ok()?);
                }
            }
            _ => return None,
        }
        Some(())
    }

    fn hear(&mut self, event: RelayEvent) {
        let host = HOST;
        let mut orders = Vec::new();
        let now = self.world.now;
        match event {
            RelayEvent::Report(report) => self.tell(Input::Report { host, report }),
            RelayEvent::EndsSoon { ends_in_ns } => self.tell(Input::HostEnds { host, ends_in_ns }),
            RelayEvent::Rejoined(holdings) => self.tell(Input::HostRejoined { host, holdings }),
            RelayEvent::Measured(counts) => self.tell(Input::Measured { host, counts }),
            RelayEvent::Fetched(progress) => {
                self.transfers
                    .on_progress(now, host, &progress, &mut orders);
                self.after_transfer(&orders);
            }
            RelayEvent::FetchFailed { object, .. } => {
                self.transfers.on_failed(host, object, &mut orders);
                self.after_transfer(&orders);
            }
            RelayEvent::Mover(mover) => self.transfers.on_mover(host, mover),
            RelayEvent::Pong { sent_ns, .. } => {
                let ns = now.saturating_sub(sent_ns);
                self.transfers.on_round_trip(host, ns);
            }
        }
    }

    fn done(&mut self, engine: EngineId, record: DoneRecord) {
        self.tell(Input::Done {
            host: HOST,
            engine,
            record,
            copy: None,
        });
    }

    fn output(&mut self, record: OutputRecord) {
        self.tell(Input::Output {
            host: HOST,
            engine: record.engine,
            record,
        });
    }

    fn tell(&mut self, input: Input) {
        self.world.input(input);
        self.world.after_message();
        assert!(self.world.out.len() <= MAX_OUTPUTS);
        let mut expelled = false;
        let controller = &self.world.controller;
        for output in std::mem::take(&mut self.world.out) {
            match output {
                Output::Expel { host } => {
                    assert_eq!(host, HOST);
                    expelled = true;
                }
                // Ranks of an MPI world become engines of this host.
                Output::Order(EngineOrder::Kill { engine, .. }) => {
                    assert_eq!(controller.host_of(engine), HOST);
                }
                _ => {}
            }
        }
        if expelled {
            self.world.input(Input::HostDown { host: HOST });
            self.world.out.clear();
        }
        let up = self.world.up();
        assert!(self.elsewhere.iter().all(|engine| up.contains(engine)));
    }

    fn after_transfer(&mut self, orders: &[broadleaf_core::transfer::TransferCommand]) {
        assert!(orders.len() <= 8);
        self.transfers.check().expect("parents stand before");
        self.counted += orders.len() as u64;
    }

    fn key(&self, choices: &mut Choices<'_>) -> TaskKey {
        let offered = &self.world.offered;
        match choices.byte() {
            255 => TaskKey(choices.number()),
            n => offered[usize::from(n) % offered.len()].1,
        }
    }

    fn choose(&mut self, choices: &mut Choices<'_>) {
        let engine = match choices.below(8) {
            0 => EngineId(choices.number() as u32),
            1 => EngineId(choices.below(N_ENGINES + 1)),
            n => EngineId(HOST_ENGINES[n as usize % 2]),
        };
        let object = match choices.below(4) {
            0 => ObjectId(choices.number()),
            _ => OBJECT,
        };
        let report = match choices.below(14) {
            0 => EngineReport::Up(EngineInfo {
                engine,
                uuid: choices.text(80),
                pid: choices.number() as u32,
                host: choices.text(300),
            }),
            1 => EngineReport::Down {
                engine,
                unclaimed_offers: (0..choices.below(8))
                    .map(|_| choices.number() as u32)
                    .collect(),
                next_offer: choices.number() as u32,
            },
            2 => EngineReport::Revoked {
                engine,
                key: self.key(choices),
                won: choices.below(2) == 0,
            },
            3 => EngineReport::Waits {
                engine,
                event: match choices.below(2) {
                    0 => EngineEvent::WaitStarted(self.key(choices)),
                    _ => EngineEvent::WaitEnded(self.key(choices)),
                },
            },
            n @ (4 | 5) => EngineReport::ForkServer(fork_server_event(n == 5, engine, choices)),
            6 => return self.hear(RelayEvent::Fetched(progress(object, choices))),
            7 => {
                return self.hear(RelayEvent::FetchFailed {
                    object,
                    reason: choices.text(100),
                });
            }
            8 => EngineReport::Delivered {
                engine,
                key: self.key(choices),
            },
            9 => EngineReport::Undeliverable {
                engine,
                key: self.key(choices),
                reason: choices.text(10_000),
            },
            10 => {
                return self.hear(RelayEvent::Pong {
                    sent_ns: choices.number(),
                    unread_bytes: choices.number(),
                });
            }
            12 => {
                return self.hear(RelayEvent::Measured(HostCounts {
                    at_ns: choices.number(),
                    engines: vec![(engine, choices.number())],
                    ..HostCounts::default()
                }));
            }
            11 => {
                return self.output(OutputRecord {
                    task: self.key(choices).0,
                    engine,
                    stream: 1 + choices.below(3) as u8,
                    bytes: Bytes::copy_from_slice(choices.bytes(4)),
                });
            }
            _ => {
                let range = SegmentRef {
                    segment: SegmentId(choices.number()),
                    offset_bytes: choices.number(),
                    len_bytes: choices.number(),
                };
                let record = DoneRecord {
                    key: self.key(choices),
                    status: Status::try_from(choices.byte() % 7).unwrap_or(Status::Ok),
                    started_ns: choices.number(),
                    completed_ns: choices.number(),
                    cpu_ns: choices.number(),
                    payload: Payload {
                        bytes: Bytes::copy_from_slice(choices.bytes(4)),
                        segments: (0..choices.below(2)).map(|_| range).collect(),
                        lease: None,
                    },
                };
                return self.done(engine, record);
            }
        };
        self.hear(RelayEvent::Report(report));
    }
}

fn progress(object: ObjectId, choices: &mut Choices<'_>) -> Progress {
    Progress {
        object,
        have_bytes: choices.number(),
        is_complete: choices.below(2) == 0,
        source: HostId(choices.below(6)),
        receiving_ns: choices.number(),
        wire_bytes: choices.number(),
        mover_bytes: choices.number(),
        resumed_at: (0..choices.below(4)).map(|_| choices.number()).collect(),
        corrupt_chunks: choices.number() as u32,
    }
}

fn fork_server_event(
    has_exited: bool,
    engine: EngineId,
    choices: &mut Choices<'_>,
) -> ForkServerEvent {
    if has_exited {
        return ForkServerEvent::Exited {
            engine,
            pid: match choices.below(2) {
                0 => 1000 + engine.0 % 8,
                _ => choices.number() as u32,
            },
            code: Some(choices.number() as i32).filter(|code| *code != 9),
            signal: Some(choices.number() as i32).filter(|signal| *signal != 9),
            out_of_memory: choices.below(2) == 0,
            last_output: choices.text(20_000),
        };
    }
    match choices.below(3) {
        0 => ForkServerEvent::Spawned(engine, choices.number() as u32),
        1 => ForkServerEvent::Written {
            reading: choices.number() % 4,
            text: choices.text(100),
        },
        _ => ForkServerEvent::NotStarted {
            engine,
            reason: choices.text(10_000),
        },
    }
}
