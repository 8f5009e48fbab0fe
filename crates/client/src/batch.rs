//! Batching: what is sent together, and when.
//!
//! A single task waits for nothing. Of many, each is sent when the batch is full, when somebody waits, or when the
//! background thread was asked to and the delay is over.

use broadleaf_proto::limits::{DEPENDENCY_BYTES, MAX_INLINE_PAYLOAD_BYTES};
use broadleaf_proto::task::SegmentRef;
use broadleaf_proto::{FunctionId, OptionsId};

use crate::Nanos;
use crate::table::Submitted;

/// The tasks that a task must run after, and those whose engine it must run on.
pub type Dependencies<'a> = (&'a [u64], &'a [u64]);

/// The fields of a record besides its payload.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// The task's number, or the first of its targets'.
    pub seq: u64,
    /// What to call.
    pub function: FunctionId,
    /// How to run it.
    pub options: OptionsId,
    /// How many tasks it is nested in.
    pub depth: u16,
    /// What it depends on.
    pub dependencies: Dependencies<'a>,
}

impl Head<'_> {
    /// Writes the record: all fields of fixed size with one copy instead of one per field.
    #[inline]
    fn write(&self, out: &mut Vec<u8>, bytes: &[u8], segments: &[SegmentRef]) {
        const HEAD_BYTES: usize = 26;
        let (after, follow) = self.dependencies;
        let mut fixed = [0; HEAD_BYTES + 6];
        fixed[..8].copy_from_slice(&self.seq.to_le_bytes());
        fixed[8..12].copy_from_slice(&self.function.0.to_le_bytes());
        fixed[12..16].copy_from_slice(&self.options.0.to_le_bytes());
        fixed[16..18].copy_from_slice(&self.depth.to_le_bytes());
        fixed[18..22].copy_from_slice(&(after.len() as u32).to_le_bytes());
        fixed[22..26].copy_from_slice(&(follow.len() as u32).to_le_bytes());
        fixed[26..30].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        fixed[30..].copy_from_slice(&(segments.len() as u16).to_le_bytes());
        if after.is_empty() && follow.is_empty() {
            out.extend_from_slice(&fixed);
        } else {
            out.extend_from_slice(&fixed[..HEAD_BYTES]);
            for seq in after.iter().chain(follow) {
                out.extend_from_slice(&seq.to_le_bytes());
            }
            out.extend_from_slice(&fixed[HEAD_BYTES..]);
        }
        for s in segments {
            out.extend_from_slice(&s.segment.0.to_le_bytes());
            out.extend_from_slice(&s.offset_bytes.to_le_bytes());
            out.extend_from_slice(&s.len_bytes.to_le_bytes());
        }
        out.extend_from_slice(bytes);
    }
}

/// The charge for a task's dependencies among the client's unresolved bytes.
pub fn dependency_weight((after, follow): Dependencies<'_>) -> u64 {
    DEPENDENCY_BYTES * (after.len() + follow.len()) as u64
}

/// Bytes of a record that name its dependencies.
pub fn dependency_bytes((after, follow): Dependencies<'_>) -> usize {
    8 * (after.len() + follow.len())
}

/// Records that wait to be sent together, as bodies of frames.
#[derive(Debug, Default)]
struct Records {
    /// Bodies without room for the next record.
    full: Vec<Vec<u8>>,
    last: Vec<u8>,
}

impl Records {
    /// Appends a record.
    #[inline]
    fn push(&mut self, head: &Head<'_>, bytes: &[u8], segments: &[SegmentRef]) {
        let record_bytes = bytes.len() + dependency_bytes(head.dependencies);
        if self.last.len() + record_bytes > MAX_INLINE_PAYLOAD_BYTES {
            self.begin_next();
        }
        head.write(&mut self.last, bytes, segments);
    }

    /// With the next record the body could exceed a frame.
    #[cold]
    fn begin_next(&mut self) {
        if !self.last.is_empty() {
            self.full.push(std::mem::take(&mut self.last));
        }
    }

    /// Whether this many bytes are waiting.
    fn hold(&self, n_bytes: usize) -> bool {
        self.last.len() >= n_bytes || !self.full.is_empty()
    }

    /// Whether nothing waits.
    fn is_empty(&self) -> bool {
        self.last.is_empty()
    }

    /// Removes all bodies.
    fn take(&mut self) -> impl Iterator<Item = Vec<u8>> + use<> {
        let capacity = self.last.capacity().min(MAX_KEPT_BYTES);
        let last = std::mem::replace(&mut self.last, Vec::with_capacity(capacity));
        std::mem::take(&mut self.full).into_iter().chain([last])
    }
}

/// Memory kept for future records.
const MAX_KEPT_BYTES: usize = 512 * 1024;

