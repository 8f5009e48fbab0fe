//! Requests of observers: see [`crate::engines::observers`].

use broadleaf_proto::control::{ControlReply, ForkServerOrder, ReadWritten, Seen};
use broadleaf_proto::host::EngineOrder;
use broadleaf_proto::ids::{ClientId, EngineId};
use broadleaf_proto::relay::HostCounts;

use super::Controller;
use crate::engines::State;
use crate::engines::observers::no_host;
use crate::{Nanos, Output};

impl Controller {
    /// The latest figures of connected hosts: the host's name, the figures, and when they came.
    pub fn measured(&self) -> impl Iterator<Item = (String, &HostCounts, Nanos)> {
        let measured = self.observers.measured();
        measured.map(move |(host, counts, at)| (self.hosts.name(host), counts, at))
    }

    /// An observer asks what an engine has written. The fork server of its host can tell; the reply follows, unless this
    /// returns it.
    pub(super) fn read_written(
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
        let host = known.host();
        if !self.can_spawn(host) {
            return Some(no_host(engine));
        }
        let has_process = !matches!(known.state(), State::Gone | State::Restarting);
        let pid = if has_process { known.pid() } else { 0 };
        let reading = match self.observers.ask(client, number, engine, host) {
            Ok(reading) => reading,
            Err(reply) => return Some(reply),
        };
        let read = ReadWritten {
            engine,
            pid,
            reading,
            seen,
        };
        let order = ForkServerOrder::ReadWritten(read);
        out.push(Output::Order(EngineOrder::ForkServer(order)));
        None
    }
}
