//! A fetch: one object that this host is getting, and its sources.

use std::time::{Duration, Instant};

use broadleaf_proto::relay::{Fetch, Progress, Source};
use broadleaf_proto::{HostId, ObjectId};

use super::object::Accepts;

/// Silence after which a source is abandoned.
pub const SILENCE: Duration = Duration::from_secs(1);
/// Time between two reports of progress.
const REPORT: Duration = Duration::from_millis(250);
/// Number of times that all sources are tried before the fetch fails.
const ROUNDS: u32 = 8;

/// A connection that was asked for chunks of a pull besides the first.
#[derive(Clone, Copy, Debug)]
pub struct Joined {
    /// The connection.
    pub token: usize,
    /// False once it was told to stop: after that, only what was on its way arrives.
    pub is_sending: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Fetching {
    /// The latest command.
    pub order: Fetch,
    /// Index of the current source in the order.
    source: usize,
    rounds: u32,
    /// The connection that was asked, while a request is open.
    pub connection: Option<usize>,
    /// Other connections over which the same pull is answered.
    pub joined: Vec<Joined>,
    /// Whether a connection has failed in the middle of a pull: the rest comes over one.
    pub is_narrow: bool,
    /// The bytes that had arrived without a gap, and since when.
    reached: (u64, Instant),
    /// Number of the current pull; chunks of earlier pulls are ignored.
    pub pull: u32,
    /// When the fetch turned to the current source.
    pub asked: Instant,
    /// Whether anything has come since.
    is_answered: bool,
    first: Option<Instant>,
    wire_bytes: u64,
    mover_bytes: u64,
    resumed_at: Vec<u64>,
    corrupt_chunks: u32,
    reported: (Instant, u64),
}

impl Fetching {
    /// A fetch that has not asked any source yet.
    pub fn new(order: Fetch, now: Instant) -> Self {
        Self {
            order,
            source: 0,
            rounds: 0,
            connection: None,
            joined: Vec::new(),
            is_narrow: false,
            reached: (0, now),
            pull: 0,
            asked: now,
            is_answered: true,
            first: None,
            wire_bytes: 0,
            mover_bytes: 0,
            resumed_at: Vec::new(),
            corrupt_chunks: 0,
            reported: (now, 0),
        }
    }

    /// The source that is being asked, or was asked last.
    pub fn source(&self) -> Option<&Source> {
        self.order.sources.get(self.source)
    }

    fn host(&self) -> HostId {
        self.source().map_or(HostId::CONTROLLER, |s| s.host)
    }

    /// Another command for the same object: its sources replace the old ones. Returns false if the
    /// command is outdated.
    pub fn redirect(&mut self, order: Fetch, arrived_bytes: u64, now: Instant) -> bool {
        if order.epoch <= self.order.epoch {
            return false;
        }
        let before = self.host();
        self.order = order;
        self.source = 0;
        self.rounds = 0;
        if self.host() != before {
            self.turn(arrived_bytes, now);
        }
        true
    }

    /// Turns to the next source. Returns false if all have been tried too often.
    pub fn next_source(&mut self, arrived_bytes: u64, now: Instant) -> bool {
        self.source += 1;
        if self.source >= self.order.sources.len() {
            self.source = 0;
            self.rounds += 1;
        }
        self.turn(arrived_bytes, now);
        self.rounds < ROUNDS && !self.order.sources.is_empty()
    }

    /// Failures until now say nothing about the sources.
    pub fn begin_anew(&mut self) {
        self.rounds = 0;
    }

    fn turn(&mut self, arrived_bytes: u64, now: Instant) {
        self.connection = None;
        self.pull += 1;
        self.asked = now;
        if self.resumed_at.last() != Some(&arrived_bytes) {
            self.resumed_at.push(arrived_bytes);
        }
    }

    /// The current source is asked on this connection; returns the pull's number.
    pub fn on_asked(&mut self, connection: usize, now: Instant) -> u32 {
        self.connection = Some(connection);
        self.asked = now;
        self.is_answered = false;
        self.pull
    }

