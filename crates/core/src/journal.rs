//! What a controller that is started again cannot learn from its relays and clients.
//!
//! The controller says each such fact once ([`Output::Note`](crate::Output::Note)), the driver adds those about
//! connections and appends them to a file. [`Facts`] is what a file's facts amount to. It also gives the facts to begin a
//! new file with, which is how a file stays small.

use std::collections::{BTreeMap, VecDeque};

use broadleaf_proto::PayloadSecret;
use broadleaf_proto::control::EngineInfo;
use broadleaf_proto::ids::{ClientId, EngineId, HostId};
use broadleaf_proto::resume::SessionKey;
use serde::{Deserialize, Serialize};

/// Number of keys of one host's link that are kept.
const MAX_SESSIONS: usize = 8;

/// Something that a later controller has to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// A controller was started: how many there were before it.
    Started(u32),
    /// A relay has connected.
    HostUp(HostId, String),
    /// A host is gone.
    HostDown(HostId),
    /// A slot belongs to this relay's host, and an engine is to be started there.
    Slot(EngineId, HostId),
    /// An engine of a relay's host is up.
    EngineUp(EngineInfo),
    /// Nothing will fill this slot.
    SlotGone(EngineId),
    /// A relay's link has this key.
    Session(HostId, SessionKey),
    /// This seals payload between hosts.
    Secret(PayloadSecret),
    /// This number was given to a host, or to a client that has one as a host has.
    HostNumber(HostId),
    /// This number was given to a client.
    ClientNumber(ClientId),
}

/// A relay's host that may come back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its number.
    pub host: HostId,
    /// Its name.
    pub name: String,
    /// Its slots, in order, each with the engine that was up.
    pub slots: Vec<(EngineId, Option<EngineInfo>)>,
}

/// The hosts that a controller had when it ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// How many controllers there were before the one that learns this.
    pub n_before: u32,
    /// Its relays' hosts, in order.
    pub hosts: Vec<Member>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Slot {
    host: HostId,
    info: Option<EngineInfo>,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// How many controllers there were before the latest one.
    n_before: Option<u32>,
    hosts: BTreeMap<HostId, String>,
    slots: BTreeMap<EngineId, Slot>,
    /// The latest keys of each host's link: a relay that comes back may not have learnt the last one.
    sessions: BTreeMap<HostId, VecDeque<SessionKey>>,
    secret: Option<PayloadSecret>,
    last_host: HostId,
    last_client: Option<ClientId>,
}

impl Facts {
    /// Adds a fact.
    pub fn add(&mut self, fact: Fact) {
        match fact {
            Fact::Started(n_before) => self.n_before = Some(n_before),
            Fact::HostUp(host, name) => {
                self.last_host = self.last_host.max(host);
                self.hosts.insert(host, name);
            }
            Fact::HostDown(host) => {
                self.hosts.remove(&host);
                self.sessions.remove(&host);
                self.slots.retain(|_, slot| slot.host != host);
            }
            Fact::Slot(engine, host) => {
                self.slots.insert(engine, Slot { host, info: None });
            }
            Fact::EngineUp(info) => {
                if let Some(slot) = self.slots.get_mut(&info.engine) {
                    slot.info = Some(info);
                }
            }
            Fact::SlotGone(engine) => {
                self.slots.remove(&engine);
            }
            Fact::Session(host, session) => {
                let sessions = self.sessions.entry(host).or_default();
                if sessions.len() == MAX_SESSIONS {
                    sessions.pop_front();
                }
                sessions.push_back(session);
            }
            Fact::Secret(secret) => self.secret = Some(secret),
            Fact::HostNumber(host) => self.last_host = self.last_host.max(host),
            Fact::ClientNumber(client) => self.last_client = self.last_client.max(Some(client)),
        }
    }

    /// Facts that amount to the same.
    pub fn all(&self) -> Vec<Fact> {
        let mut facts = vec![Fact::HostNumber(self.last_host)];
        facts.extend(self.n_before.map(Fact::Started));
        facts.extend(self.secret.clone().map(Fact::Secret));
        facts.extend(self.last_client.map(Fact::ClientNumber));
        for (host, name) in &self.hosts {
            facts.push(Fact::HostUp(*host, name.clone()));
        }
        for (host, sessions) in &self.sessions {
            facts.extend(sessions.iter().map(|key| Fact::Session(*host, *key)));
        }
        for (engine, slot) in &self.slots {
            facts.push(Fact::Slot(*engine, slot.host));
            facts.extend(slot.info.clone().map(Fact::EngineUp));
        }
        facts
    }

    /// Notes that one more controller starts; returns what it is told first.
    pub fn start(&mut self) -> Members {
        let n_before = self.n_before.map_or(0, |n| n.wrapping_add(1));
        self.add(Fact::Started(n_before));
        let slots_of = |host: HostId| {
            let slots = self.slots.iter().filter(move |(_, slot)| slot.host == host);
            slots.map(|(engine, slot)| (*engine, slot.info.clone()))
        };
        let hosts = self.hosts.iter().map(|(host, name)| Member {
            host: *host,
            name: name.clone(),
            slots: slots_of(*host).collect(),
        });
        Members {
            n_before,
            hosts: hosts.collect(),
        }
    }

    /// The keys of the links of hosts that may come back.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionKey, HostId)> {
        let known = |(host, _): &(&HostId, _)| self.hosts.contains_key(host);
        let known = self.sessions.iter().filter(known);
        known.flat_map(|(host, keys)| keys.iter().map(|key| (*key, *host)))
    }

    /// What seals payload between hosts, if that was decided.
    pub fn secret(&self) -> Option<&PayloadSecret> {
        self.secret.as_ref()
    }

    /// The highest number that a host has had.
    pub fn last_host(&self) -> HostId {
        self.last_host
    }

    /// The lowest number that no client has had.
    pub fn next_client(&self) -> ClientId {
        self.last_client
            .map_or(ClientId(0), |ClientId(last)| ClientId(last.wrapping_add(1)))
    }
}
