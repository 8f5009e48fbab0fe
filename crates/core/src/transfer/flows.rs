//! Decides what one host's mover receives and sends by MPI, and what to do when that fails.
//!
//! A pure machine, one in each host's payload plane. [`super::Transfers`] says which hosts reach each other by MPI.
//! This machine ensures that an object is received in one way at a time, and that memory is not reused while MPI may
//! read or write it: a flow is open until the mover ends it, or is gone. A mover that makes no progress must be
//! killed. Every object then continues over TCP, from the byte it had reached.

use std::collections::{BTreeMap, BTreeSet};

use broadleaf_proto::ids::ObjectId;
use broadleaf_proto::mover::{Flow, Landing, MAX_FLOWS, MAX_PIECE_BYTES, MOVER_TAGS, MoverRank};

use crate::Nanos;

/// How long a flow may make no progress although there is something to send, and how long it may take to end.
pub const STALL_NS: Nanos = 5_000_000_000;
/// Memory that a flow has beyond what has arrived, if its messages are small. Allocating all of it at once would delay
/// everything else that arrives, by seconds where memory is slow.
const AHEAD_BYTES: u64 = 8 * 1024 * 1024;
/// As [`AHEAD_BYTES`], in messages: a mover receives up to four of a flow at a time.
const AHEAD_PIECES: u64 = 4;
/// Memory that is allocated at a time.
const STEP_BYTES: u64 = 8 * 1024 * 1024;

/// The direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To this host.
    In,
    /// To another.
    Out,
}

#[derive(Debug)]
struct Open {
    object: ObjectId,
    direction: Direction,
    /// Bytes that have arrived, or may be sent.
    end_bytes: u64,
    /// Bytes that have memory, if it is to this host.
    room_bytes: u64,
    len_bytes: u64,
    piece_bytes: u32,
    heard_ns: Nanos,
    stopped_ns: Option<Nanos>,
}

