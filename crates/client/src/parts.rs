//! One request: its parts, and how each ended.

use std::collections::BTreeMap;

use broadleaf_proto::layout::PLAIN;
use broadleaf_proto::task::{OutputRecord, ResultRecord};
use broadleaf_proto::{CoalescedRecord, EngineId, Payload, Status, TaskSeq};
use smallvec::SmallVec;

use crate::written::Written;

/// The state of one part.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// How it ended; `None` before that.
    pub status: Option<Status>,
    /// Where it ran; `u32::MAX` for nowhere.
    pub engine: u32,
    /// Wall clock, ns since 1970; 0 if it never started.
    pub started_ns: u64,
    /// Wall clock, ns since 1970; 0 if it never started.
    pub completed_ns: u64,
    /// Processor time that it took.
    pub cpu_ns: u64,
    /// Wall clock at its arrival here, ns since 1970.
    pub received_ns: u64,
    /// Value or failure, until it is decoded.
    pub payload: Payload,
}

/// What a request of one part without output does not need.
#[derive(Debug)]
struct Rest<C> {
    /// All results of a coalescing request, and when they arrived.
    together: Option<(CoalescedRecord, u64)>,
    /// Parts in the order of their arrival; left empty for a single part.
    order: Vec<u32>,
    callbacks: Vec<C>,
    written: BTreeMap<usize, Written>,
}

impl<C> Default for Rest<C> {
    fn default() -> Self {
        Self {
            together: None,
            order: Vec::new(),
            callbacks: Vec::new(),
            written: BTreeMap::new(),
        }
    }
}

/// The result of a part that ended without running.
pub fn not_run(seq: u64, status: Status) -> ResultRecord {
    ResultRecord {
        seq: TaskSeq(seq),
        status,
        engine: EngineId(u32::MAX),
        started_ns: 0,
        completed_ns: 0,
        cpu_ns: 0,
        payload: Payload::default(),
    }
}

fn blank_parts(len: usize) -> SmallVec<[Part; 1]> {
    if len == 1 {
        SmallVec::from_buf([Part::default()])
    } else {
        smallvec::smallvec![Part::default(); len]
    }
}

/// The parts of one request. `C` is what is to be run when all of them are resolved.
#[derive(Debug)]
pub struct Parts<C> {
    len: u32,
    n_done: u32,
    /// Empty as long as a coalescing request has no separate result for a part.
    each: SmallVec<[Part; 1]>,
    /// Kept separate from the rest, because there may be hundreds of thousands of requests.
    rest: Option<Box<Rest<C>>>,
}

impl<C> Parts<C> {
    /// None of them is resolved, and each gets a result of its own.
    pub fn new(len: usize) -> Self {
        Self {
            len: len as u32,
            n_done: 0,
            each: blank_parts(len),
            rest: None,
        }
    }

    /// None of them is resolved, and their results arrive together.
    pub fn coalescing(len: usize) -> Self {
        Self {
            each: SmallVec::new(),
            ..Self::new(len)
        }
    }

    fn rest(&mut self) -> &mut Rest<C> {
        self.rest.get_or_insert_default()
    }

    fn together(&self) -> Option<&(CoalescedRecord, u64)> {
        self.rest.as_ref()?.together.as_ref()
    }

    /// Number of parts.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of resolved parts.
    #[inline]
    pub fn n_done(&self) -> usize {
        self.n_done as usize
    }

