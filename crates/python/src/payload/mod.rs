//! Arguments and results between Python objects and wire payloads, on the client and on the engine.
//!
//! [`broadleaf_proto::layout`] describes the bytes.

mod again;
pub(crate) mod arrays;
mod captured;
mod decode;
mod encode;
mod numbers;
mod oversize;
mod pack;
pub(crate) mod plain;
mod upload;

use std::collections::hash_map::Entry;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use broadleaf_proto::task::{LeaseGuard, Payload};
use broadleaf_proto::{SegmentId, control};
use broadleaf_shm::{
    Announced, Pool, PoolConfig, ShmError, allocations_need_trim, give_up_allocations,
    memory_is_short, on_connected, on_disconnected, trim_allocations,
};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use self::again::Again;
pub use self::again::{Claim, Counted};
pub use self::captured::Captured;
pub use self::decode::{Decoded, Value};
pub use self::encode::{Encoded, Way};
pub use self::upload::{LargeBuffers, Upload};
use crate::forks::Owner;
use crate::memory::exported::Exported;
use crate::memory::received::ReceivedTable;
use crate::node::connect::EndpointOptions;

/// Locks, and continues with the value of a thread that panicked: every update here is atomic.
pub fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Segments of other processes, and the references that this process holds.
#[derive(Default)]
struct Borrowed {
    by_id: FxHashMap<SegmentId, Arc<Announced>>,
    /// References of received payloads by segment, including this process's own segments.
    held: FxHashMap<SegmentId, u64>,
    /// References to release.
    released: Vec<SegmentId>,
    /// Nothing is released any more: a segment goes with its last reference.
    closed: bool,
}

/// Time between two checks of free segments in a process that sends nothing.
pub const TRIM_PERIOD: Duration = Duration::from_secs(1);

/// References to segments that this process holds and releases together.
struct Hold {
    owner: Owner,
    segments: SmallVec<[SegmentId; 2]>,
    borrowed: Arc<Mutex<Borrowed>>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.owner.is_elsewhere() {
            return;
        }
        let mut borrowed = lock(&self.borrowed);
        for id in &self.segments {
            if let Entry::Occupied(mut held) = borrowed.held.entry(*id) {
                *held.get_mut() -= 1;
                if *held.get() == 0 {
                    held.remove();
                    if borrowed.closed {
                        borrowed.by_id.remove(id);
                    }
                }
            }
        }
        borrowed.released.extend(&self.segments);
    }
}

/// The shared-memory side of one connection: what this process exported, and what it borrowed.
pub struct DataPlane {
    pool: Mutex<Pool>,
    /// High half of the ids of this process's own segments.
    token: u32,
    received: Arc<ReceivedTable>,
    exported: Mutex<Exported>,
    again: Mutex<Again>,
    /// Payload bytes that are sent but not answered.
    outstanding_bytes: Arc<AtomicU64>,
    /// Number of copies into segments outside the pool, and their bytes.
    window_copies: (AtomicU64, AtomicU64),
    borrowed: Arc<Mutex<Borrowed>>,
    /// Buffers up to this size are sent with their record.
    inline_limit_bytes: usize,
    large: LargeBuffers,
    last_upload: AtomicU64,
    epoch: Instant,
    trimmed_at_s: AtomicU64,
}

impl Drop for DataPlane {
    fn drop(&mut self) {
        self.on_closed();
    }
}

impl DataPlane {
    /// `token` makes this process's segment ids unique on the host.
    pub fn new(
        token: u32,
        (inline_limit_bytes, large): (usize, LargeBuffers),
        options: &EndpointOptions,
    ) -> Self {
        let mut config = PoolConfig {
            idle_trims: options.shared_memory_warm_s,
            ..PoolConfig::default()
        };
        if let Some(max) = options.pool_max_bytes {
            config.max_bytes = max;
        }
        on_connected(options.shared_memory_warm_s);
        Self {
            pool: Mutex::new(Pool::new(token, config)),
            token,
            received: Arc::default(),
            exported: Mutex::default(),
            again: Mutex::default(),
            outstanding_bytes: Arc::default(),
            window_copies: Default::default(),
            borrowed: Arc::default(),
            inline_limit_bytes,
            large,
            last_upload: AtomicU64::new(0),
            epoch: Instant::now(),
            trimmed_at_s: AtomicU64::new(0),
        }
    }

    /// Payload bytes that are sent and not answered, as the client counts them.
    pub fn outstanding_bytes(&self) -> &Arc<AtomicU64> {
        &self.outstanding_bytes
    }

    fn owns(&self, id: SegmentId) -> bool {
        id.0 >> 32 == u64::from(self.token)
    }

    /// Marks a received payload's segments as held here until its last clone, or the last array on it, is gone.
    pub fn adopt(&self, payload: &mut Payload) {
        if !payload.segments.is_empty() {
            let segments: SmallVec<_> = payload.segments.iter().map(|s| s.segment).collect();
            let mut borrowed = lock(&self.borrowed);
            for id in &segments {
                *borrowed.held.entry(*id).or_default() += 1;
            }
            drop(borrowed);
            payload.lease = Some(LeaseGuard(Arc::new(Hold {
                owner: Owner::this(),
                segments,
                borrowed: Arc::clone(&self.borrowed),
            })));
        }
    }

