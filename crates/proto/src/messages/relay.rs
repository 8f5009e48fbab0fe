//! Messages between the controller and relays: orders for the engines of a host, reports about them
//! (see [`crate::host`]), and the messages of the payload plane.
//!
//! In records of this module, a payload's `segments` name objects: the segment's number is an
//! [`ObjectId`], and the object is that range, starting at its first byte.

use bytes::BufMut;
use serde::{Deserialize, Serialize};

use crate::ids::{EngineId, FunctionId, HostId, ObjectId, TaskKey};
use crate::limits::{CLAIM_SLOTS, MAX_RELAYED_ENGINES, MAX_RESUMPTIONS};
use crate::messages::control::{EngineInfo, ForkServerEvent};
use crate::messages::host::{EngineOrder, EngineReport};
use crate::messages::mover::{Landing, MoverRank};
use crate::records::task::{DoneRecord, Payload, check, depth};
use crate::wire::{DecodeError, Reader, at_most};

/// Controller to relay. Many per frame, one after the other. Functions and tasks are records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RelayCommand {
    /// For one of its engines.
    Order(EngineOrder),
    /// Pass on to an engine a function that was sent before.
    GiveFunction {
        /// The engine.
        engine: EngineId,
        /// The function.
        function: FunctionId,
    },
    /// Ids under which no task will name functions any more.
    ForgetFunctions(Vec<FunctionId>),
    /// Get an object, or get the rest of it from other sources than before.
    Fetch(Fetch),
    /// Objects that no record will name any more: drop them once no engine holds them.
    Forget(Vec<ObjectId>),
    /// Answer [`RelayEvent::Pong`] at once.
    Ping {
        /// Repeated by the answer.
        sent_ns: u64,
    },
    /// Somebody looks: answer [`RelayEvent::Measured`].
    Measure,
}

/// Where to get an object from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetch {
    /// The object.
    pub object: ObjectId,
    /// Its length.
    pub len_bytes: u64,
    /// The size of the chunks it travels in; always the same for all hosts.
    pub chunk_bytes: u32,
    /// The parent first, then the fallbacks, in this order.
    pub sources: Vec<Source>,
    /// Higher than in any earlier command for this object; outdated commands are ignored.
    pub epoch: u32,
}

/// A host that has an object, or is getting it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The host.
    pub host: HostId,
    /// Where it listens; `None` for the controller's host, which is reached over the existing
    /// connection.
    pub address: Option<String>,
    /// Its mover, if the bytes should travel by MPI.
    pub mover: Option<MoverRank>,
}

/// Relay to controller. Many per frame, one after the other. Ends of tasks and output are records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RelayEvent {
    /// About its engines.
    Report(EngineReport),
    /// The progress of an object's fetch: occasionally, at its end, and when it changed parents.
    Fetched(Progress),
    /// No source could provide the object.
    FetchFailed {
        /// The object.
        object: ObjectId,
        /// For the user.
        reason: String,
    },
    /// The host's mover has connected, or is gone.
    Mover(Option<MoverRank>),
    /// The answer to a ping.
    Pong {
        /// From the ping.
        sent_ns: u64,
        /// What waits for the host's engines to read it.
        unread_bytes: u64,
    },
    /// The host was told that it will be ended: it needs nothing new from now on.
    EndsSoon {
        /// The time that it has left.
        ends_in_ns: u64,
    },
    /// The answer to a request to measure the host.
    Measured(HostCounts),
    /// The first event for a controller that was started again.
    Rejoined(Holdings),
}

/// What a relay has from the time of an earlier controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holdings {
    /// Number of cores that its engines may use.
    pub n_cores: u32,
    /// Time until the host ends by itself, with the batch job that it runs in.
    pub ends_in_ns: Option<u64>,
    /// Its engines, in order.
    #[serde(deserialize_with = "at_most::<_, _, MAX_RELAYED_ENGINES>")]
    pub engines: Vec<HeldEngine>,
    /// The ends of the last processes of other slots. The earlier controller may have been told.
    #[serde(deserialize_with = "at_most::<_, _, MAX_RELAYED_ENGINES>")]
    pub ends: Vec<ForkServerEvent>,
}

/// An engine from the time of an earlier controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldEngine {
    /// Its slot.
    pub engine: EngineId,
    /// The process that the fork server named; 0 for none so far.
    pub pid: u32,
    /// What it runs; `None` until it has said hello.
    pub link: Option<HeldLink>,
}

