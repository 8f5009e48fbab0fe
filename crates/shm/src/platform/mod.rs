//! The operating system's part.

mod descriptors;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod pages;

pub use descriptors::raise_descriptor_limit;
pub(crate) use descriptors::{is_among_last_descriptors, max_open_files};
#[cfg(target_os = "linux")]
pub(crate) use linux::{
    Access, Region, create, create_empty, has_room, live_regions, memory_limit_bytes, memory_room,
    memory_strain, page_bytes, read_exact, seal_contents, sealed_size, write_all,
};
#[cfg(target_os = "linux")]
pub(crate) use pages::{is_untouched, populate, take_pages};