    /// Registers segments that later payloads will name.
    pub fn on_announce(
        &self,
        announce: control::SegmentAnnounce,
        fds: impl IntoIterator<Item = OwnedFd>,
    ) {
        let mut borrowed = lock(&self.borrowed);
        for ((id, len), fd) in announce.segments.into_iter().zip(fds) {
            // A descriptor that is not a sealed segment is left out; a payload that names it fails by itself.
            if let Ok(segment) = Announced::new(fd, len) {
                borrowed.by_id.insert(id, Arc::new(segment));
            }
        }
    }

    /// The peer was told of segments: small buffers may follow in those with space.
    pub fn on_announced(&self, ids: &[SegmentId]) {
        let mut pool = lock(&self.pool);
        for id in ids {
            pool.share_rest(*id);
        }
    }

    /// References were released (`released`), or the owner of borrowed segments closed them (`retired`).
    pub fn on_release(&self, release: &control::SegmentRelease) {
        for id in &release.released {
            // Segments outside the pool were exported. A peer that releases what it never had is wrong, but harmless.
            let pooled = lock(&self.pool).release(*id).is_ok();
            if !pooled {
                lock(&self.exported).release(*id);
            }
        }
        let mut borrowed = lock(&self.borrowed);
        for id in &release.retired {
            borrowed.by_id.remove(id);
        }
    }

    /// What to tell the peer now, if anything: references to release, and own segments that are gone.
    pub fn take_releases(&self) -> Option<control::SegmentRelease> {
        let released = std::mem::take(&mut lock(&self.borrowed).released);
        let mut retired = self.trim();
        retired.append(&mut lock(&self.exported).take_retired());
        (!released.is_empty() || !retired.is_empty())
            .then_some(control::SegmentRelease { released, retired })
    }

    /// The connection is closed: frees all segments except those of payloads that may still be decoded. May be called
    /// again.
    pub fn on_closed(&self) {
        let mut borrowed = lock(&self.borrowed);
        if std::mem::replace(&mut borrowed.closed, true) {
            return;
        }
        // Kept segments go with the pool.
        lock(&self.again).clear();
        let held = borrowed.held.clone();
        borrowed.by_id.retain(|id, _| held.contains_key(id));
        drop(borrowed);
        lock(&self.pool).retain(|id| held.contains_key(id));
        lock(&self.exported).retain(|id| held.contains_key(id));
        // Exported segments are free by now.
        on_disconnected();
    }

    /// Whether segments are gone whose memory becomes free only when the peer has been told.
    pub fn has_retired(&self) -> bool {
        lock(&self.pool).has_retired()
    }

    /// Retires segments that were not used for a while, checking at most once per period. Returns all that are gone.
    fn trim(&self) -> Vec<SegmentId> {
        let now_s = self.epoch.elapsed().as_secs();
        if self.trimmed_at_s.swap(now_s, Ordering::Relaxed) == now_s {
            lock(&self.pool).take_retired()
        } else {
            if self.needs_trim() && memory_is_short() {
                self.give_up_warm();
            }
            trim_allocations();
            lock(&self.pool).trim()
        }
    }

    /// Frees all unused segments; returns whether there were any.
    fn give_up_warm(&self) -> bool {
        // Both calls, whatever the first returns.
        give_up_allocations() | lock(&self.pool).give_up_warm()
    }

    /// Whether free segments must be checked even if nothing is sent; see [`TRIM_PERIOD`].
    pub fn needs_trim(&self) -> bool {
        allocations_need_trim() || lock(&self.pool).needs_trim()
    }

    /// Whether this process has segments, its own or borrowed ones: any thread may learn that one is free.
    pub fn has_segments(&self) -> bool {
        let borrowed = lock(&self.borrowed);
        let borrows = !borrowed.held.is_empty() || !borrowed.released.is_empty();
        drop(borrowed);
        borrows || lock(&self.pool).counters().segments > 0 || allocations_need_trim()
    }

    /// Counters of the pool.
    pub fn counters(&self) -> broadleaf_shm::PoolCounters {
        let mut counters = lock(&self.pool).counters();
        counters.copies += self.window_copies.0.load(Ordering::Relaxed);
        counters.copied_bytes += self.window_copies.1.load(Ordering::Relaxed);
        counters
    }

    /// Mapped ranges that were received in segments.
    pub fn received(&self) -> &ReceivedTable {
        &self.received
    }

    /// Maps received bytes over others, without a copy; see [`ReceivedTable::replace`].
    pub fn replace(&self, destination: usize, source: usize, len_bytes: usize) -> bool {
        let borrowed = |id| lock(&self.borrowed).by_id.get(&id).cloned();
        self.received
            .replace((destination, source, len_bytes), borrowed)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "used with map_err")]
fn shm_error(error: ShmError) -> PyErr {
    PyMemoryError::new_err(error.to_string())
}
