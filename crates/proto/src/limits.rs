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
/// A value whose encoding is longer travels as a buffer; so do inline buffers that are longer together.
pub const INLINE_VALUE_BYTES: usize = 4 * 1024 * 1024;
/// Payloads with more large buffers than this have them packed into one.
pub const MAX_LARGE_BUFFERS: usize = 1024;
/// Parts that one coalesced record may stand for.
pub const MAX_COALESCED_PARTS: usize = 1 << 20;
/// Most inline bytes of values that are coalesced into one record; above it each part travels by itself.
pub const MAX_COALESCED_BYTES: usize = 16 * 1024 * 1024;
/// Tasks that one task may depend on.
pub const MAX_DEPENDENCIES: usize = 1 << 20;
/// Tasks offered to one engine at a time: the size of its claim board.
pub const CLAIM_SLOTS: usize = 4096;
/// Engines that the relay of one host may ask for.
pub const MAX_HOST_ENGINES: u32 = 4096;
/// Longest name of a host.
pub const MAX_HOST_NAME_BYTES: usize = 255;
/// Changes of parent that the report of one fetch may name.
pub const MAX_RESUMPTIONS: usize = 4096;
/// Engines that one record to a relay may name.
pub const MAX_RELAYED_ENGINES: usize = 65_536;
/// Smallest and largest piece in which payload travels between hosts.
pub const CHUNK_BYTES: (u32, u32) = (16 * 1024, 1024 * 1024);
/// Longest reason of a refusal, encoded.
pub const MAX_REFUSAL_BYTES: usize = 64 * 1024;
/// Longest name that a user gives a task, or a preparation.
pub const MAX_LABEL_BYTES: usize = 1024;
/// Longest request of a client.
pub const MAX_REQUEST_BYTES: usize = 16 * 1024 * 1024;
/// Most bytes of the sets of task options that one client has defined.
pub const MAX_CLIENT_OPTIONS_BYTES: u64 = 64 * 1024 * 1024;
/// What each dependency of a task counts for among its client's unresolved bytes.
pub const DEPENDENCY_BYTES: u64 = 16;
/// Largest set of task options.
pub const MAX_OPTIONS_BYTES: usize = 4 * 1024 * 1024;
/// Most bytes of a chunk's frame, or block.
pub const MAX_CHUNK_FRAME_BYTES: u32 = CHUNK_BYTES.1 + 1024;
/// Largest pickled function.
pub const MAX_FUNCTION_BYTES: usize = 64 * 1024 * 1024;
/// Most bytes of a function's name; its length is one byte.
pub const MAX_FUNCTION_NAME_BYTES: usize = 120;
/// Bytes of an engine's last output kept in its death certificate.
pub const LAST_OUTPUT_BYTES: usize = 4096;
/// Default bound on tasks that one client may have unresolved.
pub const DEFAULT_MAX_OUTSTANDING_TASKS: u64 = 262_144;
/// Default bound on what is kept of ended tasks.
pub const DEFAULT_KEPT_RESULTS_BYTES: u64 = 4 * 1024 * 1024;
/// Default bound on payload bytes that one client may have unresolved.
pub const DEFAULT_MAX_OUTSTANDING_BYTES: u64 = 256 * 1024 * 1024;
/// Deepest that a task may be nested. An engine's stack holds at most one task of each depth.
pub const MAX_NESTING: u16 = 63;
