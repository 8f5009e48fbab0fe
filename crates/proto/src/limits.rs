//! Every length that a peer may claim, limited before memory is taken for it.

/// Largest frame before the handshake is done.
pub const MAX_HANDSHAKE_FRAME_BYTES: u32 = 16 * 1024;
/// Largest frame after the handshake.
pub const MAX_FRAME_BYTES: u32 = 256 * 1024 * 1024;
/// Most bytes of one payload that ride inline: a record and its frame must hold them.
pub const MAX_INLINE_PAYLOAD_BYTES: usize = MAX_FRAME_BYTES as usize - 1024 * 1024;
/// Buffers up to this size ride inline; larger ones travel in shared segments on one host.
pub const INLINE_BUFFER_BYTES: usize = 64 * 1024;
/// File descriptors that may ride with one frame (the kernel's own limit is 253 a message).
pub const MAX_FRAME_FDS: u16 = 64;
/// Segments that one payload may name.
pub const MAX_PAYLOAD_SEGMENTS: usize = 4096;
/// Parts that one coalesced record may stand for.
pub const MAX_COALESCED_PARTS: usize = 1 << 20;
/// Most inline bytes of values that are coalesced into one record; above it each part travels by itself.
pub const MAX_COALESCED_BYTES: usize = 16 * 1024 * 1024;
/// Tasks that one task may depend on.
pub const MAX_DEPENDENCIES: usize = 65_535;
/// Tasks offered to one engine at a time: the size of its claim board.
pub const CLAIM_SLOTS: usize = 4096;
/// Engines that one record to a relay may name.
pub const MAX_RELAYED_ENGINES: usize = 65_536;
/// Smallest and largest piece in which payload travels between hosts.
pub const CHUNK_BYTES: (u32, u32) = (16 * 1024, 1024 * 1024);
/// Most bytes of a chunk's frame, or block.
pub const MAX_CHUNK_FRAME_BYTES: u32 = CHUNK_BYTES.1 + 1024;
/// Largest pickled function.
pub const MAX_FUNCTION_BYTES: usize = 64 * 1024 * 1024;
/// Bytes of an engine's last output kept in its death certificate.
pub const LAST_OUTPUT_BYTES: usize = 4096;
/// Default bound on tasks that one client may have unresolved.
pub const DEFAULT_MAX_OUTSTANDING_TASKS: u64 = 262_144;
/// Default bound on what is kept of ended tasks.
pub const DEFAULT_KEPT_RESULTS_BYTES: u64 = 4 * 1024 * 1024;
/// Default bound on payload bytes that one client may have unresolved.
pub const DEFAULT_MAX_OUTSTANDING_BYTES: u64 = 256 * 1024 * 1024;
