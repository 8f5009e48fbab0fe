//! What observers, such as an open dashboard, ask of hosts: figures of a host, and what an engine has written. Nothing
//! is asked while nobody looks; a host that has not answered is not asked for its figures again; and nothing is owed by
//! a host that is gone, nor to an observer that is.

use std::collections::{BTreeMap, BTreeSet};

use broadleaf_proto::control::ControlReply;
use broadleaf_proto::ids::{ClientId, EngineId, HostId};
use broadleaf_proto::limits::MAX_WRITTEN_BYTES;
use broadleaf_proto::relay::HostCounts;

use crate::check::{Violation, ensure};
use crate::{Nanos, Output};

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

    /// Somebody looks at these hosts, and will be told their figures when it looks again.
    pub fn observe(&mut self, hosts: impl Iterator<Item = HostId>, out: &mut Vec<Output>) {
        for host in hosts {
            if self.measuring.insert(host) {
                out.push(Output::Measure { host });
            }
        }
    }

    /// A host's figures came.
    pub fn on_measured(&mut self, now: Nanos, host: HostId, counts: HostCounts) {
        self.measuring.remove(&host);
        self.measured.insert(host, (counts, now));
    }

    /// The latest figures of connected hosts, and when they came.
    pub fn measured(&self) -> impl Iterator<Item = (HostId, &HostCounts, Nanos)> {
        let measured = self.measured.iter();
        measured.map(|(host, (counts, at))| (*host, counts, *at))
    }

    /// An observer asks what an engine has written: the number of the request to its host.
    ///
    /// # Errors
    /// The reply, if too many requests are unanswered.
    pub fn ask(
        &mut self,
        client: ClientId,
        number: u64,
        engine: EngineId,
        host: HostId,
    ) -> Result<u64, ControlReply> {
        if self.readings.len() >= MAX_READINGS {
            return Err(ControlReply::Failed(format!(
                "{MAX_READINGS} requests for the output of engines are unanswered: ask again later"
            )));
        }
        self.last_reading += 1;
        let asked = Reading {
            client,
            number,
            engine,
            host,
        };
        self.readings.insert(self.last_reading, asked);
        Ok(self.last_reading)
    }

    /// What a host answers to a request that was made there. False if there was none: its observer may have left.
    pub fn on_written(
        &mut self,
        host: HostId,
        reading: u64,
        text: String,
        out: &mut Vec<Output>,
    ) -> bool {
        let asked = self.readings.get(&reading);
        let Some(asked) = asked.filter(|asked| asked.host == host) else {
            return false;
        };
        let reply = if text.is_empty() || text.len() > MAX_WRITTEN_BYTES {
            let engine = asked.engine.0;
            ControlReply::Failed(format!("the output of engine {engine} cannot be read"))
        } else {
            ControlReply::Text(text)
        };
        out.push(asked.reply(reply));
        self.readings.remove(&reading);
        true
    }

    /// Verifies that only hosts that are up owe figures, and that only clients that are here wait for hosts that can
    /// answer.
    pub fn check(
        &self,
        is_up: impl Fn(HostId) -> bool,
        can_answer: impl Fn(HostId) -> bool,
        is_here: impl Fn(ClientId) -> bool,
    ) -> Result<(), Violation> {
        for host in self.measuring.iter().chain(self.measured.keys()) {
            ensure(is_up(*host), || {
                format!("{host:?} is gone, and owes its figures")
            })?;
        }
        for reading in self.readings.values() {
            ensure(can_answer(reading.host), || {
                format!("{reading:?} will not be answered")
            })?;
            ensure(is_here(reading.client), || {
                format!("{reading:?} is of a client that is gone")
            })?;
        }
        Ok(())
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

/// The reply to a request about an engine whose host cannot tell.
pub(crate) fn no_host(engine: EngineId) -> ControlReply {
    ControlReply::Failed(format!(
        "the host of engine {} is gone, or has no fork server",
        engine.0
    ))
}
