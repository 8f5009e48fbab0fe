//! Idle links, which give back the memory of large frames.

use crate::Link;

/// The memory that a link may keep, however long it is idle.
const QUIET_BYTES: usize = 128 * 1024;

impl Link {
    /// Whether it holds more memory than an idle link may keep.
    #[inline]
    pub fn holds_much(&self) -> bool {
        self.inbox.capacity_bytes() + self.outbox.capacity_bytes() > QUIET_BYTES
    }

    /// Gives its buffers back if nothing was sent or received since the last call. Returns how many bytes it freed.
    pub fn shrink_if_idle(&mut self) -> usize {
        let counters = self.counters();
        let travelled_bytes = counters.bytes_in.wrapping_add(counters.bytes_out);
        let is_idle = std::mem::replace(&mut self.looked_bytes, travelled_bytes) == travelled_bytes;
        if !is_idle || !self.holds_much() {
            return 0;
        }
        let held_bytes = self.inbox.capacity_bytes() + self.outbox.capacity_bytes();
        self.inbox.shrink();
        self.outbox.shrink();
        held_bytes - self.inbox.capacity_bytes() - self.outbox.capacity_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use broadleaf_proto::FrameKind;
    use broadleaf_proto::limits::MAX_FRAME_BYTES;

    fn exchange(from: &mut Link, to: &mut Link, body: &[u8]) {
        from.send(FrameKind::Event, body, &[]).unwrap();
        let mut frame = None;
        while frame.is_none() {
            from.flush().unwrap();
            to.fill().unwrap();
            frame = to.next_frame().unwrap();
        }
        assert_eq!(frame.unwrap().body, body);
    }

    #[test]
    fn a_link_that_held_a_large_frame_gives_its_memory_back_when_idle() {
        let (mut a, mut b) = Link::pair().unwrap();
        b.set_frame_limit(MAX_FRAME_BYTES);
        a.set_frame_limit(MAX_FRAME_BYTES);
        exchange(&mut a, &mut b, &vec![7; 3 << 20]);
        assert!(a.holds_much());
        assert_eq!(a.shrink_if_idle(), 0, "something has just travelled");
        exchange(&mut a, &mut b, &[7; 100]);
        assert_eq!(a.shrink_if_idle(), 0, "and again");
        assert!(a.shrink_if_idle() > QUIET_BYTES);
        assert!(!a.holds_much());
        exchange(&mut a, &mut b, &vec![8; 1 << 20]);
        exchange(&mut b, &mut a, &vec![9; 1 << 20]);
    }

    #[test]
    fn what_waits_to_be_sent_or_taken_stays() {
        let (mut a, mut b) = Link::pair().unwrap();
        b.set_frame_limit(MAX_FRAME_BYTES);
        let body = vec![7; 8 << 20];
        a.send(FrameKind::Event, &body, &[]).unwrap();
        a.flush().unwrap();
        b.fill().unwrap();
        for link in [&mut a, &mut b] {
            link.shrink_if_idle();
            assert_eq!(link.shrink_if_idle(), 0);
        }
        let mut frame = None;
        while frame.is_none() {
            a.flush().unwrap();
            b.fill().unwrap();
            frame = b.next_frame().unwrap();
        }
        assert_eq!(frame.unwrap().body, body);
    }
}
