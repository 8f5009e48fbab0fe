//! Why shared memory could not be provided.

use broadleaf_proto::SegmentId;

/// Why an operation on shared memory failed.
#[derive(Debug, thiserror::Error)]
pub enum ShmError {
    /// The descriptor is no memory file, or its size is not sealed.
    #[error("the descriptor is not a memory file with a sealed size")]
    NotSealed,
    /// Memory, or a buffer, does not have the size that was claimed or is needed.
    #[error("shared memory of {actual_bytes} bytes where {claimed_bytes} were claimed")]
    SizeMismatch {
        /// The claimed size.
        claimed_bytes: u64,
        /// The actual size.
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
    /// A segment of zero bytes, or of more than the address space holds.
    #[error("a segment cannot have {0} bytes")]
    BadSize(u64),
    /// The host, or a limit of this process, does not allow that much memory.
    #[error(
        "out of shared memory: {requested_bytes} bytes are more than the host, its control group, or a limit of this process (on file size or address space) allows"
    )]
    OutOfMemory {
        /// The requested size.
        requested_bytes: u64,
    },
    /// Memory files are files of `/dev/shm` here, and it is too small.
    #[error(
        "out of shared memory: {requested_bytes} bytes do not fit into /dev/shm, which has to hold it because \
         memfd_create is not permitted here: make /dev/shm larger (a container's --shm-size), or permit memfd_create"
    )]
    DevShmFull {
        /// The requested size.
        requested_bytes: u64,
    },
    /// The pool's own limit on bytes.
    #[error(
        "shared memory pool is full: {requested_bytes} bytes asked for, {used_bytes} of at most \
         {cap_bytes} bytes in use"
    )]
    OverCap {
        /// The requested size, rounded up to a segment's size.
        requested_bytes: u64,
        /// Bytes of segments in use.
        used_bytes: u64,
        /// The bound.
        cap_bytes: u64,
    },
    /// The pool's own limit on segments.
    #[error("shared memory pool is full: all of at most {cap} segments are in use")]
    TooManySegments {
        /// The bound.
        cap: usize,
    },
    /// The process is almost out of descriptors, and each segment takes one.
    #[error(
        "the process is running out of file descriptors, and each segment of shared memory takes one: close files, or \
         raise the limit (`ulimit -n`)"
    )]
    DescriptorsShort,
    /// The pool owns no such segment, or nobody holds a reference to it.
    #[error("segment {0:?} is not referenced")]
    NotReferenced(SegmentId),
    /// The pool belongs to the process that this one was forked from.
    #[error("a forked process cannot use its parent's shared memory pool")]
    Forked,
    /// Any other system error.
    #[error("{action}: {source}")]
    System {
        /// The operation.
        action: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
}
