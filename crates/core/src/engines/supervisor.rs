//! What concerns all engines: whether they may start, and how far the end of the cluster has come.

use crate::Nanos;

/// See the module.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent facts")]
pub(crate) struct Supervisor {
    is_booted: bool,
    has_fork_server: bool,
    is_stopping: bool,
    is_finished: bool,
    /// Whether an engine or a host is being released.
    some_drain: bool,
    /// Whether the fork server was told to exit.
    fork_server_stopped: bool,
    /// The timer for the fork server's exit; 0 for none.
    shutdown_at: Nanos,
    random: u64,
}

impl Supervisor {
    pub fn new(seed: u64) -> Self {
        Self {
            is_booted: false,
            has_fork_server: false,
            is_stopping: false,
            is_finished: false,
            some_drain: false,
            fork_server_stopped: false,
            shutdown_at: 0,
            random: seed,
        }
    }

    /// An input came. True for the first one, which brings the time.
    pub fn boot(&mut self) -> bool {
        !core::mem::replace(&mut self.is_booted, true)
    }

    /// Whether the first input has come.
    pub fn is_booted(&self) -> bool {
        self.is_booted
    }

    /// The controller's host has a fork server, or has none any more.
    pub fn set_fork_server(&mut self, is_there: bool) {
        self.has_fork_server = is_there;
    }

    /// Whether the controller's host has a fork server.
    pub fn has_fork_server(&self) -> bool {
        self.has_fork_server
    }

    /// The fork server is told to exit. True the first time.
    pub fn stop_fork_server(&mut self) -> bool {
        !core::mem::replace(&mut self.fork_server_stopped, true)
    }

    /// Whether the fork server was told to exit.
    pub fn has_stopped_fork_server(&self) -> bool {
        self.fork_server_stopped
    }

    /// Something is being released.
    pub fn note_draining(&mut self) {
        self.some_drain = true;
    }

    /// Whether something may be being released; the exact answer is then noted with [`Self::set_draining`].
    pub fn some_drain(&self) -> bool {
        self.some_drain
    }

    /// Whether something is being released.
    pub fn set_draining(&mut self, some_drain: bool) {
        self.some_drain = some_drain;
    }

    /// The cluster stops. True the first time.
    pub fn stop(&mut self) -> bool {
        !core::mem::replace(&mut self.is_stopping, true)
    }

    pub fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    /// The timer for the fork server's exit.
    pub fn set_shutdown_at(&mut self, at: Nanos) {
        self.shutdown_at = at;
    }

    /// Whether that timer is set.
    pub fn has_timer(&self) -> bool {
        self.shutdown_at != 0
    }

    /// The cluster has stopped. Returns whether that is new, and the timer that was set, 0 for none.
    pub fn finish(&mut self) -> (bool, Nanos) {
        let is_new = !core::mem::replace(&mut self.is_finished, true);
        (is_new, core::mem::take(&mut self.shutdown_at))
    }

    pub fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// A number below `bound` (splitmix64).
    pub fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }
}
