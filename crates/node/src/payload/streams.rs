//! Several connections for the chunks of one pull.
//!
//! A fetch asks its source over one connection. Others join it: the source then sends each chunk over whichever of them
//! has room first, so one that is slow holds up no more than what waits in it. Those that join, or stop, in the middle
//! of a pull cost nothing. If one fails, the rest is asked for over one connection, from the first missing byte on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use broadleaf_proto::limits::MAX_PAYLOAD_STREAMS;
use broadleaf_proto::relay::PayloadCommand;
use broadleaf_proto::{HostId, ObjectId};

use super::connection::Connection;
use super::fetch::{Fetching, Joined, SILENCE};
use super::plane::PlaneThread;

/// How long a connection that no fetch uses is kept.
const IDLE: Duration = Duration::from_secs(10);
/// How long a chunk may be missing although every connection goes on bringing others.
const STUCK: Duration = Duration::from_secs(10);
/// How long no more connections to a host are opened after one has failed.
const PAUSE: Duration = Duration::from_secs(10);

impl PlaneThread {
    fn n_connections(&self, host: HostId) -> usize {
        let of_host = |c: &Connection| c.host == Some(host);
        self.connections.iter().filter(|(_, c)| of_host(c)).count()
    }

    /// The host that a fetch gets its object from, and over how many connections.
    fn wanted(&self, id: ObjectId) -> Option<(HostId, usize)> {
        let fetch = self.fetches.get(&id)?;
        let host = self.connections.get(fetch.connection?)?.host?;
        let object = self.objects.get(&id)?;
        let missing_bytes = object.len_bytes() - object.arrived_bytes();
        Some((host, self.streams.number_for(host, missing_bytes)))
    }

    /// Opens the connections that a fetch is going to use, if there are too few.
    pub(super) fn open_extra(&mut self, id: ObjectId, now: Instant) {
        let Some((host, n)) = self.wanted(id) else {
            return;
        };
        let is_paused = self.not_before.get(&host).is_some_and(|until| *until > now);
        let fetch = self.fetches.get(&id).filter(|fetch| !fetch.is_narrow);
        let Some(fetch) = fetch.filter(|_| !is_paused && n > 1) else {
            return;
        };
        if self.mover.flows.is_receiving(id) || self.n_connections(host) >= n {
            return;
        }
        if self.setup.dialer.is_some() {
            let address = fetch.source().and_then(|source| source.address.clone());
            self.dial_extra(host, address.as_deref(), n, now);
        } else if let Some(first) = fetch.connection.and_then(|t| self.connections.get_mut(t)) {
            let connections = n as u32;
            // The next event shows if a connection fails.
            let _ = first.say(&PayloadCommand::Dial { connections });
            self.not_before.insert(host, now + SILENCE);
        }
    }

    fn dial_extra(&mut self, host: HostId, address: Option<&str>, n: usize, now: Instant) {
        while self.n_connections(host) < n
            && let Some(token) = self.dial(host, address)
        {
            self.connections[token].extra = Some(now);
        }
    }

    /// The other end cannot dial, and wants this many connections.
    pub(super) fn on_dial(&mut self, token: usize, connections: u32, now: Instant) {
        let Some(host) = self.connections[token].host else {
            return;
        };
        let is_paused = self.not_before.get(&host).is_some_and(|until| *until > now);
        if !is_paused {
            let n = MAX_PAYLOAD_STREAMS.min(connections as usize);
            self.dial_extra(host, None, n, now);
        }
    }

    /// Has the right number of connections carry chunks of a pull, as far as they are open.
    pub(super) fn widen(&mut self, id: ObjectId, now: Instant) {
        let Some((host, n)) = self.wanted(id) else {
            return;
        };
        let Some(fetch) = self.fetches.get_mut(&id).filter(|f| f.may_join()) else {
            return;
        };
        // At the end of a transfer, those that carry chunks go on.
        let n_kept = self.streams.number(host) - 1;
        let sending = fetch.joined.iter_mut().filter(|joined| joined.is_sending);
        let mut n_sending = 0;
        for joined in sending {
            n_sending += 1;
            if n_sending > n_kept {
                joined.is_sending = false;
                if let Some(connection) = self.connections.get_mut(joined.token) {
                    // The next event shows if a connection fails.
                    let _ = connection.say(&PayloadCommand::Cancel { object: id });
                }
            }
        }
        for (token, connection) in &mut self.connections {
            if n_sending + 1 >= n {
                return;
            }
            if connection.host != Some(host) || !connection.is_up || fetch.connection == Some(token)
            {
                continue;
            }
            let joined = fetch.joined.iter_mut().find(|j| j.token == token);
            if joined.as_ref().is_some_and(|j| j.is_sending) {
                continue;
            }
            match joined {
                Some(joined) => joined.is_sending = true,
                None => fetch.joined.push(Joined {
                    token,
                    is_sending: true,
                }),
            }
            n_sending += 1;
            // As above.
            let _ = connection.say(&PayloadCommand::Join {
                object: id,
                pull: fetch.pull,
                round_trip_ns: connection.round_trip_ns(),
            });
        }
        self.open_extra(id, now);
    }

    /// The current pull of a fetch is over on all connections but the first.
    pub(super) fn leave_joined(&mut self, id: ObjectId) {
        let fetch = self.fetches.get_mut(&id);
        let joined = fetch.map_or(Vec::new(), |f| std::mem::take(&mut f.joined));
        for joined in joined {
            self.cancel_at(Some(joined.token), id);
        }
    }

