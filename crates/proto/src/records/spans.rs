//! Records, in packed form, where and when the parts of a request ran.

use bytes::{BufMut, Bytes};

use crate::ids::EngineId;
use crate::wire::{DecodeError, Reader};

/// Engine, start, end and processor time of one part. The engine is `u32::MAX` if the part ran
/// nowhere; start and end are wall clock, ns since 1970, and 0 for a part that never started.
pub type Span = (EngineId, u64, u64, u64);

const COLUMNS: usize = 4;

/// Common values are stored once: each column consists of its minimum and, for every part, the
/// difference from that, in as few bytes as the column needs. Engines are stored relative to the
/// part's index, so a row of consecutive engines takes no bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spans {
    len: usize,
    minima: [u64; COLUMNS],
    widths: [u8; COLUMNS],
    /// The columns, one after the other.
    bytes: Bytes,
}

/// A part's entry in each column: engine relative to its index, start, duration, processor time.
fn entries(part: usize, (engine, started_ns, completed_ns, cpu_ns): Span) -> [u64; COLUMNS] {
    [
        u64::from(engine.0.wrapping_sub(part as u32)),
        started_ns,
        completed_ns.wrapping_sub(started_ns),
        cpu_ns,
    ]
}

impl Spans {
    /// Packs the spans of parts 0, 1, ...
    pub fn pack(spans: &[Span]) -> Self {
        let all = || (0..).zip(spans).map(|(part, span)| entries(part, *span));
        let mut minima = [u64::MAX; COLUMNS];
        let mut maxima = [0; COLUMNS];
        for entries in all() {
            for column in 0..COLUMNS {
                minima[column] = minima[column].min(entries[column]);
                maxima[column] = maxima[column].max(entries[column]);
            }
        }
        let widths = std::array::from_fn(|column| {
            let bits = u64::BITS
                - maxima[column]
                    .saturating_sub(minima[column])
                    .leading_zeros();
            bits.div_ceil(8) as u8
        });
        let mut bytes = Vec::with_capacity(spans.len() * row_bytes(&widths));
        for column in 0..COLUMNS {
            let width = usize::from(widths[column]);
            for entries in all() {
                let above = entries[column] - minima[column];
                bytes.extend_from_slice(&above.to_le_bytes()[..width]);
            }
        }
        Self {
            len: spans.len(),
            minima,
            widths,
            bytes: bytes.into(),
        }
    }

    /// The number of parts.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no parts.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The span of a part.
    pub fn get(&self, part: usize) -> Option<Span> {
        if part >= self.len {
            return None;
        }
        let [engine, started_ns, duration_ns, cpu_ns] = std::array::from_fn(|column| {
            let width = usize::from(self.widths[column]);
            let start = self.len * row_bytes(&self.widths[..column]) + part * width;
            let mut above = [0; 8];
            above[..width].copy_from_slice(&self.bytes[start..start + width]);
            self.minima[column].wrapping_add(u64::from_le_bytes(above))
        });
        Some((
            EngineId((engine as u32).wrapping_add(part as u32)),
            started_ns,
            started_ns.wrapping_add(duration_ns),
            cpu_ns,
        ))
    }

    /// Appends them; their number goes separately.
    pub fn encode(&self, out: &mut impl BufMut) {
        for column in 0..COLUMNS {
            out.put_u64_le(self.minima[column]);
            out.put_u8(self.widths[column]);
        }
        out.put_slice(&self.bytes);
    }

    /// Reads those of `len` parts.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are malformed.
    pub fn decode(r: &mut Reader, len: usize) -> Result<Self, DecodeError> {
        let mut minima = [0; COLUMNS];
        let mut widths = [0; COLUMNS];
        for column in 0..COLUMNS {
            minima[column] = r.u64()?;
            widths[column] = r.u8()?;
            if widths[column] > 8 {
                return Err(DecodeError::Malformed);
            }
        }
        Ok(Self {
            len,
            minima,
            widths,
            bytes: r.bytes(len * row_bytes(&widths))?,
        })
    }
}

fn row_bytes(widths: &[u8]) -> usize {
    widths.iter().map(|width| usize::from(*width)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_NS: u64 = 1_790_000_000_000_000_000;

    /// Size of what precedes the columns: minimum u64 and width u8 of each.
    const HEAD_BYTES: usize = COLUMNS * 9;

    /// Encodes and decodes spans; returns how many bytes they took.
    fn round_trip(spans: &[Span]) -> usize {
        let packed = Spans::pack(spans);
        let mut bytes = Vec::new();
        packed.encode(&mut bytes);
        let n_bytes = bytes.len();
        let mut reader = Reader::new(bytes.into());
        let decoded = Spans::decode(&mut reader, spans.len()).unwrap();
        assert!(reader.is_empty());
        assert_eq!(decoded, packed);
        for (part, span) in spans.iter().enumerate() {
            assert_eq!(decoded.get(part), Some(*span), "part {part}");
        }
        assert_eq!(decoded.get(spans.len()), None);
        n_bytes
    }

    #[test]
    fn calls_of_a_row_of_engines_take_few_bytes_a_part() {
        let spans: Vec<Span> = (0..100)
            .map(|part| {
                let started_ns = NOW_NS + u64::from(part) * 9_000;
                (EngineId(part + 7), started_ns, started_ns + 300, 300)
            })
            .collect();
        // The starts need three bytes, times that are all equal and engines in a row none.
        assert_eq!(round_trip(&spans), HEAD_BYTES + 100 * 3);
    }

    #[test]
    fn every_place_is_found_again() {
        round_trip(&[]);
        round_trip(&[(EngineId(3), NOW_NS, NOW_NS + 1, 2)]);
        // Any order of engines, one that never started, one that ran nowhere, a clock that went backwards.
        round_trip(&[
            (EngineId(5), NOW_NS, NOW_NS + 70_000, 60_000),
            (EngineId(0), 0, 0, 0),
            (EngineId(u32::MAX), 0, 0, 0),
            (EngineId(1), NOW_NS + 5, NOW_NS - 5, u64::MAX),
            (EngineId(4_000_000_000), u64::MAX, 0, 1),
        ]);
    }

    #[test]
    fn what_is_none_is_refused() {
        let mut bytes = Vec::new();
        Spans::pack(&[(EngineId(0), NOW_NS, NOW_NS, 0), (EngineId(9), 0, 1, 2)]).encode(&mut bytes);
        for end in 0..bytes.len() {
            let cut = Bytes::copy_from_slice(&bytes[..end]);
            let refused = Spans::decode(&mut Reader::new(cut), 2);
            assert_eq!(refused, Err(DecodeError::Truncated), "{end}");
        }
        bytes[8] = 9;
        let refused = Spans::decode(&mut Reader::new(bytes.into()), 2);
        assert_eq!(refused, Err(DecodeError::Malformed));
    }
}
