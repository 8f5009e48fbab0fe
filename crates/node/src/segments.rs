//! Tracks who owns each segment, who maps it, and when its owner may use it again.
//!
//! Every record in which an owner names its segment is one credit. The node holds the credits until neither a payload
//! in the controller ([`Guard`]) nor a peer holds the segment. Then all of them are returned. A peer may also name a
//! segment that it holds and another peer owns: it passes on what it received.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use broadleaf_proto::layout::{Compound, Delivery, ValueHead};
use broadleaf_proto::limits::{FAR_INLINE_BYTES, RELAYED_INLINE_BYTES};
use broadleaf_proto::task::LeaseGuard;
use broadleaf_proto::{ObjectId, Payload, SegmentId, SegmentRef};
use broadleaf_shm::{Announced, LeaseTable, Mapping};
use bytes::Bytes;

/// The owner of the node's own segments.
pub const NODE: u32 = u32::MAX;

/// Minimum size of a segment that is freed by another thread, if there is one.
const SLOW_TO_FREE_BYTES: u64 = 16 * 1024 * 1024;

/// What payloads have released.
#[derive(Debug, Default)]
struct Released {
    segments: Vec<SegmentId>,
    objects: Vec<ObjectId>,
}

type Dropped = Arc<Mutex<Released>>;

/// Segment, offset and length.
type Range = (SegmentId, u64, u64);

/// Names of ranges of segments on other hosts: payloads that name the same range name the same object, so that it is
/// sent to a host once.
#[derive(Debug, Default)]
struct Names {
    objects: BTreeMap<Range, ObjectId>,
    /// Each object's range, and the number of payloads that name it.
    named: BTreeMap<ObjectId, (Range, u64)>,
}

impl Names {
    fn name(&mut self, range: &SegmentRef, fresh: impl FnOnce() -> ObjectId) -> ObjectId {
        let key = (range.segment, range.offset_bytes, range.len_bytes);
        let object = *self.objects.entry(key).or_insert_with(fresh);
        self.named.entry(object).or_insert((key, 0)).1 += 1;
        object
    }

    /// A payload that named an object is gone; returns whether it was the last.
    fn release(&mut self, object: ObjectId) -> bool {
        let Some((key, count)) = self.named.get_mut(&object) else {
            return true;
        };
        *count -= 1;
        if *count > 0 {
            return false;
        }
        self.objects.remove(key);
        self.named.remove(&object);
        true
    }
}

/// Lives inside a payload and reports when its last clone is gone.
struct Guard {
    segments: Vec<SegmentId>,
    /// The names of its ranges on other hosts, once they have any.
    objects: OnceLock<Vec<ObjectId>>,
    dropped: Dropped,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut dropped = lock(&self.dropped);
        dropped.segments.extend(&self.segments);
        dropped
            .objects
            .extend(self.objects.take().unwrap_or_default());
    }
}

#[derive(Debug)]
struct Entry {
    owner: Option<u32>,
    memory: Announced,
    credits: u64,
    payloads: u64,
    announced: BTreeSet<u32>,
}

/// Segments that must be announced to a peer: id, size, descriptor.
type Unseen = Vec<(SegmentId, u64, OwnedFd)>;

/// Peers, and the segments that each must be told about.
type PeerSegments = Vec<(u32, SegmentId)>;

/// The segments of this host.
#[derive(Debug, Default)]
pub struct Segments {
    entries: BTreeMap<SegmentId, Entry>,
    leases: LeaseTable,
    dropped: Dropped,
    names: Names,
    /// Segments that lost a holder since the last check.
    maybe_free: Vec<SegmentId>,
    /// Descriptors of large segments that are gone: closing the last one frees their pages, which takes time.
    closing: Vec<OwnedFd>,
}

