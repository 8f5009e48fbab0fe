//! Records what happened, as a hash and, if requested, as text.

use std::fmt::{self, Debug, Write};

use broadleaf_core::Nanos;

/// See the module.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    print: bool,
}

impl Trace {
    /// An empty trace; with `print`, each event is also written to standard output.
    pub fn new(print: bool) -> Self {
        Self {
            hash: 0xcbf2_9ce4_8422_2325,
            print,
        }
    }
    /// Adds an event.
    pub fn note(&mut self, now: Nanos, event: &impl Debug) {
        if self.print {
            println!(
                "{:>6}.{:06} ms  {event:?}",
                now / 1_000_000,
                now % 1_000_000
            );
        }
        // Hashing never fails.
        let _ = write!(self, "{now} {event:?}");
    }
    /// The hash of everything so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

impl Write for Trace {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Ok(())
    }
}
