//! Relays that lie: about engines that are not theirs, processes of other hosts, and offers that
//! were never made. Nobody but those relays may come to harm. What a relay may do to tasks of its
//! own engines, it may do anyway.

use broadleaf_core::Input;
use broadleaf_proto::control::{EngineInfo, ForkServerEvent};
use broadleaf_proto::engine::EngineEvent;
use broadleaf_proto::host::EngineReport;
use broadleaf_proto::ids::{EngineId, HostId, TaskKey};
use broadleaf_proto::task::{DoneRecord, OutputRecord, Payload, Status};
use bytes::Bytes;

use crate::cluster::Cluster;
use crate::peers::values::object_of;

/// An engine that no plan has.
const NOBODYS: u32 = 100_000;

impl Cluster {
    /// One of the relays, if there are any, reports something untrue.
    pub(crate) fn lie(&mut self) {
        let hosts: Vec<HostId> = self.hosts.keys().copied().collect();
        let Some(host) = hosts
            .get(self.random.below(hosts.len() as u64) as usize)
            .copied()
        else {
            return;
        };
        if let Some(lie) = self.a_lie(host) {
            self.relay_says(host, lie);
        }
    }

    /// A process of another host, or of the controller's.
    fn somebody_elses(&mut self, host: HostId) -> Option<(EngineId, u32, Option<TaskKey>)> {
        let others: Vec<_> = self
            .processes
            .values()
            .filter(|p| p.alive && p.host != host)
            .collect();
        let process = others.get(self.random.below(others.len() as u64) as usize)?;
        let key = process.running.as_ref().map(|running| running.key);
        Some((process.engine, process.pid, key))
    }

    fn a_lie(&mut self, host: HostId) -> Option<Input> {
        let own: Vec<EngineId> = self.hosts[&host].linked.keys().copied().collect();
        let own = own
            .get(self.random.below(own.len() as u64) as usize)
            .copied();
        let (engine, _, key) = self.somebody_elses(host)?;
        let (_, pid, _) = self.somebody_elses(host)?;
        let (engine, key) = match self.random.below(10) {
            0 => (EngineId(NOBODYS), key),
            // About its own engine, but naming something that belongs to another.
            1..4 => (own?, key),
            _ => (engine, key),
        };
        let number = self.random.next() as u32;
        let report = match self.random.below(13) {
            0 | 1 => EngineReport::ForkServer(ForkServerEvent::Spawned(engine, pid)),
            2 => EngineReport::ForkServer(ForkServerEvent::Exited {
                engine,
                pid,
                code: None,
                signal: Some(9),
                out_of_memory: false,
                last_output: "never said".into(),
            }),
            3 => EngineReport::Up(EngineInfo {
                engine,
                uuid: "0".repeat(1000),
                pid,
                host: "anywhere".into(),
            }),
            4 | 5 => {
                // More than were offered: the end of its own engine alone would be believed.
                let sent = self.sent_offers.get(&engine).copied().unwrap_or(0);
                EngineReport::Down {
                    engine,
                    unclaimed_offers: vec![number; 3],
                    next_offer: sent.wrapping_add(5000 + number % (u32::MAX / 2)),
                }
            }
            6 => EngineReport::Waits {
                engine,
                event: EngineEvent::WaitStarted(key?),
            },
            7 => EngineReport::Delivered { engine, key: key? },
            8 => EngineReport::Undeliverable {
                engine,
                key: key?,
                reason: "a lie".into(),
            },
            9 => EngineReport::Revoked {
                engine,
                key: key?,
                won: true,
            },
            11 => EngineReport::ForkServer(ForkServerEvent::Written {
                reading: u64::from(number % 16),
                text: "a lie".into(),
            }),
            10 => {
                let record = OutputRecord {
                    task: key?.0,
                    engine,
                    stream: 1,
                    bytes: Bytes::from_static(b"a lie"),
                };
                return Some(Input::Output {
                    host,
                    engine,
                    record,
                });
            }
            _ => {
                let mut payload = Payload {
                    bytes: Bytes::from_static(b"a lie"),
                    ..Payload::default()
                };
                if number.is_multiple_of(2) {
                    let other = HostId(host.0 + 1);
                    payload.segments.push(object_of(other, number.into()));
                }
                let record = DoneRecord {
                    key: key?,
                    status: Status::Ok,
                    started_ns: u64::MAX,
                    completed_ns: 0,
                    cpu_ns: 0,
                    payload,
                };
                return Some(Input::Done {
                    host,
                    engine,
                    record,
                    copy: None,
                });
            }
        };
        Some(Input::Report { host, report })
    }
}
