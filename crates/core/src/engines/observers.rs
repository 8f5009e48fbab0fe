//! What observers, such as an open dashboard, ask of hosts: figures of a host, and what an engine has written. Nothing
//! is asked while nobody looks; a host that has not answered is not asked for its figures again; and nothing is owed by
//! a host that is gone, nor to an observer that is.

use std::collections::{BTreeMap, BTreeSet};

use broadleaf_proto::control::{ControlReply, ReadWritten, Seen};
use broadleaf_proto::host::EngineOrder;
use broadleaf_proto::ids::{ClientId, EngineId, HostId};
use broadleaf_proto::limits::MAX_WRITTEN_BYTES;
use broadleaf_proto::relay::HostCounts;

use crate::check::{Violation, ensure};
use crate::engines::State;
use crate::{Controller, Nanos, Output};

/// Number of requests for what engines have written that may be unanswered, over all observers.
const MAX_READINGS: usize = 256;

/// A request for what an engine has written.
#[derive(Clone, Debug)]
struct Reading {
    client: ClientId,
    number: u64,
    engine: EngineId,
    host: HostId,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observers {
    /// Relays' hosts whose figures were asked for and have not come.
    measuring: BTreeSet<HostId>,
    /// The latest figures of connected hosts, and when they came.
    measured: BTreeMap<HostId, (HostCounts, Nanos)>,
    readings: BTreeMap<u64, Reading>,
    last_reading: u64,
}

impl Observers {
    /// Whoever this is no longer wants an answer.
    pub fn drop_client(&mut self, client: ClientId) {
        self.readings.retain(|_, reading| reading.client != client);
    }

    /// What a host owes will not come: requests are answered now.
    pub fn drop_host(&mut self, host: HostId, out: &mut Vec<Output>) {
        self.measuring.remove(&host);
        self.measured.remove(&host);
        let owed = self.readings.values().filter(|r| r.host == host);
        out.extend(owed.map(|reading| reading.reply(no_host(reading.engine))));
        self.readings.retain(|_, reading| reading.host != host);
    }
}

impl Reading {
    fn reply(&self, reply: ControlReply) -> Output {
        Output::Reply {
            client: self.client,
            number: self.number,
            reply,
        }
    }
}

fn no_host(engine: EngineId) -> ControlReply {
    ControlReply::Failed(format!(
        "the host of engine {} is gone, or has no fork server",
        engine.0
    ))
}

impl Controller {
    /// Somebody looks at the hosts, and will be told their figures when it looks again.
    pub(crate) fn on_observed(&mut self, out: &mut Vec<Output>) {
        for host in self.hosts.up() {
            if self.observers.measuring.insert(host) {
                out.push(Output::Measure { host });
            }
        }
    }

    pub(crate) fn on_measured(&mut self, now: Nanos, host: HostId, counts: HostCounts) {
        self.observers.measuring.remove(&host);
        self.observers.measured.insert(host, (counts, now));
    }

    /// The latest figures of connected hosts: the host's name, the figures, and when they came.
    pub fn measured(&self) -> impl Iterator<Item = (String, &HostCounts, Nanos)> {
        let measured = self.observers.measured.iter();
        measured.map(move |(host, (counts, at))| (self.hosts.name(*host), counts, *at))
    }

    /// An observer asks what an engine has written. The fork server of its host can tell; the reply follows, unless this
    /// returns it.
    pub(crate) fn read_written(
        &mut self,
        client: ClientId,
        number: u64,
        engine: EngineId,
        seen: Option<Seen>,
        out: &mut Vec<Output>,
    ) -> Option<ControlReply> {
        let Some(known) = self.engines.get(engine.0 as usize) else {
            return Some(ControlReply::Failed(format!(
                "no such engine: {}",
                engine.0
            )));
        };
        let host = known.host;
        if !self.can_spawn(host) {
            return Some(no_host(engine));
        }
        if self.observers.readings.len() >= MAX_READINGS {
            return Some(ControlReply::Failed(format!(
                "{MAX_READINGS} requests for the output of engines are unanswered: ask again later"
            )));
        }
        let has_process = !matches!(known.state, State::Gone | State::Restarting);
        let pid = if has_process { known.pid() } else { 0 };
        self.observers.last_reading += 1;
        let reading = self.observers.last_reading;
        let asked = Reading {
            client,
            number,
            engine,
            host,
        };
        self.observers.readings.insert(reading, asked);
        let read = ReadWritten {
            engine,
            pid,
            reading,
            seen,
        };
        out.push(Output::Order(EngineOrder::ReadWritten(read)));
        None
    }

    /// What a host answers to a request that was made there.
    pub(crate) fn on_written(
        &mut self,
        host: HostId,
        reading: u64,
        text: String,
        out: &mut Vec<Output>,
    ) {
        let asked = self.observers.readings.get(&reading);
        let Some(asked) = asked.filter(|asked| asked.host == host) else {
            self.totals.ignored += 1; // Its observer may have left.
            return;
        };
        let reply = if text.is_empty() || text.len() > MAX_WRITTEN_BYTES {
            let engine = asked.engine.0;
            ControlReply::Failed(format!("the output of engine {engine} cannot be read"))
        } else {
            ControlReply::Text(text)
        };
        out.push(asked.reply(reply));
        self.observers.readings.remove(&reading);
    }

    pub(crate) fn check_observers(&self) -> Result<(), Violation> {
        let observers = &self.observers;
        let asked = observers.measuring.iter().chain(observers.measured.keys());
        for host in asked {
            ensure(self.is_relay_up(*host), || {
                format!("{host:?} is gone, and owes its figures")
            })?;
        }
        for reading in observers.readings.values() {
            ensure(self.can_spawn(reading.host), || {
                format!("{reading:?} will not be answered")
            })?;
            let observer = self.clients.get(&reading.client);
            ensure(observer.is_some_and(|c| !c.away), || {
                format!("{reading:?} is of a client that is gone")
            })?;
        }
        Ok(())
    }
}