fn lock(dropped: &Dropped) -> std::sync::MutexGuard<'_, Released> {
    dropped.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Segments {
    /// A peer announced a segment with a new id; the id's high half is the number that the peer was given. A segment
    /// that does not exist, or belongs to another peer, is not entered; a payload that names it is malformed.
    pub fn on_announce(
        &mut self,
        owner: u32,
        space: u32,
        id: SegmentId,
        len_bytes: u64,
        fd: OwnedFd,
    ) {
        let is_its_own = id.0 >> 32 == u64::from(space);
        if is_its_own && !self.entries.contains_key(&id) {
            self.enter(owner, id, len_bytes, fd);
        }
    }

    fn enter(&mut self, owner: u32, id: SegmentId, len_bytes: u64, fd: OwnedFd) {
        let Ok(memory) = Announced::new(fd, len_bytes) else {
            return;
        };
        let entry = Entry {
            owner: Some(owner),
            memory,
            credits: 0,
            payloads: 0,
            announced: BTreeSet::new(),
        };
        self.entries.insert(id, entry);
    }

    /// A payload arrived from a peer: its segments are held until its last clone is gone. If it names a segment that
    /// the peer neither owns nor holds, the payload loses all of its segments, and its reader finds it malformed.
    pub fn adopt(&mut self, peer: u32, payload: &mut Payload) {
        if payload.segments.is_empty() {
            return;
        }
        let rightful = payload.segments.iter().all(|range| {
            let entry = self.entries.get(&range.segment);
            entry.is_some_and(|entry| entry.owner == Some(peer))
                || self.leases.references(peer, range.segment) > 0
        });
        if !rightful {
            payload.segments.clear();
            return;
        }
        let mut held = Vec::with_capacity(payload.segments.len());
        for range in &payload.segments {
            if let Some(entry) = self.entries.get_mut(&range.segment) {
                entry.credits += u64::from(entry.owner == Some(peer));
                entry.payloads += 1;
                held.push(range.segment);
            }
        }
        payload.lease = Some(LeaseGuard(Arc::new(Guard {
            segments: held,
            objects: OnceLock::new(),
            dropped: Arc::clone(&self.dropped),
        })));
    }

    /// A payload is sent to a peer; returns the segments that the peer has not seen, which must be announced first.
    /// `None` if descriptors are so scarce that the payload must travel [`inline`](Self::inline).
    pub fn lend(&mut self, peer: u32, payload: &Payload) -> Option<Unseen> {
        let mut unseen = Unseen::new();
        for range in &payload.segments {
            let Some(entry) = self.entries.get(&range.segment) else {
                continue;
            };
            let is_seen = entry.owner == Some(peer) || entry.announced.contains(&peer);
            if !is_seen && !unseen.iter().any(|(id, ..)| *id == range.segment) {
                let fd = entry.memory.fd()?.try_clone_to_owned().ok()?;
                unseen.push((range.segment, entry.memory.len(), fd));
            }
        }
        for range in &payload.segments {
            if self.entries.contains_key(&range.segment) {
                self.leases.add(peer, range.segment);
            }
        }
        for (id, ..) in &unseen {
            if let Some(entry) = self.entries.get_mut(id) {
                entry.announced.insert(peer);
            }
        }
        Some(unseen)
    }

    /// A view of a range of a segment of this host.
    pub fn map(&self, range: &SegmentRef) -> Option<Mapping> {
        let memory = &self.entries.get(&range.segment)?.memory;
        let (at, len) = (range.offset_bytes, range.len_bytes);
        memory.map_readonly(at, len).ok()
    }

    /// A segment's descriptor, if the node has it.
    pub fn fd(&self, id: SegmentId) -> Option<BorrowedFd<'_>> {
        self.entries.get(&id)?.memory.fd()
    }

    /// The names of an accepted payload's ranges on other hosts: the same for all its clones and, if `shared`, for
    /// all payloads that name these ranges while one of them exists.
    pub fn objects_of(
        &mut self,
        payload: &Payload,
        shared: bool,
        mut fresh: impl FnMut() -> ObjectId,
    ) -> Vec<ObjectId> {
        let guard = payload.lease.as_ref();
        let guard = guard.and_then(|lease| lease.0.downcast_ref::<Guard>());
        let ranges = payload.segments.iter();
        let mut name = |range| {
            if shared {
                self.names.name(range, &mut fresh)
            } else {
                fresh()
            }
        };
        let names = || ranges.map(&mut name).collect();
        guard.map_or_else(Vec::new, |guard| guard.objects.get_or_init(names).clone())
    }

    /// Objects whose last payload is gone.
    pub fn take_dropped_objects(&mut self) -> Vec<ObjectId> {
        let mut dropped = std::mem::take(&mut lock(&self.dropped).objects);
        dropped.retain(|object| self.names.release(*object));
        dropped
    }

    /// A segment of the node's own pool has content that payloads will name.
    pub fn on_own(&mut self, id: SegmentId, len_bytes: u64, fd: OwnedFd) {
        // If it was used before, its readers know it already.
        if !self.entries.contains_key(&id) {
            self.enter(NODE, id, len_bytes, fd);
        }
    }

    /// Descriptors to close on a thread that nobody waits for.
    pub fn take_closing(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.closing)
    }

    /// Whether nobody holds a segment.
    pub fn is_free(&self, id: SegmentId) -> bool {
        let in_payloads = self
            .entries
            .get(&id)
            .is_some_and(|entry| entry.payloads > 0);
        !in_payloads && !self.leases.is_held(id)
    }

    /// Puts the small ranges of a payload inline, for a relay on another host: it would take longer to ask for them. What
    /// a function captured stays where it is, as the next calls name it too.
    pub fn inline_small(&self, payload: &mut Payload) {
        let is_small = |range: &SegmentRef| range.len_bytes <= RELAYED_INLINE_BYTES;
        let small = payload.segments.iter().filter(|range| is_small(range));
        let small_bytes: u64 = small.map(|range| range.len_bytes).sum();
        if small_bytes == 0 || small_bytes > FAR_INLINE_BYTES {
            return;
        }
        let Ok(compound) = Compound::decode(&payload.bytes) else {
            return;
        };
        let n_captured = ValueHead::decode(compound.value).map_or(0, |(head, _)| head.n_captured);
        let mut named = payload.segments.iter();
        let mut rest = compound.inline;
        let mut ranges: Vec<Option<SegmentRef>> = Vec::with_capacity(compound.buffers.len());
        let mut inline: Vec<Cow<'_, [u8]>> = Vec::new();
        for (index, (byte, len_bytes)) in compound.buffers.iter().enumerate() {
            let Ok((is_inline, delivery)) = Delivery::of(*byte) else {
                return;
            };
            if is_inline {
                let Some(bytes) = rest.split_off(..*len_bytes as usize) else {
                    return;
                };
                inline.push(Cow::Borrowed(bytes));
                ranges.push(None);
                continue;
            }
            let Some(range) = named.next() else { return };
            let moves = index >= n_captured && delivery != Delivery::Shared && is_small(range);
            match self.map(range).filter(|_| moves) {
                Some(mapping) => {
                    inline.push(Cow::Owned(mapping.to_vec()));
                    ranges.push(None);
                }
                None => ranges.push(Some(*range)),
            }
        }
        let inline: Vec<&[u8]> = inline.iter().map(|bytes| &**bytes).collect();
        payload.bytes = compound.with_ranges(&ranges, &inline).into();
        payload.segments = ranges.into_iter().flatten().collect();
    }

    /// The bytes of a payload that lies in segments with all of them inline; `None` if they are not a payload.
    pub fn inlined(&self, payload: &Payload) -> Option<Bytes> {
        let mapped: Vec<_> = payload
            .segments
            .iter()
            .filter_map(|range| self.map(range))
            .collect();
        let slices: Vec<&[u8]> = mapped.iter().map(|m| &**m).collect();
        let compound = Compound::decode(&payload.bytes).ok()?;
        compound.with_all_inline(&slices).ok().map(Bytes::from)
    }

    /// Replaces a payload that lies in segments with one that is all inline, for a peer on another host.
    pub fn inline(&self, payload: &mut Payload) {
        // Bytes that are not a payload stay as they are: the client's decoder tells its user.
        if let Some(bytes) = self.inlined(payload) {
            *payload = Payload {
                bytes,
                ..Payload::default()
            };
        }
    }

    /// A peer returned references, and retired segments of its own. Returns who must forget which of those.
    pub fn on_release(
        &mut self,
        peer: u32,
        released: &[SegmentId],
        retired: &[SegmentId],
    ) -> Vec<(u32, SegmentId)> {
        for id in released {
            if self.leases.release(peer, *id) {
                self.maybe_free.push(*id);
            }
        }
        let mut forget = Vec::new();
        for id in retired {
            if self
                .entries
                .get(id)
                .is_some_and(|entry| entry.owner == Some(peer))
                && let Some(entry) = self.entries.remove(id)
            {
                if entry.memory.len() >= SLOW_TO_FREE_BYTES {
                    self.closing.extend(entry.memory.into_fd());
                }
                forget.extend(entry.announced.into_iter().map(|peer| (peer, *id)));
            }
        }
        forget
    }

    /// A peer is gone, with everything that it held and owned.
    pub fn on_peer_gone(&mut self, peer: u32) {
        self.maybe_free.extend(self.leases.drop_holder(peer));
        for (id, entry) in &mut self.entries {
            entry.announced.remove(&peer);
            if entry.owner == Some(peer) {
                entry.owner = None;
                self.maybe_free.push(*id);
            }
        }
    }

    /// Credits to return now: (owner, segment), one entry each; and who must forget which segment, because its owner
    /// is gone and nobody holds it any more.
    pub fn take_returns(&mut self) -> (PeerSegments, PeerSegments) {
        let dropped = std::mem::take(&mut lock(&self.dropped).segments);
        for id in dropped {
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.payloads -= 1;
                self.maybe_free.push(id);
            }
        }
        let (mut returns, mut forget) = (Vec::new(), Vec::new());
        for id in std::mem::take(&mut self.maybe_free) {
            let Some(entry) = self.entries.get_mut(&id) else {
                continue;
            };
            if entry.payloads > 0 || self.leases.is_held(id) {
                continue;
            }
            let credits = std::mem::take(&mut entry.credits);
            if let Some(owner) = entry.owner {
                returns.extend((0..credits).map(|_| (owner, id)));
            } else if let Some(entry) = self.entries.remove(&id) {
                forget.extend(entry.announced.into_iter().map(|peer| (peer, id)));
            }
        }
        (returns, forget)
    }

    /// Number of peers' segments known now, and their bytes.
    pub fn totals(&self) -> (u64, u64) {
        let of_peers = self.entries.values().filter(|e| e.owner != Some(NODE));
        of_peers.fold((0, 0), |(segments, bytes), entry| {
            (segments + 1, bytes.saturating_add(entry.memory.len()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use broadleaf_proto::task::SegmentRef;
    use broadleaf_shm::Segment;

    const SPACE: u32 = 3;
    const OTHER_SPACE: u32 = 4;
    const A: SegmentId = own(1);
    const OWNER: u32 = 7;
    const HOLDER: u32 = 8;
    const OTHER: u32 = 9;

    const fn own(number: u64) -> SegmentId {
        SegmentId((SPACE as u64) << 32 | number)
    }

    fn announced() -> Segments {
        let mut segments = Segments::default();
        let (segment, _) = Segment::create(4096, &[]).unwrap();
        let fd = segment.fd().try_clone_to_owned().unwrap();
        segments.on_announce(OWNER, SPACE, A, 4096, fd);
        segments
    }

    fn naming() -> Payload {
        let range = SegmentRef {
            segment: A,
            offset_bytes: 0,
            len_bytes: 4096,
        };
        Payload {
            segments: [range].into_iter().collect(),
            ..Payload::default()
        }
    }

    fn named_by(segments: &mut Segments, peer: u32) -> Payload {
        let mut payload = naming();
        segments.adopt(peer, &mut payload);
        payload
    }

    #[test]
    fn nobody_announces_a_segment_for_another() {
        let mut segments = announced();
        let sent = named_by(&mut segments, OWNER);
        let (impostor, _) = Segment::create(4096, &[1; 4096]).unwrap();
        let fd = || impostor.fd().try_clone_to_owned().unwrap();
        // One that is there, and one that its owner will announce.
        let later = own(2);
        for id in [A, later] {
            segments.on_announce(OTHER, OTHER_SPACE, id, 4096, fd());
        }
        assert!(named_by(&mut segments, OTHER).segments.is_empty());
        assert_eq!(segments.map(&sent.segments[0]).unwrap()[0], 0);
        let (mine, _) = Segment::create(4096, &[]).unwrap();
        let mine = mine.fd().try_clone_to_owned().unwrap();
        segments.on_announce(OWNER, SPACE, later, 4096, mine);
        // Nor its own once more, which would lose count of who has it.
        segments.on_announce(OWNER, SPACE, A, 4096, fd());
        assert_eq!(segments.map(&sent.segments[0]).unwrap()[0], 0);
        drop(sent);
        assert_eq!(segments.take_returns(), (vec![(OWNER, A)], vec![]));
        assert_eq!(segments.totals(), (2, 8192));
    }

    #[test]
    fn what_a_holder_sends_on_costs_its_owner_no_credit() {
        let mut segments = announced();
        let first = named_by(&mut segments, OWNER);
        assert_eq!(segments.lend(HOLDER, &first).unwrap().len(), 1);
        drop(first);
        let second = named_by(&mut segments, HOLDER);
        assert_eq!(second.segments.len(), 1);
        segments.on_release(HOLDER, &[A], &[]);
        assert_eq!(segments.take_returns(), (vec![], vec![]));
        assert!(
            segments.lend(OWNER, &second).unwrap().is_empty(),
            "it knows its own"
        );
        drop(second);
        let third = named_by(&mut segments, OWNER);
        segments.on_release(OWNER, &[A], &[]);
        assert_eq!(segments.take_returns(), (vec![], vec![]));
        drop(third);
        assert_eq!(segments.take_returns(), (vec![(OWNER, A); 2], vec![]));
    }

    #[test]
    fn payloads_of_one_range_are_one_object_until_the_last_is_gone() {
        let mut segments = announced();
        let mut numbers = 1..;
        let mut fresh = move || ObjectId(numbers.next().unwrap());
        let first = named_by(&mut segments, OWNER);
        let second = named_by(&mut segments, OWNER);
        let object = segments.objects_of(&first, true, &mut fresh);
        assert_eq!(segments.objects_of(&second, true, &mut fresh), object);
        assert_eq!(segments.objects_of(&first, true, &mut fresh), object);
        drop(first);
        assert_eq!(segments.take_dropped_objects(), vec![]);
        drop(second);
        assert_eq!(segments.take_dropped_objects(), object);
        let third = named_by(&mut segments, OWNER);
        assert_ne!(segments.objects_of(&third, true, &mut fresh), object);
    }

    #[test]
    fn a_peer_cannot_name_what_it_does_not_hold() {
        let mut segments = announced();
        assert!(named_by(&mut segments, OTHER).segments.is_empty());
        let sent = named_by(&mut segments, OWNER);
        segments.lend(HOLDER, &sent);
        segments.on_release(HOLDER, &[A], &[]);
        assert!(named_by(&mut segments, HOLDER).segments.is_empty());
    }

    #[test]
    fn the_segment_of_an_owner_that_is_gone_is_forgotten_after_its_last_holder() {
        let mut segments = announced();
        let sent = named_by(&mut segments, OWNER);
        segments.lend(HOLDER, &sent);
        drop(sent);
        segments.on_peer_gone(OWNER);
        assert_eq!(segments.take_returns(), (vec![], vec![]));
        let on = named_by(&mut segments, HOLDER);
        segments.lend(OTHER, &on);
        drop(on);
        segments.on_release(HOLDER, &[A], &[]);
        segments.on_release(OTHER, &[A], &[]);
        assert_eq!(
            segments.take_returns(),
            (vec![], vec![(HOLDER, A), (OTHER, A)])
        );
        assert_eq!(segments.totals(), (0, 0));
    }
}
