//! Random sequences of what can happen to a client's requests: every part ends exactly once, whatever arrives twice,
//! late or wrongly, and nothing is kept for a request that has ended.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use broadleaf_client::{Call, Limits, Load, Parts, Submitted, Table, not_run};
use broadleaf_proto::{CoalescedRecord, Status};
use proptest::prelude::*;

type Request = Rc<RefCell<Parts<u64>>>;

#[derive(Clone, Copy, Debug)]
enum Event {
    Submit {
        len: usize,
        coalescing: bool,
        weight_bytes: u64,
    },
    /// A result for any number, also one that has ended or was never used.
    Result {
        seq: u64,
        status: Status,
    },
    /// Results of a whole request, perhaps with a wrong number of parts.
    Together {
        request: usize,
        more: usize,
    },
    Abandon {
        request: usize,
        part: usize,
    },
    OnDone {
        request: usize,
    },
    /// The caller is not interested any more.
    Drop {
        request: usize,
    },
    Lost,
}

fn status() -> impl Strategy<Value = Status> {
    prop_oneof![
        Just(Status::Ok),
        Just(Status::Error),
        Just(Status::Cancelled),
        Just(Status::Refused),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (1..130_usize, any::<bool>(), 0..9_u64).prop_map(|(len, coalescing, weight_bytes)| {
            Event::Submit { len: if len > 70 { len } else { 1 + len % 4 }, coalescing, weight_bytes }
        }),
        12 => (0..300_u64, status()).prop_map(|(seq, status)| Event::Result { seq, status }),
        4 => (0..8_usize, 0..4_usize).prop_map(|(request, more)| {
            Event::Together { request, more: more / 3 }
        }),
        4 => (0..8_usize, 0..6_usize).prop_map(|(request, part)| Event::Abandon { request, part }),
        2 => (0..8_usize).prop_map(|request| Event::OnDone { request }),
        1 => (0..8_usize).prop_map(|request| Event::Drop { request }),
        1 => Just(Event::Lost),
    ]
}

/// What a request must be like.
struct Expected {
    first: u64,
    coalescing: bool,
    weight_bytes: u64,
    request: Option<Request>,
    claim: Rc<()>,
    /// How each part ended as its caller sees it.
    seen: Vec<Option<Status>>,
    /// Whether each part still belongs to the table.
    open: Vec<bool>,
    n_callbacks: u64,
}

#[derive(Default)]
struct Client {
    table: Table<Request, Rc<()>>,
    load: Load,
    requests: Vec<Expected>,
    next_seq: u64,
    n_callbacks: u64,
    /// How often each callback ran.
    ran: BTreeMap<u64, u32>,
}

impl Client {
    fn run(&mut self, callbacks: Vec<u64>) {
        for callback in callbacks {
            *self.ran.entry(callback).or_default() += 1;
        }
    }

    fn charge(&mut self, n: u64, weight_bytes: u64) {
        self.load.tasks -= n;
        self.load.bytes -= n * weight_bytes;
    }

    fn expected(&mut self, seq: u64) -> Option<(&mut Expected, usize)> {
        let in_it = |e: &&mut Expected| (e.first..e.first + e.seen.len() as u64).contains(&seq);
        let expected = self.requests.iter_mut().find(in_it)?;
        let index = (seq - expected.first) as usize;
        Some((expected, index))
    }

    fn end(&mut self, seq: u64, status: Status) {
        let found = self.table.remove(seq);
        let expected = self.expected(seq);
        let was_open = expected.is_some_and(|(e, index)| {
            let was_open = std::mem::take(&mut e.open[index]);
            if was_open {
                e.seen[index].get_or_insert(status);
            }
            was_open
        });
        assert_eq!(found.is_some(), was_open, "part {seq}");
        let Some(part) = found else { return };
        let first = self.expected(seq).map_or(0, |(e, _)| e.first);
        self.charge(1, part.weight_bytes);
        let index = (seq - first) as usize;
        let callbacks = part
            .request
            .borrow_mut()
            .resolve(index, not_run(seq, status), 1);
        self.run(callbacks);
    }

    fn on(&mut self, event: Event) {
        match event {
            Event::Submit {
                len,
                coalescing,
                weight_bytes,
            } => {
                let parts = if coalescing {
                    Parts::coalescing(len)
                } else {
                    Parts::new(len)
                };
                let (request, claim) = (Rc::new(RefCell::new(parts)), Rc::new(()));
                self.load.tasks += len as u64;
                self.load.bytes += len as u64 * weight_bytes;
                self.table.insert(Submitted {
                    seq: self.next_seq,
                    len,
                    coalescing,
                    weight_bytes,
                    claims: Rc::clone(&claim),
                    request: Rc::clone(&request),
                });
                self.requests.push(Expected {
                    first: self.next_seq,
                    coalescing,
                    weight_bytes,
                    request: Some(request),
                    claim,
                    seen: vec![None; len],
                    open: vec![true; len],
                    n_callbacks: 0,
                });
                self.next_seq += len as u64;
            }
            Event::Result { seq, status } => self.end(seq, status),
            Event::Together { request, more } => self.end_together(request, more),
            Event::Abandon { request, part } => {
                let Some(e) = self.requests.get_mut(request) else {
                    return;
                };
                let Some(request) = e.request.clone() else {
                    return;
                };
                if let Some(seen) = e.seen.get_mut(part) {
                    seen.get_or_insert(Status::Cancelled);
                }
                let callbacks = request.borrow_mut().abandon([part], 1);
                self.run(callbacks);
            }
            Event::OnDone { request } => {
                let Some(e) = self.requests.get_mut(request) else {
                    return;
                };
                let Some(request) = &e.request else { return };
                let callback = self.n_callbacks;
                self.n_callbacks += 1;
                e.n_callbacks += 1;
                let now = request.borrow_mut().on_done(callback);
                self.run(now.into_iter().collect());
            }
            Event::Drop { request } => {
                if let Some(e) = self.requests.get_mut(request) {
                    e.request = None;
                }
            }
            Event::Lost => {
                for seq in self.table.seqs() {
                    self.end(seq, Status::Lost);
                }
                assert!(self.table.is_empty());
            }
        }
    }

