//! How many descriptors the process may have, and whether they are running short.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::process::{Resource, Rlimit};

/// The limit is raised no further: some programs close every descriptor that they might have when they start.
const MAX_DESCRIPTORS: u64 = 65_536;
/// Descriptors that segments leave to others: one part in this many of the limit, and at most `MAX_RESERVED`.
const RESERVED_SHARE: u64 = 4;
const MAX_RESERVED: u64 = 256;

/// Number of descriptors this process may hold.
pub(crate) fn max_open_files() -> u64 {
    rustix::process::getrlimit(Resource::Nofile)
        .current
        .unwrap_or(u64::MAX)
}

/// Raises the process's soft limit of descriptors to the hard one, or to 65,536 if that is lower; processes that it
/// starts inherit it. For Broadleaf's own programs; a limit that cannot be raised stays unchanged.
pub fn raise_descriptor_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(u64::MAX).min(MAX_DESCRIPTORS);
    if limit.current.is_some_and(|current| current < wanted) {
        let raised = Rlimit {
            current: Some(wanted),
            ..limit
        };
        // Refused only if something supervises such calls; then the number stays unchanged.
        let _ = rustix::process::setrlimit(Resource::Nofile, raised);
    }
}

/// Whether a new descriptor is one of the last: each has the lowest free number.
pub(crate) fn is_among_last_descriptors(fd: BorrowedFd<'_>) -> bool {
    let limit = max_open_files();
    let reserved = (limit / RESERVED_SHARE).min(MAX_RESERVED);
    u64::try_from(fd.as_raw_fd()).is_ok_and(|number| number >= limit - reserved)
}
