//! Output that engines leave.

use std::fs::File;
use std::os::unix::fs::FileExt;

use broadleaf_shm::{ClaimBoard, UNSENT_BYTES, UnsentOutput};

use super::super::machines::unsent::begin_bytes;
use super::Seeds;

/// The memory of an engine that was killed, and what others may write.
pub fn unsent(seeds: &mut Seeds) {
    let bytes = memory();
    // What arrived of each stream; see `Choices::number`.
    seeds.add("unsent", "nothing-arrived", &input([16; 3], &bytes));
    seeds.add("unsent", "some-arrived", &input([18, 22, 17], &bytes));
    let mut long = bytes.clone();
    long[..8].fill(0xff);
    seeds.add("unsent", "longer-than-the-memory", &input([16; 3], &long));
    let mut choices = vec![1];
    // A line, more of it, all of it; a message; output that does not fit; the kernel has all: see
    // `unsent::Engine::run`.
    let steps: [&[u8]; 6] = [
        &[0, 0, b'a', 3, 20, 16, 16, 16],
        &[0, 0, b'b', 2, 20, 16, 16, 16],
        &[3, 0, b'c', 9, 20, 20, 16, 16],
        &[3, 2, b'd', 9, 21, 22, 16, 18],
        &[4, 1, b'e', 255, 22, 16, 30, 17],
        &[1, 16, 16, 16],
    ];
    choices.extend(steps.concat());
    seeds.add("unsent", "an-engine", &choices);
}

/// The part of the memory where the output is.
fn memory() -> Vec<u8> {
    let (_board, fd) = ClaimBoard::create().expect("memory for a board");
    let memory = File::from(fd);
    let engine = UnsentOutput::of_engine(&memory).expect("memory of a board");
    for (task, stream, text) in [
        (7, 0, &b"one\n"[..]),
        (7, 1, b"error\n"),
        (8, 0, b"two\n"),
        (8, 2, b"picture"),
    ] {
        assert!(engine.add(task, stream, text));
    }
    engine.hold(8, 1, 0, b"unfinished");
    let mut bytes = vec![0; UNSENT_BYTES];
    memory
        .read_exact_at(&mut bytes, begin_bytes(&memory))
        .expect("the memory is readable");
    bytes
}

/// What is not zero in the memory, as `unsent::any_bytes` reads it.
fn input(arrived: [u8; 3], memory: &[u8]) -> Vec<u8> {
    const RANGE_BYTES: usize = 64;
    let mut input = vec![0];
    input.extend(arrived);
    for (index, range) in memory.chunks(RANGE_BYTES).enumerate() {
        if range.iter().any(|byte| *byte != 0) {
            input.extend(((index * RANGE_BYTES) as u16).to_le_bytes());
            input.push(range.len() as u8);
            input.extend(range);
        }
    }
    input
}
