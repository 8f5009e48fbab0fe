//! Limits on every length that a peer may claim, checked before memory is allocated for it.

/// Maximum size of a frame before the handshake is done.
pub const MAX_HANDSHAKE_FRAME_BYTES: u32 = 16 * 1024;
/// Maximum size of a frame after the handshake.
pub const MAX_FRAME_BYTES: u32 = 256 * 1024 * 1024;
/// Maximum size of the inline bytes of one payload: a record and its frame must hold them.
pub const MAX_INLINE_PAYLOAD_BYTES: usize = MAX_FRAME_BYTES as usize - 1024 * 1024;
/// Values up to this size travel with their records between a client and the controller on another
/// host: asking for them, or sending them ahead, would take longer.
pub const FAR_INLINE_BYTES: u64 = 1024 * 1024;
/// Maximum number of uploads of one client that no record has named yet.
pub const MAX_OPEN_UPLOADS: usize = 65_536;
/// Buffers and values up to this size travel inline; larger ones travel in shared segments on one host. Measured on the
/// reference machine: from here on a segment is faster there and back, with one engine.
pub const INLINE_BUFFER_BYTES: usize = 16 * 1024;
/// Values up to this size travel inline between two hosts, whatever they are on each.
pub const RELAYED_INLINE_BYTES: u64 = 64 * 1024;
/// Maximum number of file descriptors in one frame (the kernel's own limit is 253 per message).
pub const MAX_FRAME_FDS: u16 = 64;
/// Maximum number of segments that one payload may name.
pub const MAX_PAYLOAD_SEGMENTS: usize = 4096;
/// Maximum size of all buffers that a client on another host sends inline with one record.
pub const FAR_INLINE_TOTAL_BYTES: usize = 4 * 1024 * 1024;
/// Payloads with more large buffers than this have them packed into one.
pub const MAX_LARGE_BUFFERS: usize = 1024;
/// Maximum number of parts that one coalesced record may stand for.
pub const MAX_COALESCED_PARTS: usize = 1 << 20;
/// Maximum number of inline bytes of values that are coalesced into one record; above it, each part
/// travels separately.
pub const MAX_COALESCED_BYTES: usize = 16 * 1024 * 1024;
/// Maximum number of tasks that one task may depend on.
pub const MAX_DEPENDENCIES: usize = 1 << 20;
/// Maximum number of tasks offered to one engine at a time: the size of its claim board.
pub const CLAIM_SLOTS: usize = 4096;
/// Maximum number of engines that the relay of one host may request.
pub const MAX_HOST_ENGINES: u32 = 4096;
/// Maximum length of a host's name.
pub const MAX_HOST_NAME_BYTES: usize = 255;
/// Maximum number of changes of parent in the report of one fetch.
pub const MAX_RESUMPTIONS: usize = 4096;
/// Maximum number of engines that one record to a relay may name.
pub const MAX_RELAYED_ENGINES: usize = 65_536;
/// Minimum and maximum size of a chunk in which payload travels between hosts.
pub const CHUNK_BYTES: (u32, u32) = (16 * 1024, 1024 * 1024);
/// Maximum number of connections that one host opens to another for payload.
pub const MAX_PAYLOAD_STREAMS: usize = 16;
/// Maximum length of an encoded refusal reason.
pub const MAX_REFUSAL_BYTES: usize = 64 * 1024;
/// Maximum length of the name that a user gives a task, or a preparation.
pub const MAX_LABEL_BYTES: usize = 1024;
/// Maximum length of a client's request.
pub const MAX_REQUEST_BYTES: usize = 16 * 1024 * 1024;
/// Maximum total size of the sets of task options that one client has defined.
pub const MAX_CLIENT_OPTIONS_BYTES: u64 = 64 * 1024 * 1024;
/// The number of unresolved bytes that each dependency of a task is charged to its client.
pub const DEPENDENCY_BYTES: u64 = 16;
/// Maximum size of a set of task options.
pub const MAX_OPTIONS_BYTES: usize = 4 * 1024 * 1024;
/// Maximum size of a chunk's frame, or block.
pub const MAX_CHUNK_FRAME_BYTES: u32 = CHUNK_BYTES.1 + 1024;
/// Maximum size of a pickled function.
pub const MAX_FUNCTION_BYTES: usize = 64 * 1024 * 1024;
/// Maximum length of a function's name. One byte encodes the length.
pub const MAX_FUNCTION_NAME_BYTES: usize = 120;
/// Maximum size of an engine's last output in its death certificate.
pub const LAST_OUTPUT_BYTES: usize = 4096;
/// Maximum length of an answer that tells an observer what an engine has written.
pub const MAX_WRITTEN_BYTES: usize = 512 * 1024;
/// Kinds of errors that one error record may tell of.
pub const MAX_ERROR_KINDS: usize = 16;
/// What an error record's head says of the error at most.
pub const MAX_ERROR_TEXT_BYTES: usize = 16 * 1024;
/// Default limit on the unresolved tasks of one client.
pub const DEFAULT_MAX_OUTSTANDING_TASKS: u64 = 262_144;
/// Default limit on the size of the result store.
pub const DEFAULT_KEPT_RESULTS_BYTES: u64 = 4 * 1024 * 1024;
/// Default limit on the unresolved payload bytes of one client.
pub const DEFAULT_MAX_OUTSTANDING_BYTES: u64 = 256 * 1024 * 1024;
/// Maximum nesting depth of a task. An engine's stack holds at most one task of each depth.
pub const MAX_NESTING: u16 = 63;