    /// Whether every part is resolved.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.n_done == self.len
    }

    /// Stores how a part ended; returns the callbacks to run if it was the last one.
    #[inline]
    pub fn resolve(&mut self, index: usize, record: ResultRecord, received_ns: u64) -> Vec<C> {
        if self.each.is_empty() && self.together().is_none() {
            self.each = blank_parts(self.len());
        }
        self.resolve_part(index, record, received_ns);
        self.callbacks_if_done()
    }

    /// An abandoned part stays cancelled; only where and when it ran is new information.
    #[inline]
    fn resolve_part(&mut self, index: usize, record: ResultRecord, received_ns: u64) {
        let Some(part) = self.each.get_mut(index) else {
            return;
        };
        let is_new = part.status.is_none();
        if !is_new && part.status != Some(Status::Cancelled) {
            return;
        }
        part.engine = record.engine.0;
        part.started_ns = record.started_ns;
        part.completed_ns = record.completed_ns;
        part.cpu_ns = record.cpu_ns;
        if is_new {
            part.status = Some(record.status);
            part.received_ns = received_ns;
            part.payload = record.payload;
            if self.len > 1 {
                self.rest().order.push(index as u32);
            }
            self.n_done += 1;
        }
    }

    fn callbacks_if_done(&mut self) -> Vec<C> {
        match &mut self.rest {
            Some(rest) if self.n_done == self.len => std::mem::take(&mut rest.callbacks),
            _ => Vec::new(),
        }
    }

    /// Marks the unresolved parts among these as cancelled, whatever happens to their tasks; returns the callbacks to
    /// run.
    pub fn abandon(&mut self, parts: impl IntoIterator<Item = usize>, received_ns: u64) -> Vec<C> {
        if self.together().is_some() {
            return Vec::new();
        }
        if self.each.is_empty() {
            self.each = blank_parts(self.len());
        }
        for index in parts {
            let is_open = self.each.get(index).is_some_and(|p| p.status.is_none());
            if is_open {
                self.resolve_part(index, not_run(0, Status::Cancelled), received_ns);
            }
        }
        self.callbacks_if_done()
    }

    /// Number of parts that are resolved but did not return.
    pub fn n_failed(&self) -> usize {
        let failed = |status: Status| usize::from(status != Status::Ok);
        let Some((record, _)) = self.together() else {
            let resolved = self.each.iter().filter_map(|part| part.status);
            return resolved.map(failed).sum();
        };
        let mut first = 0;
        let counts = record.outcomes.iter().map(|outcome| {
            let n = (outcome.end - first) as usize;
            first = outcome.end;
            n * failed(outcome.status)
        });
        counts.sum()
    }

    /// Stores how all parts of a coalescing request ended; returns the callbacks to run.
    pub fn resolve_together(&mut self, record: CoalescedRecord, received_ns: u64) -> Vec<C> {
        if record.len() != self.len() || self.together().is_some() {
            return Vec::new();
        }
        if !self.each.is_empty() {
            // Some parts were abandoned.
            for (index, record) in record.results().enumerate() {
                self.resolve_part(index, record, received_ns);
            }
            return self.callbacks_if_done();
        }
        self.rest().together = Some((record, received_ns));
        self.n_done = self.len;
        self.callbacks_if_done()
    }

    /// Stores what a part wrote.
    pub fn on_output(&mut self, index: usize, record: &OutputRecord) {
        let written = self.rest().written.entry(index).or_default();
        written.append(record.stream, &record.bytes);
    }

    /// What a part has written so far, if anything.
    pub fn written(&self, index: usize) -> Option<&Written> {
        self.rest.as_ref()?.written.get(&index)
    }

    /// The parts that have written something so far, in order.
    pub fn written_parts(&self) -> Vec<usize> {
        let rest = self.rest.as_ref();
        rest.map_or_else(Vec::new, |rest| rest.written.keys().copied().collect())
    }

    /// A copy of a part's state; payload bytes are shared, not copied.
    pub fn part(&self, index: usize) -> Option<Part> {
        let Some((record, received_ns)) = self.together() else {
            let known = self.each.get(index).cloned();
            return known.or_else(|| (index < self.len()).then(Part::default));
        };
        let (engine, started_ns, completed_ns, cpu_ns) = record.span(index)?;
        let outcome = record.outcome(index)?;
        Some(Part {
            status: Some(outcome.status),
            engine: engine.0,
            started_ns,
            completed_ns,
            cpu_ns,
            received_ns: *received_ns,
            payload: outcome.payload.clone(),
        })
    }

    /// A part's status, if it is resolved.
    pub fn status(&self, index: usize) -> Option<Status> {
        match self.together() {
            Some((record, _)) => record.outcome(index).map(|o| o.status),
            None => self.each.get(index).and_then(|part| part.status),
        }
    }

    /// For a part that shares one value in the compact encoding with others: the first part after those.
    pub fn plain_until(&self, index: usize) -> Option<u32> {
        let outcome = self.together()?.0.outcome(index)?;
        let plain = matches!(outcome.payload.bytes.first(), None | Some(&PLAIN));
        (plain && outcome.status == Status::Ok).then_some(outcome.end)
    }

    /// Takes a part's payload: its decoded value replaces it. `None` if other parts share it.
    pub fn take_payload(&mut self, index: usize) -> Option<Payload> {
        let rest = self.rest.as_mut();
        match rest.and_then(|rest| rest.together.as_mut()) {
            Some((record, _)) => record.take_own_payload(index),
            None => (self.each.get_mut(index)).map(|part| std::mem::take(&mut part.payload)),
        }
    }

    /// The part that was resolved as number `rank`.
    pub fn completed_part(&self, rank: usize) -> Option<usize> {
        if self.len == 1 {
            return (rank == 0 && self.is_done()).then_some(0);
        }
        if self.together().is_some() {
            return (rank < self.len()).then_some(rank);
        }
        let order = &self.rest.as_ref()?.order;
        order.get(rank).map(|part| *part as usize)
    }

    /// Stores `callback` until all parts are resolved; returns it if they already are.
    pub fn on_done(&mut self, callback: C) -> Option<C> {
        if self.is_done() {
            return Some(callback);
        }
        self.rest().callbacks.push(callback);
        None
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn result(seq: u64, status: Status, bytes: &'static [u8]) -> ResultRecord {
        ResultRecord {
            engine: EngineId(seq as u32),
            started_ns: 10 + seq,
            payload: Payload {
                bytes: Bytes::from_static(bytes),
                ..Payload::default()
            },
            ..not_run(seq, status)
        }
    }

    fn together(statuses: &[Status]) -> CoalescedRecord {
        let results = (0..).zip(statuses);
        CoalescedRecord::pack(results.map(|(seq, s)| result(seq, *s, b"")).collect())
    }

    #[test]
    fn parts_are_resolved_one_by_one_and_the_last_one_calls_back() {
        let mut parts = Parts::new(3);
        assert_eq!(parts.on_done('a'), None);
        assert_eq!(parts.on_done('b'), None);
        assert_eq!(parts.resolve(2, result(2, Status::Ok, b"x"), 7), []);
        assert_eq!(parts.resolve(0, result(0, Status::Error, b"y"), 8), []);
        assert_eq!((parts.n_done(), parts.n_failed()), (2, 1));
        assert_eq!(parts.status(1), None);
        assert_eq!(parts.resolve(1, result(1, Status::Ok, b"z"), 9), ['a', 'b']);
        assert_eq!(parts.on_done('c'), Some('c'));
        let order: Vec<_> = (0..4).map(|rank| parts.completed_part(rank)).collect();
        assert_eq!(order, [Some(2), Some(0), Some(1), None]);
        let part = parts.part(2).unwrap();
        assert_eq!((part.engine, part.started_ns, part.received_ns), (2, 12, 7));
        assert_eq!(parts.take_payload(2).unwrap().bytes, b"x"[..]);
        assert!(parts.take_payload(2).unwrap().bytes.is_empty());
    }

    #[test]
    fn a_part_ends_once() {
        let mut parts = Parts::new(1);
        assert_eq!(parts.on_done('a'), None);
        assert_eq!(parts.resolve(0, result(0, Status::Ok, b"x"), 7), ['a']);
        assert_eq!(parts.resolve(0, result(0, Status::Error, b"y"), 8), []);
        assert_eq!(parts.resolve(1, result(1, Status::Error, b"y"), 8), []);
        assert_eq!((parts.n_done(), parts.status(0)), (1, Some(Status::Ok)));
        let late = result(9, Status::Error, b"y");
        assert_eq!(parts.resolve(0, late, 8), []);
        assert_eq!(parts.part(0).unwrap().started_ns, 10);
    }

    #[test]
    fn an_abandoned_part_stays_cancelled_but_says_where_it_ran() {
        for mut parts in [Parts::new(2), Parts::coalescing(2)] {
            assert_eq!(parts.on_done('a'), None);
            assert_eq!(parts.abandon([0, 0, 5], 6), []);
            assert_eq!(parts.resolve(0, result(0, Status::Ok, b"x"), 7), []);
            let part = parts.part(0).unwrap();
            assert_eq!(part.status, Some(Status::Cancelled));
            assert_eq!((part.received_ns, part.started_ns), (6, 10));
            assert!(part.payload.bytes.is_empty());
            assert_eq!(parts.abandon([0, 1], 8), ['a']);
            assert_eq!((parts.n_done(), parts.n_failed()), (2, 2));
        }
    }

    #[test]
    fn results_that_arrive_together_are_stored_as_one() {
        let mut parts = Parts::coalescing(3);
        assert_eq!(parts.part(2).unwrap().status, None);
        assert!(parts.part(3).is_none());
        assert_eq!(parts.on_done('a'), None);
        let (ok, lost) = (Status::Ok, Status::Lost);
        assert_eq!(parts.resolve_together(together(&[ok, ok]), 5), []);
        assert_eq!(parts.n_done(), 0, "a record of another request");
        assert_eq!(parts.resolve_together(together(&[ok, ok, lost]), 5), ['a']);
        assert_eq!((parts.n_done(), parts.n_failed()), (3, 1));
        assert_eq!(parts.plain_until(0), Some(2));
        assert_eq!(parts.plain_until(2), None);
        assert_eq!(parts.completed_part(1), Some(1));
        assert!(parts.take_payload(0).is_none(), "part 1 needs it");
        assert_eq!(parts.abandon([0], 9), []);
        assert_eq!(parts.status(0), Some(ok));
    }

    #[test]
    fn results_that_arrive_together_leave_abandoned_parts_cancelled() {
        let mut parts = Parts::coalescing(2);
        assert_eq!(parts.on_done('a'), None);
        assert_eq!(parts.abandon([1], 4), []);
        assert_eq!(parts.resolve_together(together(&[Status::Ok; 2]), 5), ['a']);
        assert_eq!(parts.status(0), Some(Status::Ok));
        assert_eq!(parts.status(1), Some(Status::Cancelled));
        assert_eq!(parts.n_done(), 2);
    }

    #[test]
    fn what_parts_wrote_is_kept_by_part() {
        let mut parts = Parts::<()>::new(2);
        assert!(parts.written(1).is_none());
        let said = OutputRecord {
            task: 1,
            engine: EngineId(0),
            stream: 1,
            bytes: Bytes::from_static(b"hello"),
        };
        parts.on_output(1, &said);
        parts.on_output(1, &said);
        assert_eq!(parts.written_parts(), [1]);
        let text = parts.written(1).unwrap().text_since(1, 5, false);
        assert_eq!(text, ("hello".to_owned(), 10));
    }
}
