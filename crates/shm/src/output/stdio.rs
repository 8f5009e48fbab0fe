//! The C library's buffer of its standard output: memory of this process that no system call can see.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

/// `_IOLBF` in every C library for Linux.
const LINE_BUFFERED: c_int = 1;

unsafe extern "C" {
    /// A `FILE *`.
    static stdout: *mut c_void;
    fn fflush(stream: *mut c_void) -> c_int;
    fn setvbuf(stream: *mut c_void, buffer: *mut c_char, mode: c_int, size: usize) -> c_int;
}

/// Makes C output leave line by line, as on a terminal.
pub fn line_buffer_c_stdout() {
    // SAFETY: the C library sets `stdout` before `main`; without a buffer of ours it goes on using its own.
    unsafe { setvbuf(stdout, null_mut(), LINE_BUFFERED, 0) };
}

/// Flushes an unfinished line of C code to descriptor 1.
pub fn flush_c_stdout() {
    // SAFETY: the C library sets `stdout` before `main`, and locks it here itself.
    unsafe { fflush(stdout) };
}