/// Who waits for the result, which decides whether the background thread must watch for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiter {
    /// The thread that submits, as soon as it has submitted.
    Caller,
    /// Nobody yet, or somebody else.
    Anyone,
}

/// What a submission needs now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// The batch must be sent.
    Now {
        /// An engine may answer soon and nobody reads: the background thread must be woken if it has left the socket.
        unwatched: bool,
    },
    /// The background thread must be woken: it sends the batch after a delay.
    Soon,
    /// Nothing: whoever waits, or the background thread, will send the batch.
    Held,
}

/// Submissions that are not sent yet: the records, and the parts that they stand for.
#[derive(Debug)]
pub struct Batch<R, C> {
    records: Records,
    parts: Vec<Submitted<R, C>>,
    /// The background thread was asked to send it.
    armed: bool,
    max_bytes: usize,
}

impl<R, C> Batch<R, C> {
    /// It is full with this many bytes.
    pub fn new(max_bytes: usize) -> Self {
        Self {
            records: Records::default(),
            parts: Vec::new(),
            armed: false,
            max_bytes,
        }
    }

    /// Adds a task. With `at_once` an engine may be idle, so that it should not wait for others.
    #[inline]
    pub fn push(
        &mut self,
        head: &Head<'_>,
        (bytes, segments): (&[u8], &[SegmentRef]),
        parts: Submitted<R, C>,
        at_once: bool,
        waiter: Waiter,
    ) -> Sending {
        self.records.push(head, bytes, segments);
        self.parts.push(parts);
        let is_anyones = waiter == Waiter::Anyone;
        if at_once || self.records.hold(self.max_bytes) {
            Sending::Now {
                unwatched: at_once && is_anyones,
            }
        } else if is_anyones && !std::mem::replace(&mut self.armed, true) {
            Sending::Soon
        } else {
            Sending::Held
        }
    }

    /// Adds parts whose record is not a submission, and is sent by itself.
    pub fn adopt(&mut self, parts: Submitted<R, C>) {
        self.parts.push(parts);
    }

    /// The parts that are not in the table yet. They must be before their records are sent.
    pub fn take_parts(&mut self) -> impl Iterator<Item = Submitted<R, C>> + '_ {
        self.parts.drain(..)
    }

    /// Whether no part is missing in the table.
    #[inline]
    pub fn has_parts(&self) -> bool {
        !self.parts.is_empty()
    }

    /// The bodies of the frames to send; `None` if nothing waits.
    pub fn take_records(&mut self) -> Option<impl Iterator<Item = Vec<u8>> + use<R, C>> {
        (!self.records.is_empty()).then(|| self.records.take())
    }

    /// Whether the background thread was asked to send it.
    #[inline]
    pub fn is_armed(&self) -> bool {
        self.armed
    }

    /// The background thread is about to send it: what is added from now on asks again.
    pub fn disarm(&mut self) {
        self.armed = false;
    }
}

/// With this many unfinished tasks per engine or more, further tasks may be batched longer: the engines have work in
/// the meantime, and each batch costs a wake-up in every process.
const BACKLOG_TASKS: u64 = 64;
/// The factor by which the delay is longer.
const BACKLOG_LINGERS: u64 = 10;

/// How long the background thread lets a batch grow.
#[derive(Clone, Copy, Debug)]
pub struct Linger {
    linger_ns: Nanos,
    /// Tasks that had been submitted when it sent the last batch.
    n_sent: u64,
}

impl Linger {
    /// The delay is `linger_ns`, and longer while the engines have enough to do.
    pub fn new(linger_ns: Nanos) -> Self {
        Self {
            linger_ns,
            n_sent: 0,
        }
    }

    /// The delay for the next batch. `n_submitted` counts all tasks, `n_unresolved` those without a result.
    pub fn delay_ns(&self, n_submitted: u64, n_unresolved: u64, n_engines: u64) -> Nanos {
        let n_ended = n_submitted.saturating_sub(n_unresolved);
        if self.n_sent.saturating_sub(n_ended) >= BACKLOG_TASKS * n_engines.max(1) {
            self.linger_ns * BACKLOG_LINGERS
        } else {
            self.linger_ns
        }
    }

    /// All tasks submitted so far are being sent.
    pub fn on_sending(&mut self, n_submitted: u64) {
        self.n_sent = n_submitted;
    }
}

#[cfg(test)]
mod tests {
    use broadleaf_proto::task::SubmitRecord;
    use broadleaf_proto::wire::Reader;
    use broadleaf_proto::{SegmentId, TaskSeq};

    use super::*;

