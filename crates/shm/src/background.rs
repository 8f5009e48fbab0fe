//! What takes long to give back is given back by a thread that nobody waits for.

/// From here on, giving memory back takes longer than starting a thread.
const LARGE_BYTES: u64 = 4 * 1024 * 1024;

/// Drops what holds so much memory: pages that were written take 200 ns each to unmap, and as long to free.
pub(crate) fn drop_memory<T: Send + 'static>(memory: T, bytes: u64) {
    if bytes >= LARGE_BYTES {
        let thread = std::thread::Builder::new().name("broadleaf-unmap".to_owned());
        // Without a thread it is dropped here, as the closure is.
        drop(thread.spawn(move || drop(memory)));
    }
}
