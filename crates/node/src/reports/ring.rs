//! The event ring: what happened, recorded as numbers. Text is made only when somebody reads it, or
//! a sink is on.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{SystemTime, UNIX_EPOCH};

use broadleaf_core::{Course, Nanos};
use broadleaf_proto::EngineId;
use broadleaf_proto::task::{DoneRecord, Status};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A client connected: its id.
    ClientUp,
    /// A client left: its id.
    ClientDown,
    /// An engine connected: its slot, its process.
    EngineUp,
    /// An engine's link closed: its slot.
    EngineDown,
    /// A peer was refused.
    Refused,
    /// A peer sent bytes that are not a frame.
    Malformed,
    /// A task ended: its engine, and its slot with the function in the high half.
    Task,
    /// A task ended in an error: the same.
    FailedTask,
    /// A request: client, number.
    Request,
    /// A host does not answer: its number.
    HostSilent,
    /// It answers again.
    HostBack,
    /// A link goes on over another connection: its connection, the bytes that the peer had.
    Resumed,
}

impl Kind {
    /// The minimum level at which it is recorded: 1 errors, 2 info, 3 debug.
    fn level(self) -> u8 {
        match self {
            Self::Refused | Self::Malformed => 1,
            Self::ClientUp
            | Self::ClientDown
            | Self::EngineUp
            | Self::EngineDown
            | Self::HostSilent
            | Self::HostBack
            | Self::Resumed
            | Self::Task
            | Self::FailedTask => 2,
            Self::Request => 3,
        }
    }
}

/// One event.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// Wall clock, ns since 1970: a task's start, or the moment of any other event.
    pub at_ns: u64,
    /// A task's end; 0 for any other event.
    pub end_ns: u64,
    /// What the numbers mean; see [`Kind`].
    pub kind: Kind,
    /// First number.
    pub a: u32,
    /// Second number.
    pub b: u64,
    /// How much a task was given and gave back, and when; zero for any other event.
    pub way: Way,
}

/// A task's way: see [`Course`], whose times these are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// When the controller received it.
    pub received_ns: Nanos,
    /// When it was last sent to an engine.
    pub sent_ns: Nanos,
    /// Bytes of its arguments.
    pub in_bytes: u64,
    /// Bytes of its value or error.
    pub out_bytes: u64,
}

enum Sink {
    Ring,
    Stderr,
    File(File),
}

/// See the module.
pub struct Ring {
    records: Vec<Record>,
    capacity: usize,
    next: usize,
    /// Number of events ever recorded.
    total: u64,
    level: u8,
    sink: Sink,
}

impl Ring {
    /// A ring of this many events. If the sink cannot be opened, the ring works without it.
    pub fn new(capacity: usize, level: u8, sink: &str) -> Self {
        let mut ring = Self {
            records: Vec::new(),
            capacity,
            next: 0,
            total: 0,
            level,
            sink: Sink::Ring,
        };
        // If the sink cannot be opened, the level is set all the same.
        let _ = ring.set(level, sink);
        ring
    }

    /// Sets level and sink.
    ///
    /// # Errors
    /// The sink's file cannot be opened; nothing changes then.
    pub fn set(&mut self, level: u8, sink: &str) -> std::io::Result<()> {
        self.sink = match sink {
            "ring" => Sink::Ring,
            "stderr" => Sink::Stderr,
            path => Sink::File(
                (File::options().create(true).append(true))
                    // Whatever the umask is: an event names what users run.
                    .mode(0o600)
                    .open(path)?,
            ),
        };
        self.level = level;
        Ok(())
    }

