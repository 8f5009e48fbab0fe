//! The state behind one client connection, shared by the caller's threads and the background thread.
//!
//! The thread that wants a reply reads it: a waiting thread takes the reader's role and polls the socket itself, so a
//! round trip wakes no other thread here. The background thread reads only while nobody waits. Lock order: the wire,
//! `batch`, `table`, then a request's own lock.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use broadleaf_client::{Batch, Deaths, Limits, Load, Nanos, Reading, Replies, Spin, not_run};
use broadleaf_net::{Link, LinkError};
use broadleaf_proto::control::{self, ControlReply};
use broadleaf_proto::task::OutputRecord;
use broadleaf_proto::{EngineId, EngineInfo, FrameKind, Status};
use pyo3::prelude::*;
use rustix::event::PollFlags;

use super::incoming::far::{Arrived, FarValues};
use super::incoming::shown::Unshown;
use super::requests::request::Request;
use super::waiting::Bell;
use super::wire::Wire;
use crate::clock::wall_ns;
use crate::forks::Owner;
use crate::payload::{Claim, DataPlane, lock};

/// The most that waits for a connection before calls wait, too.
const MAX_WAITING_BYTES: usize = 64 << 20;

/// What a task shares with others, held until it is resolved; `None` for nothing.
pub type Claims = Option<Arc<Vec<Claim>>>;

/// The parts without a result.
pub type Table = broadleaf_client::Table<Arc<Request>, Claims>;

/// An event for the Python side.
pub struct Notice {
    /// See `ClientHooks.on_event`.
    pub kind: &'static str,
    /// JSON.
    pub body: String,
}

/// What arrived in one read, to be passed to Python outside all locks.
#[derive(Default)]
pub struct Incoming {
    /// Callbacks of completed requests.
    pub callbacks: Vec<Py<PyAny>>,
    /// News.
    pub notices: Vec<Notice>,
    /// Live output: request, part, record.
    pub output: Vec<(Arc<Request>, usize, OutputRecord)>,
    /// There is output for this process's own streams.
    pub is_to_show: bool,
}

impl Incoming {
    /// Whether Python need not be called.
    pub fn is_empty(&self) -> bool {
        self.callbacks.is_empty()
            && self.notices.is_empty()
            && self.output.is_empty()
            && !self.is_to_show
    }
}

/// How one step of waiting ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Something may have changed.
    Progress,
    /// The deadline passed.
    TimedOut,
}

/// Client-side settings that affect speed.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// Batching delay for submitted tasks.
    pub linger_ns: Nanos,
    /// When a thread that waits busy-polls before it blocks.
    pub spin: Spin,
    /// Batch size above which submissions are written at once.
    pub flush_bytes: usize,
    /// Limits on what is unresolved.
    pub limits: Limits,
}

/// Counters of one connection.
#[derive(Default)]
pub struct Counters {
    /// Tasks submitted.
    pub submitted: AtomicU64,
    /// Tasks resolved.
    pub resolved: AtomicU64,
    /// How often the background thread was woken.
    pub wakeups: AtomicU64,
    /// How often a submission had to wait because of the limits.
    pub throttled: AtomicU64,
}

/// What a client keeps when it goes on with another controller, over another connection.
#[derive(Default)]
pub struct Lasting {
    /// Next task number.
    pub next_seq: AtomicU64,
    /// Here for the same reason as `engines_version`. An engine that is no longer known has its death here.
    pub deaths: Mutex<Deaths>,
    /// Counts changes of the engines, and the ends of links: Python caches values derived from the engines until then.
    /// Kept here because the code that tells Python about a change may run after a later result.
    pub engines_version: AtomicU64,
    /// Live output is wanted.
    pub live_output: AtomicBool,
    /// Output for this process's own streams.
    pub unshown: Unshown,
}

/// Decides whether another connection will take the place of one that has failed, as its controller had announced or not.
type OnEnd = Box<dyn Fn(&LinkError, bool) -> bool + Send + Sync>;

