//! What a part wrote, within limits.

use std::collections::VecDeque;

use broadleaf_proto::task::dropped_notice;
use bytes::Bytes;

/// Maximum size of one stream kept for one part; beyond that, its start is dropped.
const MAX_STREAM_BYTES: usize = 16 * 1024 * 1024;
/// Maximum size of the messages kept for one part; the oldest are forgotten first.
const MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;
/// How far the cut may move so that the rest begins with a line.
const MAX_LINE_BYTES: usize = 64 * 1024;

/// The latest bytes of a stream.
#[derive(Clone, Debug, Default)]
struct Kept {
    bytes: Vec<u8>,
    dropped_bytes: usize,
}

impl Kept {
    fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() <= MAX_STREAM_BYTES {
            return;
        }
        let min_dropped_bytes = self.bytes.len() - MAX_STREAM_BYTES / 2;
        let rest = &self.bytes[min_dropped_bytes..];
        let line = &rest[..rest.len().min(MAX_LINE_BYTES)];
        let more = match line.iter().position(|byte| *byte == b'\n') {
            Some(at) => at + 1,
            None => line.iter().take_while(|byte| is_inner(**byte)).count(),
        };
        self.bytes.drain(..min_dropped_bytes + more);
        self.dropped_bytes += min_dropped_bytes + more;
    }

    /// The text from a position in the whole stream, and the position of its end. If more is to come, an incomplete
    /// character is left for later.
    fn since(&self, position: usize, more_to_come: bool) -> (String, usize) {
        let mut end = self.bytes.len();
        if more_to_come {
            end -= unfinished_bytes(&self.bytes);
        }
        let missed_bytes = self.dropped_bytes.saturating_sub(position);
        let start = position.saturating_sub(self.dropped_bytes).min(end);
        let text = String::from_utf8_lossy(&self.bytes[start..end]);
        let text = if missed_bytes > 0 {
            dropped_notice(missed_bytes as u64) + &text
        } else {
            text.into_owned()
        };
        (text, self.dropped_bytes + end)
    }
}

/// What a part wrote.
#[derive(Clone, Debug, Default)]
pub struct Written {
    stdout: Kept,
    stderr: Kept,
    messages: VecDeque<Bytes>,
    message_bytes: usize,
}

impl Written {
    /// Stores text of stream 1 or 2, or a message.
    pub fn append(&mut self, stream: u8, bytes: &[u8]) {
        match stream {
            1 => self.stdout.append(bytes),
            2 => self.stderr.append(bytes),
            _ => self.keep_message(bytes),
        }
    }

    /// Stores a message, the latest in any case, and forgets the oldest beyond the limit.
    fn keep_message(&mut self, bytes: &[u8]) {
        // Copied: a slice of the frame would keep the whole frame alive.
        self.messages.push_back(Bytes::copy_from_slice(bytes));
        self.message_bytes += bytes.len();
        while self.message_bytes > MAX_MESSAGE_BYTES && self.messages.len() > 1 {
            let oldest = self.messages.pop_front().map_or(0, |m| m.len());
            self.message_bytes -= oldest;
        }
    }

    /// The text of standard output (1) or error from a position on, and the position of its end.
    pub fn text_since(&self, stream: u8, position: usize, more_to_come: bool) -> (String, usize) {
        let kept = if stream == 1 {
            &self.stdout
        } else {
            &self.stderr
        };
        kept.since(position, more_to_come)
    }

    /// Pickled display and data messages.
    pub fn messages(&self) -> &VecDeque<Bytes> {
        &self.messages
    }
}

/// Whether a UTF-8 byte is not the first of its character.
fn is_inner(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

/// Length of the beginning of a character at the end.
fn unfinished_bytes(bytes: &[u8]) -> usize {
    let inner = bytes
        .iter()
        .rev()
        .take(3)
        .take_while(|b| is_inner(**b))
        .count();
    let first = bytes.len().checked_sub(inner + 1).map_or(0, |at| bytes[at]);
    let whole = match first {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => 0,
    };
    if inner + 1 < whole { inner + 1 } else { 0 }
}
