//! Counts what a link does.

/// What a link has done so far. System calls are counted even if they would have blocked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Receive calls.
    pub reads: u64,
    /// Send calls.
    pub writes: u64,
    /// Bytes received from the socket.
    pub bytes_in: u64,
    /// Bytes taken by the socket.
    pub bytes_out: u64,
    /// Frames taken by [`Link::next_frame`](crate::Link::next_frame).
    pub frames_in: u64,
    /// Frames begun by [`Link::append`](crate::Link::append), [`Link::send`](crate::Link::send) and
    /// [`Link::send_parts`](crate::Link::send_parts).
    pub frames_out: u64,
}
