//! The operating system's part.

mod descriptors;
#[cfg(target_os = "linux")]
mod linux;

pub use descriptors::raise_descriptor_limit;
pub(crate) use descriptors::{is_among_last_descriptors, max_open_files};
#[cfg(target_os = "linux")]
pub(crate) use linux::{
    Access, Region, create, has_room, is_untouched, live_regions, memory_limit_bytes, memory_room,
    memory_strain, page_bytes, populate, seal_contents, sealed_size, write_all,
};
