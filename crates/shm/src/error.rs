//! Why shared memory was not given.

use broadleaf_proto::SegmentId;

/// Why an operation on shared memory failed.
#[derive(Debug, thiserror::Error)]
pub enum ShmError {
    /// The descriptor is no memory file, or its size is not sealed.
    #[error("the descriptor is no memory file of sealed size")]
    NotSealed,
    /// The descriptor's memory is smaller than its sender said, or than its use needs.
    #[error("shared memory of {actual_bytes} bytes where {claimed_bytes} were claimed")]
    SizeMismatch {
        /// Bytes that were claimed.
        claimed_bytes: u64,
        /// Bytes that there are.
        actual_bytes: u64,
    },
    /// A range that is empty or leaves the segment.
    #[error("range {offset_bytes}+{len_bytes} does not fit a segment of {segment_bytes} bytes")]
    BadRange {
        /// First byte.
        offset_bytes: u64,
        /// Length.
        len_bytes: u64,
        /// The segment's size.
        segment_bytes: u64,
    },
    /// A segment of no bytes, or of more than the address space holds.
    #[error("no segment can have {0} bytes")]
    BadSize(u64),
    /// The host, or a limit of this process, does not give that much memory.
    #[error(
        "out of shared memory: {requested_bytes} bytes are more than the host, its control group, or a limit of this \
         process (on file size or address space) has left"
    )]
    OutOfMemory {
        /// Bytes that were asked for.
        requested_bytes: u64,
    },
    /// Memory files are files of `/dev/shm` here, and it is too small.
    #[error(
        "out of shared memory: {requested_bytes} bytes do not fit into /dev/shm, which has to hold it because \
         memfd_create is not permitted here: make /dev/shm larger (a container's --shm-size), or permit memfd_create"
    )]
    DevShmFull {
        /// Bytes that were asked for.
        requested_bytes: u64,
    },
    /// The pool's own bound on bytes.
    #[error(
        "shared memory pool is full: {requested_bytes} bytes asked for, {used_bytes} of at most \
         {cap_bytes} bytes in use"
    )]
    OverCap {
        /// Bytes that were asked for, rounded up to a segment's size.
        requested_bytes: u64,
        /// Bytes of segments in use.
        used_bytes: u64,
        /// The bound.
        cap_bytes: u64,
    },
    /// The pool's own bound on segments.
    #[error("shared memory pool is full: all of at most {cap} segments are in use")]
    TooManySegments {
        /// The bound.
        cap: usize,
    },
    /// The process has hardly a descriptor left, and each segment takes one.
    #[error(
        "the process is short of file descriptors, of which each segment of shared memory takes one: close files, or \
         raise the limit (`ulimit -n`)"
    )]
    DescriptorsShort,
    /// The pool owns no such segment, or nobody holds a reference to it.
    #[error("segment {0:?} is not referenced")]
    NotReferenced(SegmentId),
    /// The pool belongs to the process that this one was forked from.
    #[error("a forked process cannot use its parent's shared memory pool")]
    Forked,
    /// Any other refusal of the system.
    #[error("{action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
}
