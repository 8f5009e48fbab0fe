//! The first inputs of each corpus: messages as the encoders write them. `cargo run --bin seeds` in `crates/fuzz` writes the
//! files.

mod assigned;
mod client;
mod controller;
mod decoders;
mod messages;
mod mover;
mod unsent;

/// An input of a target's corpus.
pub struct Seed {
    /// The target's name.
    pub target: &'static str,
    /// The file's name.
    pub name: String,
    /// What the target is given.
    pub input: Vec<u8>,
}

/// Seeds that were made.
#[derive(Default)]
struct Seeds(Vec<Seed>);

impl Seeds {
    fn add(&mut self, target: &'static str, name: &str, input: &[u8]) {
        self.0.push(Seed {
            target,
            name: name.to_owned(),
            input: input.to_vec(),
        });
    }
}

/// Every seed. The same code makes the same ones.
pub fn all() -> Vec<Seed> {
    let mut seeds = Seeds::default();
    assigned::assigned(&mut seeds);
    client::client(&mut seeds);
    controller::relay(&mut seeds);
    controller::engine(&mut seeds);
    controller::submissions(&mut seeds);
    decoders::records(&mut seeds);
    decoders::control_messages(&mut seeds);
    decoders::frames(&mut seeds);
    decoders::values(&mut seeds);
    decoders::bytes(&mut seeds);
    mover::mover(&mut seeds);
    unsent::unsent(&mut seeds);
    seeds.0
}
