//! Memory that takes long to release is released by a background thread.

/// Above this size, releasing memory takes longer than starting a thread.
const LARGE_BYTES: u64 = 4 * 1024 * 1024;

/// Drops an object that holds much memory: written pages take 200 ns each to unmap, and as long to free.
pub(crate) fn drop_memory<T: Send + 'static>(memory: T, bytes: u64) {
    if bytes >= LARGE_BYTES {
        let thread = std::thread::Builder::new().name("broadleaf-unmap".to_owned());
        // Without a thread it is dropped here, together with the closure.
        drop(thread.spawn(move || drop(memory)));
    }
}
