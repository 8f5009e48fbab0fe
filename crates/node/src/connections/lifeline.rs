//! The pipe from the process that started this node. The other end belongs to the owner, which may
//! write how long the host still has.

use std::io::Read;
use std::time::Duration;

use broadleaf_proto::relay::RelayEvent;

use crate::node::Node;

/// This holds more than a few lines; whatever does not fit is read next time.
const READ_BYTES: usize = 256;

/// The time that the last complete line gives: `ends in 30.5`, in seconds.
fn time_left(text: &str) -> Option<Duration> {
    let seconds = text
        .lines()
        .filter_map(|line| line.strip_prefix("ends in "));
    let seconds = seconds.filter_map(|number| number.trim().parse().ok());
    seconds
        .filter_map(|s| Duration::try_from_secs_f64(s).ok())
        .next_back()
}

impl Node {
    /// The owner of this node is gone, or the host was told that it will be ended.
    pub(crate) fn on_lifeline(&mut self) {
        let Some(pipe) = &mut self.lifeline else {
            return;
        };
        let mut bytes = [0; READ_BYTES];
        let n = pipe.read(&mut bytes).unwrap_or(0);
        if n == 0 {
            // Closing the pipe removes it from the poller.
            self.lifeline = None;
            self.on_owner_down();
            return;
        }
        if let Some(left) = time_left(&String::from_utf8_lossy(&bytes[..n])) {
            let ends_in_ns = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
            self.tell_controller(&RelayEvent::EndsSoon { ends_in_ns });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_counts() {
        let two = time_left("ends in 60\nends in 30.5\n");
        assert_eq!(two, Some(Duration::from_millis(30_500)));
        for nothing in ["", "\n", "ends in soon\n", "ends in -1\n", "ends in NaN\n"] {
            assert_eq!(time_left(nothing), None, "{nothing:?}");
        }
    }
}