impl Open {
    /// Up to which byte it needs memory now, if more than it has.
    fn memory_wanted(&self) -> Option<u64> {
        if self.direction == Direction::Out || self.stopped_ns.is_some() {
            return None;
        }
        let ahead_bytes = AHEAD_BYTES.max(AHEAD_PIECES * u64::from(self.piece_bytes));
        let is_low = self.room_bytes - self.end_bytes <= ahead_bytes / 2;
        let wanted_bytes = self.end_bytes.saturating_add(ahead_bytes);
        let end_bytes = wanted_bytes
            .min(self.room_bytes.saturating_add(STEP_BYTES))
            .min(self.len_bytes);
        (is_low && end_bytes > self.room_bytes).then_some(end_bytes)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Flows {
    mover: Option<MoverRank>,
    is_killed: bool,
    last: u32,
    open: BTreeMap<u32, Open>,
    /// Objects that are not received by MPI because that has failed before.
    tried: BTreeSet<ObjectId>,
}

impl Flows {
    /// The host's mover has connected.
    pub fn on_mover(&mut self, mover: MoverRank) {
        self.mover = Some(mover);
        self.is_killed = false;
    }

    /// The mover's process is gone and no longer reads or writes for its flows; returns those flows.
    pub fn on_gone(&mut self) -> Vec<(ObjectId, Direction)> {
        self.mover = None;
        let open = core::mem::take(&mut self.open);
        open.into_values()
            .map(|f| (f.object, f.direction))
            .collect()
    }

    /// The mover, if it may be used.
    pub fn mover(&self) -> Option<MoverRank> {
        self.mover.filter(|_| !self.is_killed)
    }

    fn open(
        &mut self,
        now: Nanos,
        object: ObjectId,
        direction: Direction,
        (from_bytes, len_bytes): (u64, u64),
        piece_bytes: u32,
    ) -> Option<u32> {
        if self.open.len() >= MAX_FLOWS {
            return None;
        }
        loop {
            self.last = self.last.wrapping_add(1);
            if !self.open.contains_key(&self.last) {
                break;
            }
        }
        let flow = Open {
            object,
            direction,
            end_bytes: from_bytes,
            room_bytes: from_bytes,
            len_bytes,
            piece_bytes,
            heard_ns: now,
            stopped_ns: None,
        };
        self.open.insert(self.last, flow);
        Some(self.last)
    }

    /// Starts to receive an object from another mover, if that is possible now; returns the flow, and what the other
    /// host has to know. The flow has no memory yet: see [`Flows::wants_memory`].
    pub fn receive(
        &mut self,
        now: Nanos,
        object: ObjectId,
        from: Option<MoverRank>,
        range: (u64, u64),
        piece_bytes: u32,
    ) -> Option<(Flow, Landing)> {
        let (from, mover) = (from?, self.mover()?);
        if from.world != mover.world || self.tried.contains(&object) || self.is_receiving(object) {
            return None;
        }
        let number = self.open(now, object, Direction::In, range, piece_bytes)?;
        let landing = Landing {
            mover,
            tag: number % MOVER_TAGS,
            piece_bytes,
        };
        let flow = Flow {
            flow: number,
            peer: from.rank,
            tag: landing.tag,
            piece_bytes,
            segment_offset_bytes: 0,
            len_bytes: range.1,
            from_bytes: range.0,
        };
        Some((flow, landing))
    }

    /// Starts to send an object to another mover, if that is possible now.
    pub fn send(
        &mut self,
        now: Nanos,
        object: ObjectId,
        to: Landing,
        range: (u64, u64),
        segment_offset_bytes: u64,
    ) -> Option<Flow> {
        if !self.reaches(to) || range.0 > range.1 {
            return None;
        }
        Some(Flow {
            flow: self.open(now, object, Direction::Out, range, to.piece_bytes)?,
            peer: to.mover.rank,
            tag: to.tag,
            piece_bytes: to.piece_bytes,
            segment_offset_bytes,
            len_bytes: range.1,
            from_bytes: range.0,
        })
    }

    /// Whether something can be sent there. Another host says where that is, and MPI ends a world for a wrong argument.
    pub fn reaches(&self, to: Landing) -> bool {
        let is_possible = to.tag < MOVER_TAGS && (1..=MAX_PIECE_BYTES).contains(&to.piece_bytes);
        is_possible && self.mover().is_some_and(|m| m.world == to.mover.world)
    }

    /// More of an object may be sent than before; returns whether to tell the mover.
    pub fn on_ready(&mut self, flow: u32, end_bytes: u64) -> bool {
        let Some(open) = self.open.get_mut(&flow) else {
            return false;
        };
        let is_sent = open.direction == Direction::Out && open.stopped_ns.is_none();
        let is_more = is_sent && end_bytes > open.end_bytes;
        if is_more {
            open.end_bytes = end_bytes;
        }
        is_more
    }

    /// Flows to this host that need more memory: their objects, and up to which byte.
    pub fn wants_memory(&self) -> Vec<(u32, ObjectId, u64)> {
        let open = self.open.iter();
        open.filter_map(|(flow, f)| Some((*flow, f.object, f.memory_wanted()?)))
            .collect()
    }

    /// An object has memory up to a byte, which may have taken long; returns whether to tell the mover.
    pub fn on_memory(&mut self, now: Nanos, flow: u32, end_bytes: u64) -> bool {
        let Some(open) = self.open.get_mut(&flow) else {
            return false;
        };
        let is_told = open.direction == Direction::In
            && open.stopped_ns.is_none()
            && end_bytes > open.room_bytes;
        if is_told {
            open.heard_ns = now;
            open.room_bytes = end_bytes;
        }
        is_told
    }

    /// A flow has received more; returns the object, and the first new byte.
    pub fn on_moved(&mut self, now: Nanos, flow: u32, end_bytes: u64) -> Option<(ObjectId, u64)> {
        let open = self.open.get_mut(&flow)?;
        // MPI writes only where there is memory.
        if open.direction != Direction::In
            || !(open.end_bytes + 1..=open.room_bytes).contains(&end_bytes)
        {
            return None;
        }
        open.heard_ns = now;
        let from_bytes = core::mem::replace(&mut open.end_bytes, end_bytes);
        Some((open.object, from_bytes))
    }

    /// The host that sends an object has nothing new to send.
    pub fn on_waiting(&mut self, now: Nanos, object: ObjectId) {
        for open in self.open.values_mut() {
            if open.object == object && open.direction == Direction::In {
                open.heard_ns = now;
            }
        }
    }

    /// The object is no longer needed.
    pub fn forget(&mut self, object: ObjectId) {
        self.tried.remove(&object);
    }

    /// Ends an object's flows in one direction, or in both; returns those that the mover must be told of.
    pub fn stop(&mut self, now: Nanos, object: ObjectId, only: Option<Direction>) -> Vec<u32> {
        let of_it = |f: &Open| f.object == object && only.is_none_or(|d| d == f.direction);
        let open: Vec<u32> = self
            .open
            .iter()
            .filter(|(_, f)| of_it(f))
            .map(|(flow, _)| *flow)
            .collect();
        open.into_iter()
            .filter(|f| self.stop_one(now, *f))
            .collect()
    }

    /// Flows that were to receive an object that nobody sends: they end without a last message.
    pub fn abandon(&mut self, now: Nanos, object: ObjectId) -> Vec<u32> {
        self.tried.insert(object);
        let mut flows = Vec::new();
        for (flow, open) in &mut self.open {
            if open.object == object && open.direction == Direction::In {
                open.stopped_ns.get_or_insert(now);
                flows.push(*flow);
            }
        }
        flows
    }

    /// Ends one flow; returns whether to tell the mover.
    pub fn stop_one(&mut self, now: Nanos, flow: u32) -> bool {
        let open = self.open.get_mut(&flow);
        open.is_some_and(|f| f.stopped_ns.replace(f.stopped_ns.unwrap_or(now)).is_none())
    }

    /// The mover has ended a flow.
    pub fn on_ended(&mut self, flow: u32) -> Option<(ObjectId, Direction)> {
        let open = self.open.remove(&flow)?;
        Some((open.object, open.direction))
    }

    /// Whether an object is being received by MPI, or MPI may still write to its memory.
    pub fn is_receiving(&self, object: ObjectId) -> bool {
        let mut open = self.open.values();
        open.any(|f| f.object == object && f.direction == Direction::In)
    }

    /// Whether MPI may read or write an object's memory.
    pub fn holds(&self, object: ObjectId) -> bool {
        self.open.values().any(|f| f.object == object)
    }

    /// Whether any flow is open.
    pub fn is_busy(&self) -> bool {
        !self.open.is_empty()
    }

    /// Whether the mover must be killed because a flow makes no progress. True only once; afterwards the mover is
    /// given nothing new.
    pub fn is_overdue(&mut self, now: Nanos) -> bool {
        if self.is_killed || self.mover.is_none() {
            return false;
        }
        let is_late = |since: Nanos| now.saturating_sub(since) > STALL_NS;
        self.is_killed = self.open.values().any(|f| match f.stopped_ns {
            Some(since) => is_late(since),
            None => f.direction == Direction::In && is_late(f.heard_ns),
        });
        self.is_killed
    }
}
