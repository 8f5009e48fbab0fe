//! What each fuzz target does with an input. The fuzzer is not part of it, so that tests run the committed corpora through
//! the same code (`crates/node/tests/corpora.rs`).

pub mod assigned;
pub mod choices;
pub mod client;
pub mod control;
pub mod engine;
pub mod frames;
pub mod layout;
pub mod mover;
pub mod records;
pub mod relay;
pub mod seeds;
pub mod submissions;
pub mod tls;
pub mod unsent;
pub mod world;

/// A target's name, which is that of its corpus, and what it does.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: [Target; 12] = [
    ("assigned", assigned::run),
    ("client", client::run),
    ("control", control::run),
    ("engine", engine::run),
    ("frames", frames::run),
    ("layout", layout::run),
    ("mover", mover::run),
    ("records", records::run),
    ("relay", relay::run),
    ("submissions", submissions::run),
    ("tls", tls::run),
    ("unsent", unsent::run),
];