    /// The other end wants chunks of a pull over this connection as well.
    pub(super) fn on_join(
        &mut self,
        token: usize,
        (object, pull): (ObjectId, u32),
        round_trip_ns: u64,
        now: Instant,
    ) {
        let buffer_bytes = self.setup.socket_buffer_bytes;
        let connection = &mut self.connections[token];
        connection.fit_buffer(round_trip_ns, buffer_bytes);
        let host = connection.host;
        let others = self.connections.iter();
        let mut others = others.filter(|(other, c)| *other != token && c.host == host);
        let cursor = others.find_map(|(_, c)| c.cursor(object, pull)).cloned();
        // Without one, everything was sent before this came.
        if let Some(cursor) = cursor {
            self.connections[token].join(object, cursor, pull, now);
        }
    }

    /// A connection is gone: what it carried for fetches that had asked another one is asked for again there.
    pub(super) fn on_stream_gone(&mut self, token: usize, gone: &Connection, now: Instant) {
        let used = |f: &Fetching| f.joined.iter().any(|joined| joined.token == token);
        let fetches = self.fetches.iter().filter(|(_, f)| used(f));
        let ids: Vec<ObjectId> = fetches.map(|(id, _)| *id).collect();
        let Some(host) = gone.host else { return };
        if gone.extra.is_some() && !gone.is_up {
            self.not_before.insert(host, now + PAUSE);
        }
        for id in ids {
            if let Some(fetch) = self.fetches.get_mut(&id) {
                fetch.joined.retain(|joined| joined.token != token);
            }
            self.narrow(id, now);
        }
        if self.n_connections(host) == 0 {
            self.streams.forget(host);
        }
    }

    /// Asks the same source for the rest, over one connection.
    fn narrow(&mut self, id: ObjectId, now: Instant) {
        if let Some(fetch) = self.fetches.get_mut(&id) {
            fetch.is_narrow = true;
            fetch.ask_again(now);
            if let Some(source) = fetch.source() {
                self.not_before.insert(source.host, now + PAUSE);
            }
            self.ask(id, now);
        }
    }

    /// Called several times a second while anything moves, or there are connections that are extra.
    pub(super) fn on_stream_tick(&mut self, now: Instant) {
        self.measure(now);
        let ids: Vec<ObjectId> = self.fetches.keys().copied().collect();
        for id in ids {
            let (Some(fetch), Some(object)) = (self.fetches.get_mut(&id), self.objects.get(&id))
            else {
                continue;
            };
            let stuck_for = fetch.stuck_for(object.arrived_bytes(), object.has_gap(), now);
            if stuck_for > SILENCE {
                self.unstick(id, stuck_for, now);
            }
            self.widen(id, now);
        }
        self.close_idle(now);
    }

    fn measure(&mut self, now: Instant) {
        let mut received_bytes = BTreeMap::new();
        for (_, connection) in &mut self.connections {
            if let Some(host) = connection.host {
                *received_bytes.entry(host).or_insert(0) += connection.take_received();
            }
        }
        let asked = self.fetches.values().filter(|f| f.may_join());
        let sending: BTreeSet<HostId> = asked.filter_map(|f| Some(f.source()?.host)).collect();
        for (host, bytes) in received_bytes {
            let first = self.find(host).and_then(|t| self.connections.get(t));
            match first.filter(|_| sending.contains(&host)) {
                Some(first) => {
                    let (now_ns, round_trip_ns) = (self.mover.ns(now), first.round_trip_ns());
                    self.streams.on_received(now_ns, host, round_trip_ns, bytes);
                }
                None => self.streams.on_idle(host),
            }
        }
    }

    /// Has what does not come over one connection come over another.
    fn unstick(&mut self, id: ObjectId, stuck_for: Duration, now: Instant) {
        let Some(fetch) = self.fetches.get(&id) else {
            return;
        };
        let is_silent = |token: &usize| {
            let connection = self.connections.get(*token);
            connection.is_none_or(|c| now.duration_since(c.heard) > SILENCE)
        };
        let silent: Vec<usize> = fetch.connections().filter(is_silent).collect();
        let first = fetch.connection;
        // One that is only slow brings it in the end, if it was sent at all.
        if stuck_for > STUCK || !silent.is_empty() {
            self.narrow(id, now);
        }
        for token in silent {
            if Some(token) != first {
                self.close(token, now);
            }
        }
    }

    fn close_idle(&mut self, now: Instant) {
        self.not_before.retain(|_, until| *until > now);
        let used: BTreeSet<usize> = self
            .fetches
            .values()
            .flat_map(Fetching::connections)
            .collect();
        let mut idle = Vec::new();
        for (token, connection) in &mut self.connections {
            let is_used = used.contains(&token) || connection.is_serving() || !connection.is_up;
            match &mut connection.extra {
                Some(last) if is_used => *last = now,
                Some(last) if now.duration_since(*last) > IDLE => idle.push(token),
                _ => {}
            }
        }
        let is_alone = |c: &Connection| {
            c.extra.is_some() && c.host.is_some_and(|host| self.find(host).is_none())
        };
        let alone = self.connections.iter().filter(|(_, c)| is_alone(c));
        idle.extend(alone.map(|(token, _)| token));
        for token in idle {
            self.close(token, now);
        }
    }
}