    fn end_together(&mut self, request: usize, more: usize) {
        let Some(e) = self.requests.get_mut(request) else {
            return;
        };
        let (first, len) = (e.first, e.seen.len());
        let n_open = e.open.iter().filter(|open| **open).count() as u64;
        let results = (first..)
            .take(len + more)
            .map(|seq| not_run(seq, Status::Ok));
        let record = CoalescedRecord::pack(results.collect());
        let found = self.table.remove_together(first, record.len());
        if !e.coalescing || n_open == 0 {
            assert!(found.is_ok_and(|found| found.is_none()));
            return;
        }
        if more > 0 {
            assert!(found.is_err(), "another number of parts");
            return;
        }
        for (open, seen) in e.open.iter_mut().zip(&mut e.seen) {
            if std::mem::take(open) {
                seen.get_or_insert(Status::Ok);
            }
        }
        let (parts, n) = found.unwrap().unwrap();
        assert_eq!((n, parts.weight_bytes), (n_open, e.weight_bytes));
        self.charge(n, parts.weight_bytes);
        let callbacks = parts.request.borrow_mut().resolve_together(record, 1);
        self.run(callbacks);
    }

    fn check(&self) {
        let open = |e: &Expected| e.open.iter().filter(|open| **open).count() as u64;
        let load = Load {
            tasks: self.requests.iter().map(open).sum(),
            bytes: self.requests.iter().map(|e| open(e) * e.weight_bytes).sum(),
        };
        assert_eq!(self.load, load);
        assert_eq!(self.table.seqs().len() as u64, load.tasks);
        assert_eq!(self.table.is_empty(), load.tasks == 0);
        assert!(self.ran.values().all(|n| *n == 1), "a callback ran twice");
        for e in &self.requests {
            for (seq, open) in (e.first..).zip(&e.open) {
                assert_eq!(self.table.contains(seq), *open, "part {seq}");
            }
            let is_kept = e.open.contains(&true);
            assert_eq!(
                Rc::strong_count(&e.claim) > 1,
                is_kept,
                "claims of {}",
                e.first
            );
            let Some(request) = &e.request else { continue };
            assert_eq!(
                Rc::strong_count(request) > 1,
                is_kept,
                "request {}",
                e.first
            );
            let parts = request.borrow();
            let seen: Vec<_> = (0..e.seen.len()).map(|index| parts.status(index)).collect();
            assert_eq!(seen, e.seen);
            let n_done = e.seen.iter().flatten().count();
            assert_eq!(parts.n_done(), n_done);
            let ok = |status: &&Status| **status == Status::Ok;
            let n_ok = e.seen.iter().flatten().filter(ok).count();
            assert_eq!(parts.n_failed(), n_done - n_ok);
            let mut order: Vec<_> = (0..).map_while(|rank| parts.completed_part(rank)).collect();
            order.sort_unstable();
            let done = (0..e.seen.len()).filter(|index| e.seen[*index].is_some());
            assert_eq!(order, done.collect::<Vec<_>>());
        }
    }
}

proptest! {
    #[test]
    fn every_part_ends_once_and_nothing_is_kept(
        events in prop::collection::vec(event(), 1..60)
    ) {
        let mut client = Client::default();
        for event in events {
            client.on(event);
            client.check();
        }
        client.on(Event::Lost);
        client.check();
        prop_assert!(client.table.is_empty());
        prop_assert_eq!(client.load, Load::default());
        prop_assert_eq!(client.ran.len() as u64, client.n_callbacks);
        for e in &client.requests {
            prop_assert!(e.request.is_none() || e.seen.iter().all(Option::is_some));
            prop_assert_eq!(Rc::strong_count(&e.claim), 1);
        }
    }

    /// Calls of any number of tasks and bytes go on: none waits for what does not end.
    #[test]
    fn whatever_waits_is_admitted_in_the_end(
        limits in (1..50_u64, 1..5000_u64),
        calls in prop::collection::vec((1..60_u64, 0..4000_u64, 0..4000_u64), 1..40),
    ) {
        let limits = Limits { max_tasks: limits.0, max_bytes: limits.1 };
        // All of them name the same bytes, which are charged while one of them is unresolved.
        let named_bytes = calls[0].2;
        let mut unresolved: Vec<(u64, u64)> = Vec::new();
        for (tasks, own_bytes, _) in calls {
            loop {
                let charged_bytes = if unresolved.is_empty() { 0 } else { named_bytes };
                let own = unresolved.iter().map(|(_, bytes)| bytes).sum::<u64>();
                let load = Load {
                    tasks: unresolved.iter().map(|(tasks, _)| tasks).sum(),
                    bytes: own + charged_bytes,
                };
                let call = Call { tasks, own_bytes, named_bytes, charged_bytes };
                if limits.admit(load, call) {
                    let many = load.tasks > 0 && load.tasks + tasks > limits.max_tasks;
                    prop_assert!(!many);
                    let beside_few = own <= limits.max_bytes / 16;
                    prop_assert!(own + own_bytes <= limits.max_bytes || beside_few);
                    break;
                }
                prop_assert!(!unresolved.is_empty(), "it waits for nothing");
                unresolved.remove(0);
            }
            unresolved.push((tasks, own_bytes));
        }
    }
}