/// What an engine runs that is up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLink {
    /// The content of its hello.
    pub info: EngineInfo,
    /// The number of its next offer.
    pub next_offer: u32,
    /// Offers that it has begun and whose ends were not reported, in order, with the earlier controller's names for their
    /// tasks. Nothing else is offered to it.
    #[serde(deserialize_with = "at_most::<_, _, CLAIM_SLOTS>")]
    pub unfinished: Vec<(u32, TaskKey)>,
}

/// What a host's kernel has counted since it booted, and what is so now; 0 where it does not tell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCounts {
    /// When, by a clock of the host that never goes back.
    pub at_ns: u64,
    /// Its processors.
    pub cores: u32,
    /// Time of all processors together that was used, in ticks.
    pub busy_ticks: u64,
    /// Time of all processors together, in ticks.
    pub all_ticks: u64,
    /// Memory that is free or can be freed.
    pub free_bytes: u64,
    /// All memory.
    pub total_bytes: u64,
    /// Bytes that all interfaces have received, except the one of the host to itself.
    pub in_bytes: u64,
    /// Bytes that they have sent.
    pub out_bytes: u64,
    /// Resident memory of each engine of the cluster that is there.
    #[serde(deserialize_with = "at_most::<_, _, MAX_RELAYED_ENGINES>")]
    pub engines: Vec<(EngineId, u64)>,
}

/// A host's progress with an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The object.
    pub object: ObjectId,
    /// Bytes that have arrived and are checked.
    pub have_bytes: u64,
    /// Whether that is everything.
    pub is_complete: bool,
    /// The source that is sending now, or sent last.
    pub source: HostId,
    /// Time from the first chunk to now.
    pub receiving_ns: u64,
    /// Bytes that arrived over the wire for it, including rejected and repeated ones.
    pub wire_bytes: u64,
    /// Bytes that arrived by MPI.
    pub mover_bytes: u64,
    /// Where the fetch continued after each change of parent.
    #[serde(deserialize_with = "at_most::<_, _, MAX_RESUMPTIONS>")]
    pub resumed_at: Vec<u64>,
    /// Chunks rejected because their content did not match their checksum.
    pub corrupt_chunks: u32,
}

/// One task for each of several engines of a host: the same function and arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssignMany {
    /// Engine, the controller's name for its task, and the offer's number.
    pub offers: Vec<(EngineId, TaskKey, u32)>,
    /// What to call.
    pub function: FunctionId,
    /// The tasks' nesting depth; see [`crate::SubmitRecord::depth`].
    pub depth: u16,
    /// Arguments.
    pub payload: Payload,
}

impl AssignMany {
    /// Appends the record.
    pub fn encode(&self, out: &mut impl BufMut) {
        out.put_u32_le(self.offers.len() as u32);
        for (engine, key, offer) in &self.offers {
            out.put_u32_le(engine.0);
            out.put_u64_le(key.0);
            out.put_u32_le(*offer);
        }
        out.put_u32_le(self.function.0);
        out.put_u16_le(self.depth);
        self.payload.encode(out);
    }
    /// Reads one record.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not one.
    pub fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        let n = r.u32()? as usize;
        check(n, MAX_RELAYED_ENGINES)?;
        let mut offers = Vec::new();
        for _ in 0..n {
            offers.push((EngineId(r.u32()?), TaskKey(r.u64()?), r.u32()?));
        }
        Ok(Self {
            offers,
            function: FunctionId(r.u32()?),
            depth: depth(r)?,
            payload: Payload::decode(r)?,
        })
    }
}

/// A task ended on an engine of the relay's host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayedDone {
    /// The engine.
    pub engine: EngineId,
    /// How it ended.
    pub record: DoneRecord,
}

impl RelayedDone {
    /// Appends the record.
    pub fn encode(&self, out: &mut impl BufMut) {
        out.put_u32_le(self.engine.0);
        self.record.encode(out);
    }
    /// Reads one record.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not one.
    pub fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            engine: EngineId(r.u32()?),
            record: DoneRecord::decode(r)?,
        })
    }
}