/// See the module.
pub struct Shared {
    /// The process that owns the connection.
    pub owner: Owner,
    /// What is not of this connection alone.
    pub lasting: Arc<Lasting>,
    /// The connection.
    pub wire: Wire,
    /// Data to send.
    pub batch: Mutex<Batch<Arc<Request>, Claims>>,
    pub(super) table: Mutex<Table>,
    /// Unresolved tasks.
    pub outstanding: AtomicU64,
    /// Their payload bytes.
    pub outstanding_bytes: Arc<AtomicU64>,
    /// Who reads the socket.
    pub(super) reading: Mutex<Reading>,
    /// Told of each change of `reading` that those who follow the reader sleep for.
    pub(super) progress: Condvar,
    /// For a reader that sleeps until something happens.
    pub(super) reader_bell: Bell,
    /// For an engine's main thread that follows the reader.
    pub(super) beside_bell: Bell,
    /// The background thread reads it, and anyone may write it. It is the thread's and goes with it: results keep
    /// this connection in memory after it was closed, and no descriptor.
    wake: Weak<OwnedFd>,
    /// The background thread leaves the socket to waiting threads: what `reading` says, to be read without its lock.
    pub parked: AtomicBool,
    /// Segments and buffers.
    pub data: DataPlane,
    /// Large results, where the controller is on another host.
    pub far: Option<FarValues>,
    pub(super) engines: Mutex<BTreeMap<EngineId, EngineInfo>>,
    /// The number of engines. With fewer tasks in flight an engine may be idle, so the next one is sent at once.
    pub n_engines: AtomicU64,
    pub(super) replies: Mutex<Replies<ControlReply>>,
    pub(super) epoch: Instant,
    /// When tasks were last written to the socket, ns after `epoch`.
    pub(super) sent_ns: AtomicU64,
    closed: AtomicBool,
    /// It is gone, and another connection takes its place once the controller was started again.
    pub(super) is_replaced: AtomicBool,
    /// The controller has said that the cluster stops.
    pub(super) is_stopping: AtomicBool,
    /// Asked once, when the connection is gone.
    on_end: OnceLock<OnEnd>,
    /// Number of completion callbacks of unresolved requests.
    pub callbacks: AtomicUsize,
    /// Settings.
    pub tuning: Tuning,
    /// Counters.
    pub counters: Counters,
    /// The threads that reached for the controller again, and tell Python of it.
    pub(super) redials: Mutex<Vec<JoinHandle<()>>>,
}

impl Shared {
    /// Wraps an accepted connection.
    #[expect(clippy::too_many_arguments, reason = "they are its parts")]
    pub fn new(
        py: Python<'_>,
        lasting: Arc<Lasting>,
        net: Link,
        welcome: &control::Welcome,
        data: DataPlane,
        far: Option<FarValues>,
        tuning: Tuning,
        wake: &Arc<OwnedFd>,
    ) -> std::io::Result<Self> {
        let engines = welcome
            .engines
            .iter()
            .map(|info| (info.engine, info.clone()))
            .collect();
        Ok(Self {
            owner: Owner::this(),
            lasting,
            wire: Wire::new(py, net)?,
            batch: Mutex::new(Batch::new(tuning.flush_bytes)),
            table: Mutex::default(),
            outstanding: AtomicU64::new(0),
            outstanding_bytes: Arc::clone(data.outstanding_bytes()),
            reading: Mutex::default(),
            progress: Condvar::new(),
            reader_bell: Bell::default(),
            beside_bell: Bell::default(),
            wake: Arc::downgrade(wake),
            parked: AtomicBool::new(false),
            data,
            far,
            n_engines: AtomicU64::new(welcome.engines.len() as u64),
            engines: Mutex::new(engines),
            replies: Mutex::default(),
            epoch: Instant::now(),
            sent_ns: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            is_replaced: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            on_end: OnceLock::new(),
            callbacks: AtomicUsize::new(0),
            tuning,
            counters: Counters::default(),
            redials: Mutex::default(),
        })
    }

