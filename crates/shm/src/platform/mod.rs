//! The operating system's part.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
pub(crate) use linux::{
    Access, Region, create, is_untouched, live_regions, max_open_files, memory_limit_bytes,
    page_bytes, populate, seal_contents, sealed_size,
};