    /// Records an event that is a moment.
    pub fn note(&mut self, kind: Kind, a: u32, b: u64) {
        if self.level >= kind.level() {
            let at_ns = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |d| d.as_nanos() as u64);
            self.push(Record {
                at_ns,
                end_ns: 0,
                kind,
                a,
                b,
                way: Way::default(),
            });
        }
    }

    /// Records a task that an engine has ended.
    pub fn task(&mut self, engine: EngineId, done: &DoneRecord, course: impl FnOnce() -> Course) {
        if self.level >= Kind::Task.level() {
            let kind = match done.status {
                Status::Error => Kind::FailedTask,
                _ => Kind::Task,
            };
            let course = course();
            self.push(Record {
                at_ns: done.started_ns,
                end_ns: done.completed_ns,
                kind,
                a: engine.0,
                b: u64::from(course.function) << 32 | done.key.slot() as u64,
                way: Way {
                    received_ns: course.received_ns,
                    sent_ns: course.sent_ns,
                    in_bytes: course.in_bytes,
                    out_bytes: done.payload.weight_bytes(),
                },
            });
        }
    }

    /// The number of the next event, and at most `max_records` of the events from number `after` on: the
    /// newest, oldest first.
    pub fn since(&self, after: u64, max_records: usize) -> (u64, impl Iterator<Item = &Record>) {
        let n = self.total.saturating_sub(after);
        let n = usize::try_from(n).unwrap_or(usize::MAX);
        let n = n.min(max_records).min(self.records.len());
        let (newer, older) = self.records.split_at(self.next);
        let skipped = self.records.len() - n;
        (self.total, older.iter().chain(newer).skip(skipped))
    }

    fn push(&mut self, record: Record) {
        self.total += 1;
        if self.records.len() < self.capacity {
            self.records.push(record);
        } else if let Some(slot) = self.records.get_mut(self.next) {
            *slot = record;
            self.next = (self.next + 1) % self.capacity;
        }
        let line = || {
            format!(
                "{} {:?} {} {} {}\n",
                record.at_ns, record.kind, record.a, record.b, record.end_ns
            )
        };
        // A sink that fails (a full disk) costs its lines, never the cluster.
        let _ = match &mut self.sink {
            Sink::Ring => Ok(()),
            Sink::Stderr => std::io::stderr().write_all(line().as_bytes()),
            Sink::File(file) => file.write_all(line().as_bytes()),
        };
    }

    /// The events in Chrome's trace format, oldest first: one track per engine.
    pub fn chrome_trace(&self) -> String {
        let mut out = String::from("{\"traceEvents\":[");
        let (newer, older) = self.records.split_at(self.next);
        for (i, r) in older.iter().chain(newer).enumerate() {
            if i > 0 {
                out.push(',');
            }
            let at_us = r.at_ns as f64 / 1e3;
            // Writing to a String cannot fail.
            let _ = if matches!(r.kind, Kind::Task | Kind::FailedTask) {
                let duration_us = r.end_ns.saturating_sub(r.at_ns) as f64 / 1e3;
                write!(
                    out,
                    "{{\"name\":\"task {}\",\"ph\":\"X\",\"pid\":1,\"tid\":{},\"ts\":{at_us:.3},\"dur\":{duration_us:.3}}}",
                    r.b & 0xffff_ffff,
                    r.a
                )
            } else {
                write!(
                    out,
                    "{{\"name\":\"{:?}\",\"ph\":\"i\",\"s\":\"g\",\"pid\":0,\"tid\":0,\"ts\":{at_us:.3},\"args\":{{\"a\":{},\"b\":{}}}}}",
                    r.kind, r.a, r.b
                )
            };
        }
        out.push_str("]}");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(ring: &Ring, after: u64, max_records: usize) -> (u64, Vec<u64>) {
        let (next, records) = ring.since(after, max_records);
        (next, records.map(|r| r.b).collect())
    }

    #[test]
    fn each_event_is_told_once_and_the_newest_where_there_are_too_many() {
        let mut ring = Ring::new(4, 2, "ring");
        assert_eq!(told(&ring, 0, 9), (0, vec![]));
        for n in 0..3 {
            ring.note(Kind::EngineUp, 0, n);
        }
        assert_eq!(told(&ring, 0, 9), (3, vec![0, 1, 2]));
        assert_eq!(told(&ring, 0, 2), (3, vec![1, 2]));
        assert_eq!(told(&ring, 3, 9), (3, vec![]));
        for n in 3..10 {
            ring.note(Kind::EngineUp, 0, n);
        }
        assert_eq!(told(&ring, 8, 9), (10, vec![8, 9]));
        assert_eq!(
            told(&ring, 3, 9),
            (10, vec![6, 7, 8, 9]),
            "the others are lost"
        );
        assert_eq!(told(&ring, 99, 9), (10, vec![]));
        ring.note(Kind::Request, 0, 10);
        assert_eq!(told(&ring, 10, 9), (10, vec![]), "below the level");
        assert_eq!(told(&Ring::new(0, 2, "ring"), 0, 9), (0, vec![]));
    }

    #[test]
    fn a_task_is_told_with_its_function_its_end_and_its_way() {
        let mut ring = Ring::new(4, 2, "ring");
        for status in [Status::Ok, Status::Error] {
            let done = DoneRecord {
                key: broadleaf_proto::TaskKey::new(5, 3),
                status,
                started_ns: 100,
                completed_ns: 250,
                cpu_ns: 0,
                payload: broadleaf_proto::Payload {
                    bytes: bytes::Bytes::from_static(b"abc"),
                    ..Default::default()
                },
            };
            let course = Course {
                function: 77,
                received_ns: 30,
                sent_ns: 40,
                in_bytes: 9,
            };
            ring.task(EngineId(2), &done, || course);
        }
        let kinds: Vec<_> = ring
            .since(0, 9)
            .1
            .map(|r| (r.kind, r.a, r.b, r.at_ns, r.end_ns, r.way))
            .collect();
        let way = Way {
            received_ns: 30,
            sent_ns: 40,
            in_bytes: 9,
            out_bytes: 3,
        };
        let of = |kind| (kind, 2, 77 << 32 | 5, 100, 250, way);
        assert_eq!(kinds, [of(Kind::Task), of(Kind::FailedTask)]);
        assert!(ring.chrome_trace().contains("\"name\":\"task 5\""));
        ring.set(1, "ring").unwrap();
        let done = DoneRecord {
            key: broadleaf_proto::TaskKey::new(5, 3),
            status: Status::Ok,
            started_ns: 0,
            completed_ns: 0,
            cpu_ns: 0,
            payload: broadleaf_proto::Payload::default(),
        };
        ring.task(EngineId(2), &done, || {
            unreachable!("nothing is looked up for nobody")
        });
        assert_eq!(ring.since(2, 9).0, 2);
    }
}