    /// Whether a chunk that names this pull, on this connection, is one that was asked for and is still wanted.
    pub fn is_from(&self, token: usize, pull: u32) -> bool {
        let is_asked = self.connection == Some(token)
            || self.joined.iter().any(|joined| joined.token == token);
        is_asked && self.pull == pull
    }

    /// Which chunks of the current pull are accepted.
    pub fn accepts(&self) -> Accepts {
        if self.joined.is_empty() {
            Accepts::Next
        } else {
            Accepts::Missing
        }
    }

    /// Whether chunks of the current pull have come over a connection, and may come over others as well.
    pub fn may_join(&self) -> bool {
        self.connection.is_some() && self.is_answered && !self.is_narrow
    }

    /// Every connection over which the current pull is answered.
    pub fn connections(&self) -> impl Iterator<Item = usize> {
        let joined = self.joined.iter().map(|joined| joined.token);
        self.connection.into_iter().chain(joined)
    }

    /// How long a chunk has been missing although later ones have come.
    pub fn stuck_for(&mut self, arrived_bytes: u64, has_gap: bool, now: Instant) -> Duration {
        if self.reached.0 != arrived_bytes || !has_gap {
            self.reached = (arrived_bytes, now);
        }
        now.duration_since(self.reached.1)
    }

    /// A chunk of the current pull has begun to come. Returns the time since it was asked for, if it is the first.
    pub fn on_answer(&mut self, now: Instant) -> Option<Duration> {
        let is_first = !std::mem::replace(&mut self.is_answered, true);
        is_first.then(|| now.duration_since(self.asked))
    }

    /// Asks the same source again, from the byte that the fetch has reached.
    pub fn ask_again(&mut self, now: Instant) {
        self.connection = None;
        self.pull += 1;
        self.asked = now;
    }

    /// Asks the same source again, but not by MPI.
    pub fn leave_mover(&mut self, arrived_bytes: u64, now: Instant) {
        self.turn(arrived_bytes, now);
    }

    /// Bytes arrived by MPI.
    pub fn on_moved(&mut self, bytes: u64, now: Instant) {
        self.first.get_or_insert(now);
        self.mover_bytes += bytes;
        self.rounds = 0;
    }

    /// A chunk came.
    pub fn on_chunk(&mut self, bytes: usize, now: Instant) {
        self.first.get_or_insert(now);
        self.wire_bytes += bytes as u64;
    }

    /// A chunk was checked.
    pub fn on_checked(&mut self, was_corrupt: bool) {
        if was_corrupt {
            self.corrupt_chunks += 1;
        } else {
            self.rounds = 0;
        }
    }

    /// Whether enough corrupt chunks have arrived to abandon their sender.
    pub fn is_corrupt_again(&self) -> bool {
        self.corrupt_chunks.is_multiple_of(2)
    }

    /// Whether the current source has been silent too long, given when its connections last received
    /// anything.
    pub fn is_silent(&self, heard: Option<Instant>, now: Instant) -> bool {
        let since = heard.map_or(self.asked, |heard| heard.max(self.asked));
        now.duration_since(since) > SILENCE
    }

    /// The report to send now, if one is due.
    pub fn report(
        &mut self,
        have_bytes: u64,
        is_complete: bool,
        is_due: bool,
        now: Instant,
    ) -> Option<Progress> {
        let (at, had) = self.reported;
        let is_time = now.duration_since(at) >= REPORT && had != have_bytes;
        if !(is_complete || is_due || is_time) {
            return None;
        }
        self.reported = (now, have_bytes);
        let first = self.first.unwrap_or(now);
        Some(Progress {
            object: self.object(),
            have_bytes,
            is_complete,
            source: self.host(),
            receiving_ns: now.duration_since(first).as_nanos() as u64,
            wire_bytes: self.wire_bytes,
            mover_bytes: self.mover_bytes,
            resumed_at: self.resumed_at.clone(),
            corrupt_chunks: self.corrupt_chunks,
        })
    }

    fn object(&self) -> ObjectId {
        self.order.object
    }
}
