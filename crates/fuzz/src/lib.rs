//! What each fuzz target does with an input. The fuzzer is not part of it, so that tests run the committed corpora
//! through the same code (`crates/node/tests/corpora.rs`).

pub mod assigned;
pub mod choices;
pub mod compact;
pub mod control;
pub mod frames;
pub mod layout;
pub mod machines;
pub mod records;
pub mod seeds;
pub mod tls;

/// A target's name, which is that of its corpus, and what it does.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: [Target; 13] = [
    ("assigned", assigned::run),
    ("client", machines::client::run),
    ("compact", compact::run),
    ("control", control::run),
    ("engine", machines::engine::run),
    ("frames", frames::run),
    ("layout", layout::run),
    ("mover", machines::mover::run),
    ("records", records::run),
    ("relay", machines::relay::run),
    ("submissions", machines::submissions::run),
    ("tls", tls::run),
    ("unsent", machines::unsent::run),
];
