//! Output that an engine left in the memory that it shares with its node. Whatever is there, nothing beyond the memory
//! is read and no byte is reported twice. What an engine wrote by the rules and has not arrived is reported exactly.

use std::fs::File;
use std::os::unix::fs::FileExt;

use broadleaf_shm::{
    ClaimBoard, HELD_BYTES, OUTPUT_STREAMS, UNSENT_BYTES, UnsentOutput, UnsentPiece,
};

use super::super::choices::Choices;

/// The stream of messages. The two before it, standard output and standard error, have lines.
const MESSAGES: usize = 2;

/// The first byte says whether the memory's bytes follow, or what an engine writes.
pub fn run(data: &[u8]) {
    let Some((mode, data)) = data.split_first() else {
        return;
    };
    let mut choices = Choices::new(data);
    let (_board, fd) = ClaimBoard::create().expect("memory for a board");
    let memory = File::from(fd);
    if mode % 2 == 0 {
        any_bytes(&memory, &mut choices);
    } else {
        Engine::new(&memory).run(&mut choices);
    }
}

/// Where in the shared memory the output begins: at its end.
pub fn begin_bytes(memory: &File) -> u64 {
    let len_bytes = memory.metadata().expect("a length").len();
    len_bytes - UNSENT_BYTES as u64
}

/// How much of each stream arrived, then ranges of the memory: offset u16, length, bytes.
fn any_bytes(memory: &File, choices: &mut Choices<'_>) {
    let arrived_bytes = std::array::from_fn(|_| choices.number());
    let begin_bytes = begin_bytes(memory);
    while !choices.is_empty() {
        let offset = usize::from(u16::from_le_bytes([choices.byte(), choices.byte()]));
        let offset = offset % UNSENT_BYTES;
        let len_bytes = usize::from(choices.byte()).min(UNSENT_BYTES - offset);
        let bytes = choices.bytes(len_bytes);
        memory
            .write_all_at(bytes, begin_bytes + offset as u64)
            .expect("the memory is writable");
    }
    let node = UnsentOutput::of_node(memory).expect("memory of a board");
    let pieces = node.missing(&arrived_bytes);
    let n_bytes: usize = pieces.iter().map(|piece| piece.bytes.len()).sum();
    assert!(n_bytes <= UNSENT_BYTES);
    for piece in pieces {
        assert!(piece.stream < OUTPUT_STREAMS && !piece.bytes.is_empty());
    }
}

/// A piece that an engine has handed to its link.
struct Handed {
    piece: UnsentPiece,
    begin_bytes: usize,
}

/// An unfinished line.
struct Held {
    task: u64,
    bytes: Vec<u8>,
    /// Where in its stream it begins.
    begin_bytes: usize,
}

/// An engine that keeps the rules, and what it has written.
struct Engine<'a> {
    memory: &'a File,
    output: UnsentOutput,
    /// What found room since the kernel had everything.
    handed: Vec<Handed>,
    handed_bytes: [usize; OUTPUT_STREAMS],
    /// What has arrived at least.
    cleared_bytes: [usize; OUTPUT_STREAMS],
    held: [Option<Held>; MESSAGES],
}

impl<'a> Engine<'a> {
    fn new(memory: &'a File) -> Self {
        Self {
            memory,
            output: UnsentOutput::of_engine(memory).expect("memory of a board"),
            handed: Vec::new(),
            handed_bytes: [0; OUTPUT_STREAMS],
            cleared_bytes: [0; OUTPUT_STREAMS],
            held: [None, None],
        }
    }

    fn run(mut self, choices: &mut Choices<'_>) {
        let node = UnsentOutput::of_node(self.memory).expect("memory of a board");
        while !choices.is_empty() {
            match choices.below(5) {
                0 => self.hold(choices),
                1 => {
                    self.output.clear();
                    self.handed.clear();
                    self.cleared_bytes = self.handed_bytes;
                }
                2 => {
                    let stream = choices.below(MESSAGES as u32) as usize;
                    self.output.drop_held(stream);
                    self.held[stream] = None;
                }
                _ => self.add(choices),
            }
            let arrived_bytes = std::array::from_fn(|stream| {
                let on_the_way = self.handed_bytes[stream] - self.cleared_bytes[stream];
                let arrived = choices.number() as usize % (on_the_way + 1);
                self.cleared_bytes[stream] + arrived
            });
            let missing = node.missing(&arrived_bytes.map(|bytes| bytes as u64));
            assert_eq!(missing, self.missing(arrived_bytes));
        }
    }

    /// Of one to 16 bytes, or of many.
    fn text(choices: &mut Choices<'_>) -> Vec<u8> {
        let byte = choices.byte();
        let n = usize::from(choices.byte());
        vec![byte; if n < 16 { n + 1 } else { 97 * (n - 15) }]
    }

    fn hold(&mut self, choices: &mut Choices<'_>) {
        let stream = choices.below(MESSAGES as u32) as usize;
        let mut more = Self::text(choices);
        let task = choices.number();
        let begin_bytes = self.handed_bytes[stream];
        let begun = self.held[stream]
            .take()
            .filter(|held| held.begin_bytes == begin_bytes);
        let mut held = begun.unwrap_or(Held {
            task,
            bytes: Vec::new(),
            begin_bytes,
        });
        more.truncate(HELD_BYTES - held.bytes.len());
        let before_bytes = held.bytes.len();
        self.output.hold(held.task, stream, before_bytes, &more);
        held.bytes.extend(more);
        self.held[stream] = Some(held);
    }

    fn add(&mut self, choices: &mut Choices<'_>) {
        let stream = choices.below(OUTPUT_STREAMS as u32) as usize;
        let bytes = Self::text(choices);
        let task = choices.number();
        let begin_bytes = self.handed_bytes[stream];
        self.handed_bytes[stream] += bytes.len();
        if self.output.add(task, stream, &bytes) {
            self.handed.push(Handed {
                piece: UnsentPiece {
                    task,
                    stream,
                    bytes,
                },
                begin_bytes,
            });
        }
    }

    fn missing(&self, arrived_bytes: [usize; OUTPUT_STREAMS]) -> Vec<UnsentPiece> {
        let mut missing = Vec::new();
        for Handed { piece, begin_bytes } in &self.handed {
            let known_bytes = arrived_bytes[piece.stream].saturating_sub(*begin_bytes);
            let is_cut = piece.stream == MESSAGES && known_bytes > 0;
            if known_bytes < piece.bytes.len() && !is_cut {
                missing.push(UnsentPiece {
                    bytes: piece.bytes[known_bytes..].to_vec(),
                    ..*piece
                });
            }
        }
        for (stream, held) in self.held.iter().enumerate() {
            if let Some(held) = held
                && held.begin_bytes == self.handed_bytes[stream]
                && !held.bytes.is_empty()
            {
                missing.push(UnsentPiece {
                    task: held.task,
                    stream,
                    bytes: held.bytes.clone(),
                });
            }
        }
        missing
    }
}
