//! Shared memory of one host: sealed segments, the owner's warm pool of them, the node's table of
//! leases, and the board on which engines claim the tasks offered to them.
//!
//! Nothing here knows sockets or peers: descriptors are handed in and out, others carry them.
//! What depends on the operating system sits in one module, `platform`.
#![allow(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod background;
mod born;
mod claims;
mod copy;
mod error;
mod heap;
mod lease_table;
mod memory;
mod platform;
mod pool;
mod segment;
mod size_class;

pub use born::{BornMemory, BornSegment, on_connected, on_disconnected, trim_born};
pub use claims::ClaimBoard;
pub use error::ShmError;
pub use heap::touch_heap;
pub use lease_table::LeaseTable;
pub use memory::memory_limit_bytes;
pub use pool::{Lease, Pool, PoolConfig, PoolCounters};
pub use segment::{Mapping, Segment, WritableMapping};
