//! Simulated MPI worlds: processes that no fork server started announce themselves, wherever
//! they are.

use broadleaf_core::Nanos;
use broadleaf_proto::control::ForkServerEvent;
use broadleaf_proto::host::EngineReport;
use broadleaf_proto::ids::{EngineId, HostId};

use crate::cluster::{Cluster, Event, Link, NodeEvent};
use crate::peers::engine::EngineProcess;

const MS: Nanos = 1_000_000;
/// Number of ranks in each world.
const SIZE: u32 = 3;

/// A rank that waits for its slot.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    host: HostId,
    world: String,
    rank: u32,
    pid: u32,
}

impl Cluster {
    /// The ranks of a world announce themselves, each on some host that is connected.
    pub(crate) fn start_world(&mut self, name: u32) {
        if self.stopping || self.finished {
            return;
        }
        let mut hosts: Vec<HostId> = self.hosts.keys().copied().collect();
        hosts.extend(self.fork_server.map(|_| HostId::CONTROLLER));
        if hosts.is_empty() {
            return;
        }
        let world = format!("world {name}");
        for rank in 0..SIZE {
            let host = hosts[self.random.below(hosts.len() as u64) as usize];
            self.next_pid += 1;
            let pid = self.next_pid;
            self.guests.push(Guest {
                host,
                world: world.clone(),
                rank,
                pid,
            });
            let event = ForkServerEvent::Guest {
                world: world.clone(),
                size: SIZE,
                rank,
                pid,
            };
            self.fork_server_says(host, event);
        }
    }

    /// A rank gets its slot, and says hello.
    pub(crate) fn seat(&mut self, host: HostId, engine: EngineId, world: &str, rank: u32) {
        let is_meant = |g: &Guest| g.host == host && g.world == world && g.rank == rank;
        let Some(index) = self.guests.iter().rposition(is_meant) else {
            return; // Its fork server has been replaced since.
        };
        let pid = self.guests.remove(index).pid;
        let mut process = EngineProcess::new(engine, pid);
        process.host = host;
        self.processes.insert(pid, process);
        self.seated += 1;
        self.fork_server_says(host, ForkServerEvent::Spawned(engine, pid));
        if self.random.chance(self.plan.bad_start_percent) {
            let delay = self.random.time(100 * MS);
            self.after(delay, Event::EngineExits(pid, 3));
        } else if host == HostId::CONTROLLER {
            self.send(Link::FromEngine(pid), Event::Node(NodeEvent::Hello(pid)));
        } else {
            let delay = self.random.time(100 * MS);
            self.after(delay, Event::RelayHello(pid));
        }
    }

    /// Ends a rank that waits for its slot; returns false if there is none.
    pub(crate) fn ends_guest(&mut self, pid: u32) -> bool {
        let waiting = self.guests.len();
        self.guests.retain(|guest| guest.pid != pid);
        self.guests.len() < waiting
    }

    fn fork_server_says(&mut self, host: HostId, event: ForkServerEvent) {
        if host != HostId::CONTROLLER {
            self.relay_reports(host, EngineReport::ForkServer(event));
        } else if let Some(number) = self.fork_server {
            let news = Event::Node(NodeEvent::FromForkServer(event));
            self.send(Link::FromForkServer(number), news);
        }
    }
}
