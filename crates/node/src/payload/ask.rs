//! Gets objects: asks a source, turns to the next one, or gives up.

use std::time::Instant;

use broadleaf_proto::relay::{Fetch, PayloadCommand};
use broadleaf_proto::{HostId, ObjectId};
use broadleaf_shm::Lease;

use super::PlaneEvent;
use super::fetch::Fetching;
use super::object::Object;
use super::plane::PlaneThread;

impl PlaneThread {
    pub(super) fn fetch(&mut self, order: Fetch, lease: Option<Lease>, now: Instant) {
        let id = order.object;
        if let Some(fetch) = self.fetches.get_mut(&id) {
            let arrived_bytes = self.objects.get(&id).map_or(0, Object::arrived_bytes);
            let before = fetch.connection;
            fetch.redirect(order, arrived_bytes, now);
            if fetch.connection.is_none() {
                self.cancel_at(before, id);
                self.ask(id, now);
            }
            return;
        }
        let Some(lease) = lease else { return };
        let key = match self.key_of(id) {
            Ok(key) => key,
            Err(error) => return self.fail(id, error.to_string()),
        };
        let mut object = Object::empty(id, lease, order.len_bytes, order.chunk_bytes, key);
        let begun = object.begin();
        self.objects.insert(id, object);
        if let Err(error) = begun {
            self.fail(id, error.to_string());
            return;
        }
        self.fetches.insert(id, Fetching::new(order, now));
        self.ask(id, now);
    }

    pub(super) fn cancel_at(&mut self, token: Option<usize>, object: ObjectId) {
        if let Some(connection) = token.and_then(|t| self.connections.get_mut(t)) {
            let _ = connection.say(&PayloadCommand::Cancel { object });
        }
    }

    pub(super) fn fail(&mut self, object: ObjectId, reason: String) {
        self.leave_joined(object);
        if let Some(fetch) = self.fetches.remove(&object) {
            self.cancel_at(fetch.connection, object);
        }
        self.side.tell(PlaneEvent::Failed { object, reason });
    }

    /// Asks the current source if there is a connection to it; otherwise opens one, or waits for it.
    pub(super) fn ask(&mut self, id: ObjectId, now: Instant) {
        self.leave_joined(id);
        let Some(fetch) = self.fetches.get(&id) else {
            return;
        };
        let Some(source) = fetch.source().cloned() else {
            return;
        };
        if self.stops_receiving(id, now) {
            return; // It is asked once MPI has stopped.
        }
        let token = self
            .find(source.host)
            .or_else(|| self.dial(source.host, source.address.as_deref()));
        let Some(token) = token else { return };
        if !self.connections[token].is_up {
            return; // It is asked once it is connected.
        }
        if let Some(object) = self.objects.get_mut(&id) {
            object.forget_ahead();
        }
        let landing = self.receive_by_mover(id, source.mover, now);
        let connection = &mut self.connections[token];
        let offset_bytes = self.objects.get(&id).map_or(0, Object::arrived_bytes);
        let Some(fetch) = self.fetches.get_mut(&id) else {
            return;
        };
        let pull = fetch.on_asked(token, now);
        let word = PayloadCommand::Pull {
            object: id,
            offset_bytes,
            pull,
            round_trip_ns: connection.round_trip_ns(),
            landing,
        };
        if connection.say(&word).is_err() {
            self.close(token, now);
        } else {
            self.open_extra(id, now);
        }
    }

    pub(super) fn next_source(&mut self, id: ObjectId, now: Instant) {
        let object = self.objects.get(&id);
        let have_bytes = object.map_or(0, Object::have_bytes);
        let arrived_bytes = object.map_or(0, Object::arrived_bytes);
        let is_patient = self.may_come_back(id);
        let Some(fetch) = self.fetches.get_mut(&id) else {
            return;
        };
        if fetch.next_source(arrived_bytes, now) || is_patient {
            if let Some(progress) = fetch.report(have_bytes, false, true, now) {
                self.side.tell(PlaneEvent::Progress(progress));
            }
            self.ask(id, now);
        } else {
            self.fail(id, "no host that has the data could be reached".to_owned());
        }
    }

    /// A host does not answer, or does so again.
    pub(super) fn on_away(&mut self, host: HostId, is_away: bool, now: Instant) {
        if is_away {
            self.away.insert(host);
            return;
        }
        if !self.away.contains(&host) {
            return;
        }
        // Connections from before may wait for a long time until they try again, and those that are being made, too.
        let is_all = host == HostId::CONTROLLER;
        let stale = self
            .connections
            .iter()
            .filter(|(_, c)| is_all || c.host == Some(host));
        for token in stale.map(|(token, _)| token).collect::<Vec<_>>() {
            self.close(token, now);
        }
        self.last_dialled = None;
        // Only now: until then, a fetch that has lost its connection waits.
        self.away.remove(&host);
        for fetch in self.fetches.values_mut() {
            fetch.begin_anew();
        }
    }

    /// Whether a host from which an object can be had is away. A host that is cut off from the controller is cut off from
    /// all others, too.
    fn may_come_back(&self, id: ObjectId) -> bool {
        let sources = self.fetches.get(&id).map(|f| &f.order.sources[..]);
        let mut sources = sources.unwrap_or_default().iter();
        self.away.contains(&HostId::CONTROLLER) || sources.any(|s| self.away.contains(&s.host))
    }

    /// Asks a host that has become reachable for everything that is wanted from it.
    pub(super) fn ask_all(&mut self, host: Option<HostId>, now: Instant) {
        let of_host = |f: &Fetching| f.connection.is_none() && f.source().map(|s| s.host) == host;
        let wanted: Vec<ObjectId> = self
            .fetches
            .iter()
            .filter(|(_, f)| of_host(f))
            .map(|(id, _)| *id)
            .collect();
        for id in wanted {
            self.ask(id, now);
        }
    }
}