/// Between hosts, over payload connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PayloadCommand {
    /// Send the object from this offset on, as its bytes become available.
    Pull {
        /// The object.
        object: ObjectId,
        /// The first byte needed; a whole number of chunks.
        offset_bytes: u64,
        /// Repeated by each chunk; chunks of an earlier pull are ignored.
        pull: u32,
        /// Shortest round trip that was measured on this connection; 0 while none was.
        round_trip_ns: u64,
        /// Send it by MPI, to this mover.
        landing: Option<Landing>,
    },
    /// Send chunks of a pull that came over another connection of the same host over this one too: each chunk travels
    /// over whichever of them has room first.
    Join {
        /// The object.
        object: ObjectId,
        /// From the pull.
        pull: u32,
        /// As in the pull.
        round_trip_ns: u64,
    },
    /// Stop sending it on this connection.
    Cancel {
        /// The object.
        object: ObjectId,
    },
    /// The sender cannot dial: have this many connections between the two hosts.
    Dial {
        /// At most [`MAX_PAYLOAD_STREAMS`](crate::limits::MAX_PAYLOAD_STREAMS) are opened.
        connections: u32,
    },
    /// The pulled object is not available here.
    Refuse {
        /// The object.
        object: ObjectId,
        /// From the pull.
        pull: u32,
    },
    /// The pulled object is available here, but not by MPI.
    NoMover {
        /// The object.
        object: ObjectId,
        /// From the pull.
        pull: u32,
    },
    /// The pull is alive, but there is nothing new to send yet.
    Waiting {
        /// The object.
        object: ObjectId,
        /// From the pull.
        pull: u32,
    },
}

/// Appends a message to a frame that holds many of its kind.
pub fn append<M: Serialize>(message: &M, out: &mut Vec<u8>) {
    out.extend_from_slice(&crate::messages::control::encode(message));
}

/// Reads the messages of a frame that holds many, one after the other: all at once would take many
/// times their memory. The last is [`DecodeError::Malformed`] if the bytes are malformed from there
/// on.
pub fn messages<'a, M: Deserialize<'a>>(
    mut bytes: &'a [u8],
) -> impl Iterator<Item = Result<M, DecodeError>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let taken = postcard::take_from_bytes(std::mem::take(&mut bytes));
        Some(
            taken
                .map_err(|_| DecodeError::Malformed)
                .map(|(message, rest)| {
                    bytes = rest;
                    message
                }),
        )
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::limits::MAX_NESTING;

    #[test]
    fn a_task_for_many_engines_is_read_as_it_was_written() {
        let many = AssignMany {
            offers: vec![
                (EngineId(3), TaskKey(1 << 40), 7),
                (EngineId(5), TaskKey(2), 0),
            ],
            function: FunctionId(9),
            depth: 2,
            payload: Payload {
                bytes: Bytes::from_static(b"arguments"),
                ..Payload::default()
            },
        };
        let mut body = Vec::new();
        many.encode(&mut body);
        for end in 0..body.len() {
            let mut reader = Reader::new(Bytes::copy_from_slice(&body[..end]));
            assert!(AssignMany::decode(&mut reader).is_err(), "{end}");
        }
        let mut reader = Reader::new(body.into());
        assert_eq!(AssignMany::decode(&mut reader).unwrap(), many);
        assert!(reader.is_empty());
    }

    #[test]
    fn no_engine_is_given_a_task_nested_deeper_than_its_stack() {
        let assigned = |depth| {
            let task = crate::AssignRecord {
                key: TaskKey(1),
                offer: 2,
                function: FunctionId(3),
                depth,
                payload: Payload::default(),
            };
            let mut body = Vec::new();
            task.encode(&mut body);
            crate::AssignRecord::decode(&mut Reader::new(body.into())).map(|task| task.depth)
        };
        assert_eq!(assigned(MAX_NESTING), Ok(MAX_NESTING));
        for depth in [MAX_NESTING + 1, u16::MAX] {
            assert!(matches!(assigned(depth), Err(DecodeError::TooLong { .. })));
        }
    }

    #[test]
    fn claimed_lengths_are_limited() {
        let claim = u32::MAX.to_le_bytes().to_vec();
        let many = AssignMany::decode(&mut Reader::new(claim.into()));
        assert!(matches!(many, Err(DecodeError::TooLong { .. })));
    }

    #[test]
    fn many_messages_share_a_frame() {
        let messages = [
            RelayCommand::Ping { sent_ns: 5 },
            RelayCommand::Measure,
            RelayCommand::Order(EngineOrder::Stop {
                engine: EngineId(4),
            }),
            RelayCommand::Forget(vec![ObjectId::new(HostId(2), 7)]),
        ];
        let mut body = Vec::new();
        for message in &messages {
            append(message, &mut body);
        }
        let decode =
            |body: &[u8]| super::messages::<RelayCommand>(body).collect::<Result<Vec<_>, _>>();
        assert_eq!(decode(&body).unwrap(), messages);
        body.push(0xff);
        assert!(decode(&body).is_err());
    }

    #[test]
    fn an_object_knows_its_origin() {
        let object = ObjectId::new(HostId(77), 123);
        assert_eq!(object.origin(), HostId(77));
    }
}