    fn head(seq: u64) -> Head<'static> {
        Head {
            seq,
            function: FunctionId(3),
            options: OptionsId(4),
            depth: 5,
            dependencies: (&[], &[]),
        }
    }

    fn parts(seq: u64) -> Submitted<(), ()> {
        Submitted {
            seq,
            len: 1,
            coalescing: false,
            weight_bytes: 0,
            claims: (),
            request: (),
        }
    }

    fn push(batch: &mut Batch<(), ()>, n_bytes: usize, at_once: bool, waiter: Waiter) -> Sending {
        let bytes = vec![7; n_bytes];
        batch.push(&head(1), (&bytes, &[]), parts(1), at_once, waiter)
    }

    #[test]
    fn records_are_what_the_controller_reads() {
        let mut batch = Batch::new(1000);
        let segments = [SegmentRef {
            segment: SegmentId(9),
            offset_bytes: 10,
            len_bytes: 11,
        }];
        let dependent = Head {
            dependencies: (&[20, 21], &[22]),
            ..head(2)
        };
        batch.push(&head(1), (b"x", &[]), parts(1), false, Waiter::Caller);
        batch.push(
            &dependent,
            (b"yz", &segments),
            parts(2),
            false,
            Waiter::Caller,
        );
        let bodies: Vec<_> = batch.take_records().unwrap().collect();
        assert_eq!(bodies.len(), 1);
        let mut reader = Reader::new(bodies[0].clone().into());
        let first = SubmitRecord::decode(&mut reader).unwrap();
        let second = SubmitRecord::decode(&mut reader).unwrap();
        assert!(reader.is_empty());
        assert_eq!((first.seq, first.function), (TaskSeq(1), FunctionId(3)));
        assert_eq!((first.options, first.depth), (OptionsId(4), 5));
        assert_eq!(first.payload.bytes, b"x"[..]);
        assert_eq!(second.payload.bytes, b"yz"[..]);
        assert_eq!(second.payload.segments[..], segments);
        assert_eq!(second.after[..], [TaskSeq(20), TaskSeq(21)]);
        assert_eq!(second.follow[..], [TaskSeq(22)]);
        assert!(batch.take_records().is_none());
        assert_eq!(
            batch.take_parts().map(|p| p.seq).collect::<Vec<_>>(),
            [1, 2]
        );
        assert!(!batch.has_parts());
    }

    #[test]
    fn a_body_never_exceeds_a_message() {
        let mut batch = Batch::new(usize::MAX);
        push(
            &mut batch,
            MAX_INLINE_PAYLOAD_BYTES / 2,
            false,
            Waiter::Caller,
        );
        push(
            &mut batch,
            MAX_INLINE_PAYLOAD_BYTES / 2,
            false,
            Waiter::Caller,
        );
        let sending = push(&mut batch, 1, false, Waiter::Caller);
        assert!(matches!(sending, Sending::Now { unwatched: false }));
        let lens: Vec<_> = batch.take_records().unwrap().map(|b| b.len()).collect();
        assert_eq!(lens.len(), 2);
        assert_eq!(
            lens.iter().sum::<usize>(),
            MAX_INLINE_PAYLOAD_BYTES + 1 + 3 * 32
        );
    }

    #[test]
    fn a_batch_is_sent_when_it_is_full_or_an_engine_is_idle() {
        let mut batch = Batch::new(100);
        assert_eq!(push(&mut batch, 1, false, Waiter::Caller), Sending::Held);
        let now = |unwatched| Sending::Now { unwatched };
        assert_eq!(push(&mut batch, 1, true, Waiter::Caller), now(false));
        assert_eq!(push(&mut batch, 1, true, Waiter::Anyone), now(true));
        assert_eq!(push(&mut batch, 1, false, Waiter::Anyone), now(false));
        assert!(!batch.is_armed());
    }

    #[test]
    fn the_background_thread_is_asked_once_for_a_batch() {
        let mut batch = Batch::new(1000);
        assert_eq!(push(&mut batch, 1, false, Waiter::Anyone), Sending::Soon);
        assert_eq!(push(&mut batch, 1, false, Waiter::Anyone), Sending::Held);
        // Somebody else sends it: the background thread comes all the same.
        drop(batch.take_records());
        assert_eq!(push(&mut batch, 1, false, Waiter::Anyone), Sending::Held);
        assert!(batch.is_armed());
        batch.disarm();
        assert_eq!(push(&mut batch, 1, false, Waiter::Anyone), Sending::Soon);
    }

    #[test]
    fn batches_grow_longer_while_the_engines_have_enough_to_do() {
        let mut linger = Linger::new(50);
        assert_eq!(linger.delay_ns(1000, 1000, 2), 50, "nothing was sent");
        linger.on_sending(1000);
        assert_eq!(linger.delay_ns(1000, 1000, 2), 500);
        assert_eq!(linger.delay_ns(2000, 1128, 2), 500);
        assert_eq!(linger.delay_ns(2000, 1127, 2), 50);
        assert_eq!(linger.delay_ns(1064, 1064 - 936, 0), 500);
        assert_eq!(linger.delay_ns(1064, 1064 - 937, 0), 50);
    }
}
