//! Copying into segments.

/// Smaller copies go through the caches: the whole matters little, and the reader finds them there.
const STREAM_FROM_BYTES: usize = 1024 * 1024;

/// A destination that was last written this many bytes of copies ago, the one to come included, is taken
/// to have left the caches. Then reading its lines only to overwrite them costs a third to a half of the
/// bandwidth (measured: 18 against 11 GB/s at 8 MiB, 19 against 11 at 4 MiB, and it is read equally fast
/// afterwards), so the copy goes past them. One that is still cached is better copied there: as fast, and
/// its reader is faster (4 MiB in 180 instead of 260 us).
const COLD_FROM_BYTES: u64 = 8 * 1024 * 1024;

/// Copies `source` over `destination`, which has its length and was written before the last
/// `since_bytes` of other copies.
pub(crate) fn copy(destination: &mut [u8], source: &[u8], since_bytes: u64) {
    let cold = since_bytes.saturating_add(source.len() as u64) >= COLD_FROM_BYTES;
    if cold && source.len() >= STREAM_FROM_BYTES {
        stream(destination, source);
    } else {
        destination.copy_from_slice(source);
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn stream(destination: &mut [u8], source: &[u8]) {
    destination.copy_from_slice(source);
}

#[cfg(target_arch = "x86_64")]
fn stream(destination: &mut [u8], source: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    assert_eq!(destination.len(), source.len());
    // SAFETY: any bytes are a valid `__m128i` and the other way round.
    let (head, body, tail) = unsafe { destination.align_to_mut::<[__m128i; 4]>() };
    let (source_head, rest) = source.split_at(head.len());
    let (source_body, source_tail) = rest.split_at(size_of_val(body));
    head.copy_from_slice(source_head);
    for (block, bytes) in body
        .iter_mut()
        .zip(source_body.chunks_exact(size_of::<[__m128i; 4]>()))
    {
        for (word, bytes) in block
            .iter_mut()
            .zip(bytes.chunks_exact(size_of::<__m128i>()))
        {
            // SAFETY: `bytes` has the 16 bytes that are read, `word` is aligned and ours to write;
            // SSE2 is part of every x86-64.
            unsafe { _mm_stream_si128(word, _mm_loadu_si128(bytes.as_ptr().cast())) };
        }
    }
    tail.copy_from_slice(source_tail);
    // SAFETY: as above. Streamed stores are not ordered with later ones, such as the message that
    // announces the segment, but by this fence.
    unsafe { _mm_sfence() };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_and_none_beside() {
        let source: Vec<u8> = (0..1000u32).map(|i| (i * 7 % 251) as u8 + 1).collect();
        for start in 0..20 {
            for len in [0, 1, 15, 16, 63, 64, 65, 200, 900] {
                let mut destination = vec![0; 1100];
                let source = &source[20 - start..][..len];
                stream(&mut destination[start..start + len], source);
                assert_eq!(&destination[start..start + len], source);
                assert!(destination[..start].iter().all(|b| *b == 0));
                assert!(destination[start + len..].iter().all(|b| *b == 0));
            }
        }
    }

    #[test]
    fn large_copies_are_whole() {
        let source: Vec<u8> = (0..STREAM_FROM_BYTES + 77)
            .map(|i| (i % 253) as u8)
            .collect();
        for since_bytes in [0, COLD_FROM_BYTES] {
            let mut destination = vec![0; source.len()];
            copy(&mut destination, &source, since_bytes);
            assert!(destination == source);
        }
    }
}
