//! Inputs as choices: a message is built from them field by field, so that the fuzzer tries messages, and not bytes
//! that fail to decode.

/// What is left of an input.
#[derive(Debug)]
pub struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    /// All of an input.
    pub fn new(data: &'a [u8]) -> Self {
        Self(data)
    }
    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// The next byte; 0 at the end.
    pub fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }
    /// Up to `n` bytes.
    pub fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        taken
    }
    /// A number below `n`, which is at most 256.
    pub fn below(&mut self, n: u32) -> u32 {
        u32::from(self.byte()) % n
    }
    /// A number: small, or near an end or a middle of its range, or any.
    pub fn number(&mut self) -> u64 {
        let near = |n: u64, by: u8| n.wrapping_add(u64::from(by)).wrapping_sub(8);
        match self.byte() {
            0 => u64::MAX,
            1 => near(u64::MAX, self.byte()),
            2 => near(1 << 63, self.byte()),
            3 => near(u64::from(u32::MAX), self.byte()),
            4 => near(1 << 31, self.byte()),
            5 => near(1 << 16, self.byte()),
            6 => near(1 << 12, self.byte()),
            7 => near(1 << 62, self.byte()),
            8..16 => {
                let mut bytes = [0; 8];
                let some = self.bytes(8);
                bytes[..some.len()].copy_from_slice(some);
                u64::from_le_bytes(bytes)
            }
            small => u64::from(small) - 16,
        }
    }
    /// A text of up to `max_bytes`.
    pub fn text(&mut self, max_bytes: usize) -> String {
        match self.byte() {
            255 => "ä".repeat(max_bytes / 2),
            n => String::from_utf8_lossy(self.bytes(usize::from(n % 8))).into_owned(),
        }
    }
}