    /// Whether the connection is gone. In children of the process that made it, it always is.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire) || self.owner.is_elsewhere()
    }

    /// What decides, when the connection is gone, whether another one will take its place.
    pub fn on_end(&self, decide: impl Fn(&LinkError, bool) -> bool + Send + Sync + 'static) {
        // This fails only if it has been set before.
        let _ = self.on_end.set(Box::new(decide));
    }

    /// Engines known now, by id.
    pub fn engines(&self) -> Vec<EngineInfo> {
        lock(&self.engines).values().cloned().collect()
    }

    /// Numbers of the unresolved tasks, ascending.
    pub fn outstanding_seqs(&self) -> Vec<u64> {
        self.register_submissions();
        lock(&self.table).seqs()
    }

    /// Wakes the background thread.
    pub fn wake_background(&self) {
        self.counters.wakeups.fetch_add(1, Ordering::Relaxed);
        if let Some(wake) = self.wake.upgrade() {
            // The counter of an eventfd overflows only after 2^64 writes; a full one is awake anyway.
            let _ = rustix::io::write(&wake, &1_u64.to_ne_bytes());
        }
    }

    /// Removes resolved tasks from the end of a list of task numbers; returns whether none is left.
    pub fn drop_resolved(&self, seqs: &mut Vec<u64>) -> bool {
        lock(&self.table).drop_resolved(seqs)
    }

    /// What is unresolved now.
    pub fn load(&self) -> Load {
        Load {
            tasks: self.outstanding.load(Ordering::Acquire),
            bytes: self.outstanding_bytes.load(Ordering::Acquire),
        }
    }

    /// The time of this connection's own clock.
    pub(super) fn now_ns(&self) -> Nanos {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// Adds everything submitted to the table of unresolved parts.
    pub fn register_submissions(&self) {
        self.register(&mut lock(&self.batch));
    }

    fn register(&self, batch: &mut Batch<Arc<Request>, Claims>) {
        if !batch.has_parts() {
            return;
        }
        let mut table = lock(&self.table);
        for parts in batch.take_parts() {
            table.insert(parts);
        }
    }

    /// Writes everything submitted to the socket; `true` if the socket took all of it.
    pub fn flush(&self) -> Result<bool, LinkError> {
        self.wire.with(|net| self.flush_into(net))
    }

    pub(super) fn flush_into(&self, net: &mut Link) -> Result<bool, LinkError> {
        // Taken before and sent after: a submission may name a segment that is released right after it.
        let release = self.data.take_releases();
        self.append_submissions(net);
        if let (Some(far), Some(release)) = (&self.far, &release) {
            // The segments are this process's own, and nobody else has any of them.
            far.on_released(&release.released);
        } else if let Some(release) = release {
            net.send(FrameKind::SegmentRelease, &control::encode(&release), &[])?;
        }
        let is_taken = net.flush()?;
        // What is sent while there is no connection waits in memory, as long as that is little.
        Ok(is_taken || net.is_suspended() && net.queued_bytes() < MAX_WAITING_BYTES)
    }

    /// The link has no connection.
    pub(super) fn on_suspended(&self) {
        if let Some(far) = &self.far {
            far.on_away(true);
        }
    }

    /// The link goes on over another connection: what waited is sent.
    pub(super) fn on_resumed(&self) {
        if let Some(far) = &self.far {
            far.on_away(false);
        }
        // An error suspends it again, or is met by whoever reads.
        let _ = self.flush();
        self.on_changed();
    }

    pub(super) fn append_submissions(&self, net: &mut Link) {
        let mut batch = lock(&self.batch);
        self.register(&mut batch);
        let bodies = batch.take_records();
        drop(batch);
        let Some(bodies) = bodies else {
            return;
        };
        self.sent_ns.store(self.now_ns(), Ordering::Release);
        for body in bodies {
            net.append(FrameKind::Submit, |frame| frame.extend_from_slice(&body));
        }
    }

    /// Sends one control frame after everything submitted before it.
    pub fn send(&self, kind: FrameKind, body: &[u8]) -> Result<(), LinkError> {
        self.wire.with(|net| {
            self.append_submissions(net);
            net.send(kind, body, &[])?;
            self.flush_into(net).map(drop)
        })
    }

    /// Queues a frame that later submissions rely on; the next flush sends it first.
    pub fn queue(
        &self,
        kind: FrameKind,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), LinkError> {
        self.wire.with(|net| net.send(kind, body, fds))
    }

    /// Queues a frame without descriptors whose body comes in two parts.
    pub fn queue_parts(&self, kind: FrameKind, head: &[u8], rest: &[u8]) -> Result<(), LinkError> {
        self.wire.with(|net| net.send_parts(kind, head, rest))
    }

    /// Waits until the socket took everything, reading replies meanwhile so that neither side blocks the other.
    pub fn drain(&self, incoming: &mut Incoming) -> Result<(), LinkError> {
        while !self.flush()? {
            let flags = self.wire.poll(PollFlags::IN | PollFlags::OUT, None);
            if flags.contains(PollFlags::IN) {
                self.try_read(incoming)?;
            }
        }
        Ok(())
    }

    /// Reads what is available, unless another thread is doing so.
    pub fn try_read(&self, incoming: &mut Incoming) -> Result<bool, LinkError> {
        if !lock(&self.reading).try_read() {
            return Ok(false);
        }
        let read = self.read(incoming);
        let is_followed = lock(&self.reading).end_read();
        if is_followed {
            self.tell_followers();
        }
        read.map(|()| true)
    }

    pub(super) fn read(&self, incoming: &mut Incoming) -> Result<(), LinkError> {
        self.wire.with(Link::fill)?;
        self.take_frames(incoming)
    }

    /// Handles what has been received. The first frames may have arrived together with the welcome.
    pub fn take_frames(&self, incoming: &mut Incoming) -> Result<(), LinkError> {
        let mut frames = Vec::new();
        self.wire.with(|net| {
            while let Some(frame) = net.next_frame()? {
                frames.push(frame);
            }
            Ok(())
        })?;
        let received_ns = wall_ns();
        for frame in frames {
            self.dispatch(frame, received_ns, incoming)?;
        }
        if let Some(far) = &self.far {
            let mut arrived = Arrived::default();
            far.take_events(&self.data, &mut arrived);
            self.on_arrived(arrived, received_ns, incoming)?;
        }
        Ok(())
    }

    /// The connection is gone: every unresolved part ends as lost.
    pub fn on_lost(&self, error: &LinkError, incoming: &mut Incoming) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.register_submissions();
        let received_ns = wall_ns();
        let entries = lock(&self.table).drain();
        for (seq, entry) in entries {
            self.on_resolved(1, entry.weight_bytes);
            let record = not_run(seq, Status::Lost);
            self.collect(entry.request.resolve(record, received_ns), incoming);
        }
        if let Some(far) = &self.far {
            far.close();
        }
        self.data.on_closed();
        let as_announced = self.is_stopping.load(Ordering::Acquire);
        let is_replaced = (self.on_end.get()).is_some_and(|decide| decide(error, as_announced));
        self.is_replaced.store(is_replaced, Ordering::Release);
        self.lasting.engines_version.fetch_add(1, Ordering::Release);
        incoming.notices.push(Notice {
            kind: if is_replaced {
                "controller_lost"
            } else {
                "link_lost"
            },
            body: json(&error.to_string()),
        });
        self.change_reading(Reading::on_lost);
        self.wake_background();
    }

    pub(super) fn collect(&self, callbacks: Vec<Py<PyAny>>, incoming: &mut Incoming) {
        if !callbacks.is_empty() {
            self.callbacks.fetch_sub(callbacks.len(), Ordering::AcqRel);
            incoming.callbacks.extend(callbacks);
        }
    }

    /// Sends a request and returns its number; the reply is fetched by [`Shared::take_reply`].
    pub fn start_request(&self, request: &control::ControlRequest) -> Result<u64, LinkError> {
        let number = lock(&self.replies).start();
        let sent = self.send_request(number, request);
        if sent.is_err() {
            lock(&self.replies).take(number);
        }
        sent.map(|()| number)
    }

    /// Sends a request whose reply nobody waits for.
    pub fn post(&self, request: &control::ControlRequest) -> Result<(), LinkError> {
        let number = lock(&self.replies).number();
        self.send_request(number, request)
    }

    fn send_request(
        &self,
        number: u64,
        request: &control::ControlRequest,
    ) -> Result<(), LinkError> {
        self.send(FrameKind::Request, &control::encode(&(number, request)))
    }

    /// Whether the reply has arrived.
    pub fn has_reply(&self, number: u64) -> bool {
        lock(&self.replies).is_answered(number)
    }

    /// Takes the reply, or gives up waiting for it.
    pub fn take_reply(&self, number: u64) -> Option<ControlReply> {
        lock(&self.replies).take(number)
    }

    /// Ends the connection from this side.
    pub fn close(&self, incoming: &mut Incoming) {
        // Submitted tasks are still sent: closing does not abort them.
        let _ = self.flush();
        let _ = self.wire.with(|net| {
            net.say_goodbye();
            Ok(())
        });
        self.on_lost(&LinkError::Closed, incoming);
        self.wire.shut_down();
        self.reader_bell.close();
        self.beside_bell.close();
    }
}

pub(super) fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("invariant: control messages have string keys only")
}
