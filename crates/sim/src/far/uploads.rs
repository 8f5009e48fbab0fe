//! A client on another host that sends arguments ahead of their records: parts of several uploads alternate, some
//! uploads are interrupted, memory is short at times, and the connection may end at any moment.

use std::collections::{BTreeMap, BTreeSet};

use broadleaf_core::uploads::Uploads;
use broadleaf_proto::UploadChunk;
use broadleaf_proto::ids::SegmentId;
use broadleaf_proto::task::SegmentRef;

use crate::random::Random;

const RECORDS: u64 = 40;
const MAX_PARTS: u64 = 6;

/// The result of a run of one seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UploadOutcome {
    /// Number of records that got all that they name.
    pub whole: u64,
    /// Number of records that were refused.
    pub refused: u64,
    /// Number of uploads that the client dropped.
    pub dropped: u64,
}

/// Memory of the controller's host.
#[derive(Debug)]
struct Memory {
    bytes: Vec<u8>,
}

/// What one thread of the client sends, in order.
#[derive(Debug)]
struct Sending {
    parts: Vec<Vec<u8>>,
    sent: usize,
}

impl Sending {
    fn whole(&self) -> Vec<u8> {
        self.parts.concat()
    }

    fn range(&self, upload: SegmentId) -> SegmentRef {
        SegmentRef {
            segment: upload,
            offset_bytes: 0,
            len_bytes: self.whole().len() as u64,
        }
    }
}

/// Runs one seed.
///
/// # Errors
/// What went wrong.
pub fn run_uploads(seed: u64) -> Result<UploadOutcome, String> {
    let mut random = Random::new(seed);
    let mut uploads = Uploads::<Memory>::default();
    let mut sending: BTreeMap<SegmentId, Sending> = BTreeMap::new();
    let mut lacking = BTreeSet::new();
    let mut outcome = UploadOutcome::default();
    let (mut begun, mut in_use, mut given_back) = (0, 0_u64, 0_u64);
    let (lacks_memory, fails, ends) = (random.below(10), random.below(5), random.chance(20));
    while begun < RECORDS || !sending.is_empty() {
        if ends && begun > RECORDS / 2 {
            break;
        }
        if begun < RECORDS && random.chance(30) {
            begun += 1;
            let parts = (0..=random.below(MAX_PARTS)).map(|_| {
                let len = 1 + random.below(9) as usize;
                (0..len).map(|_| random.below(256) as u8).collect()
            });
            let parts = parts.collect();
            sending.insert(SegmentId(begun), Sending { parts, sent: 0 });
        }
        let n = sending.len() as u64;
        let Some((id, thread)) = (n > 0)
            .then(|| sending.iter_mut().nth(random.below(n) as usize))
            .flatten()
        else {
            continue;
        };
        let id = *id;
        if random.chance(3) {
            outcome.dropped += 1;
            given_back += u64::from(uploads.on_dropped(id).is_some());
            sending.remove(&id);
            continue;
        }
        if let Some(part) = thread.parts.get(thread.sent) {
            let chunk = UploadChunk {
                upload: id,
                len_bytes: thread.range(id).len_bytes,
                bytes: part.clone().into(),
            };
            thread.sent += 1;
            let is_short = random.below(10) < lacks_memory / 2;
            let stored = uploads.on_chunk(&chunk, |_| {
                if is_short {
                    return Err("no memory".to_owned());
                }
                in_use += 1;
                Ok(Memory { bytes: Vec::new() })
            });
            match stored.map_err(|error| format!("seed {seed}: {error}"))? {
                None => drop(lacking.insert(id)),
                Some((memory, offset_bytes)) if memory.bytes.len() as u64 == offset_bytes => {
                    memory.bytes.extend_from_slice(part);
                    if random.below(50) < fails {
                        given_back += u64::from(uploads.on_failed(id, "full".to_owned()).is_some());
                        lacking.insert(id);
                    }
                }
                Some((memory, offset_bytes)) => {
                    return Err(format!(
                        "seed {seed}: {offset_bytes} is not the end of {} bytes",
                        memory.bytes.len()
                    ));
                }
            }
            continue;
        }
        let (whole, range) = (thread.whole(), thread.range(id));
        sending.remove(&id);
        match uploads.take(&range) {
            Ok(memory) if memory.bytes == whole && !lacking.contains(&id) => {
                given_back += 1;
                outcome.whole += 1;
            }
            Err(missing) if lacking.contains(&id) && missing.memory.is_none() => {
                outcome.refused += 1;
            }
            other => return Err(format!("seed {seed}: {id:?} ended as {other:?}")),
        }
    }
    given_back += uploads.into_memory().count() as u64;
    if in_use == given_back {
        Ok(outcome)
    } else {
        Err(format!(
            "seed {seed}: {in_use} pieces of memory were taken, {given_back} given back"
        ))
    }
}
