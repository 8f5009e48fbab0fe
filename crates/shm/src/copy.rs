//! Copying into segments.

use std::num::NonZero;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

/// Smaller copies go through the caches: their cost is small, and the reader finds them there.
const STREAM_FROM_BYTES: usize = 1024 * 1024;

/// A destination that was last written this many bytes of copies ago, including the next copy, is assumed to have left
/// the caches. Then reading its lines only to overwrite them costs a third to a half of the bandwidth (measured: 18
/// against 11 GB/s at 8 MiB, 19 against 11 at 4 MiB, and it is read equally fast afterwards), so the copy bypasses
/// them. For a cached destination a normal copy is better: it is as fast, and the reader is faster (4 MiB in 180
/// instead of 260 us).
const COLD_FROM_BYTES: u64 = 8 * 1024 * 1024;

/// A single core does not use the full memory bandwidth: from this size on, two take six tenths of the time of one
/// (measured from 4 MiB to 800 MB), and starting a thread takes 20 us.
const SHARED_FROM_BYTES: usize = 4 * 1024 * 1024;

/// Threads take pieces of this size until none is left, so that a busy core does not hold up the others.
const PIECE_BYTES: usize = 1024 * 1024;

/// More threads than this only wait for memory.
const MAX_THREADS: usize = 4;

/// Copies `source` over `destination`, which has its length and was written before the last
/// `since_bytes` of other copies.
pub(crate) fn copy(destination: &mut [u8], source: &[u8], since_bytes: u64) {
    let cold = since_bytes.saturating_add(source.len() as u64) >= COLD_FROM_BYTES;
    let streams = cold && source.len() >= STREAM_FROM_BYTES;
    let copy_piece = if streams {
        copy_past_caches
    } else {
        <[u8]>::copy_from_slice
    };
    let threads = threads_for(source.len());
    if threads == 1 {
        return copy_piece(destination, source);
    }
    let pieces = destination
        .chunks_mut(PIECE_BYTES)
        .zip(source.chunks(PIECE_BYTES));
    let pieces = Mutex::new(pieces);
    let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
    let copy_pieces = || {
        while let Some((destination, source)) = next() {
            copy_piece(destination, source);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            let thread = thread::Builder::new().name("broadleaf-copy".to_owned());
            // If it cannot start, the existing threads copy its pieces.
            drop(thread.spawn_scoped(scope, copy_pieces));
        }
        copy_pieces();
    });
}

/// How many threads copy this many bytes.
fn threads_for(len_bytes: usize) -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    if len_bytes < SHARED_FROM_BYTES {
        return 1;
    }
    let cores = *CORES.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get));
    cores.min(MAX_THREADS)
}

/// Copies `source` over `destination`, which has its length, without reading that into the caches or leaving it there.
#[cfg(not(target_arch = "x86_64"))]
fn copy_past_caches(destination: &mut [u8], source: &[u8]) {
    destination.copy_from_slice(source);
}

/// Copies `source` over `destination`, which has its length, without reading that into the caches or leaving it there.
///
/// Four pages in parallel: one after another, memory rows and the prefetcher take 1.5 times as long on some machines.
/// Each begins a quarter of a page after the previous one. At the same offset in every page, each load would follow a
/// store whose address has the same last twelve bits, and some processors wait for such a store as if it went to the
/// same address (800 MB on an EPYC of the third generation in 200 instead of 55 ms). Large copies of the C library go
/// this way too, from a size on that depends on the machine.
///
/// # Panics
/// When the lengths differ.
#[cfg(target_arch = "x86_64")]
fn copy_past_caches(destination: &mut [u8], source: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_sfence};

    const LINE_BYTES: usize = 64;
    const PAGE_LINES: usize = 4096 / LINE_BYTES;
    const PAGES: usize = 4;

    assert_eq!(destination.len(), source.len());
    // SAFETY: any bytes are a valid `__m128i` and vice versa.
    let (head, body, tail) = unsafe { destination.align_to_mut::<[__m128i; 4]>() };
    let (source_head, rest) = source.split_at(head.len());
    let (source_body, source_tail) = rest.split_at(size_of_val(body));
    let (source_lines, _) = source_body.as_chunks::<LINE_BYTES>();
    head.copy_from_slice(source_head);
    let (blocks, lines) = body.as_chunks_mut::<{ PAGES * PAGE_LINES }>();
    let (source_blocks, source_lines) = source_lines.as_chunks::<{ PAGES * PAGE_LINES }>();
    for (block, source_block) in blocks.iter_mut().zip(source_blocks) {
        for line in 0..PAGE_LINES {
            for page in 0..PAGES {
                let at = page * PAGE_LINES + (line + page * PAGE_LINES / PAGES) % PAGE_LINES;
                stream_line(&mut block[at], &source_block[at]);
            }
        }
    }
    for (line, source_line) in lines.iter_mut().zip(source_lines) {
        stream_line(line, source_line);
    }
    tail.copy_from_slice(source_tail);
    // SAFETY: SSE is part of every x86-64. Only this fence orders streaming stores before later ones, such as the
    // message that announces the segment.
    unsafe { _mm_sfence() };
}

/// Writes a cache line, bypassing the caches.
#[cfg(target_arch = "x86_64")]
#[inline]
fn stream_line(line: &mut [std::arch::x86_64::__m128i; 4], source: &[u8; 64]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};

    let (words, _) = source.as_chunks::<{ size_of::<__m128i>() }>();
    for (word, bytes) in line.iter_mut().zip(words) {
        // SAFETY: `bytes` has the 16 bytes that are read, `word` is aligned and ours to write;
        // SSE2 is part of every x86-64.
        unsafe { _mm_stream_si128(word, _mm_loadu_si128(bytes.as_ptr().cast())) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_and_none_beside() {
        let source: Vec<u8> = (0..50_000u32).map(|i| (i * 7 % 251) as u8 + 1).collect();
        for start in 0..20 {
            for len in [0, 1, 15, 16, 63, 64, 65, 900, 16_384, 16_500, 40_000] {
                let mut destination = vec![0; 50_000];
                let source = &source[20 - start..][..len];
                copy_past_caches(&mut destination[start..start + len], source);
                assert_eq!(&destination[start..start + len], source);
                assert!(destination[..start].iter().all(|b| *b == 0));
                assert!(destination[start + len..].iter().all(|b| *b == 0));
            }
        }
    }

    #[test]
    fn large_copies_are_whole() {
        for len in [STREAM_FROM_BYTES + 77, SHARED_FROM_BYTES + PIECE_BYTES + 77] {
            let source: Vec<u8> = (0..len).map(|i| (i % 253) as u8).collect();
            for since_bytes in [0, COLD_FROM_BYTES] {
                let mut destination = vec![0; source.len()];
                copy(&mut destination, &source, since_bytes);
                assert!(destination == source);
            }
        }
    }
}
