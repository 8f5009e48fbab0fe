//! Shared memory of one host: sealed segments, the owner's warm pool of them, the node's table of leases, the board
//! on which engines claim the tasks offered to them, and the lane on which one task reaches many. It also holds the other parts of the process's memory that need
//! `unsafe`: the heap's pages, and the C library's output buffer.
//!
//! Nothing here knows about sockets or peers: descriptors are passed in and out, and others transport them. Everything
//! that depends on the operating system is in one module, `platform`.
#![allow(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod allocations;
mod claims;
mod copy;
mod error;
mod lane;
mod lease_table;
mod memory;
mod output;
mod platform;
mod pool;
mod segment;

pub use allocations::{
    AllocationSegment, SharedAllocation, allocations_need_trim, give_up_allocations, on_connected,
    on_disconnected, trim_allocations,
};
pub use claims::ClaimBoard;
pub use error::ShmError;
pub use lane::{LETTER_BYTES, Lane, Place, Taken};
pub use lease_table::LeaseTable;
pub use memory::{await_memory, give_back_heap, memory_is_short, memory_limit_bytes, touch_heap};
pub use output::{
    HELD_BYTES, OUTPUT_STREAMS, RecentBytes, UNSENT_BYTES, UnsentOutput, UnsentPiece,
    flush_c_stdout, line_buffer_c_stdout,
};
pub use platform::raise_descriptor_limit;
pub use pool::{
    Lease, MessageSlab, Pool, PoolConfig, PoolCounters, Reading, SLAB_BUFFER_BYTES, WARM_SECONDS,
    slab_range_bytes,
};
pub use segment::{Announced, Mapping, Segment, WritableMapping};
