//! An engine's log: the latest output of its process.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, splice};

/// A log that reaches this size is cut to its newer half.
const MAX_BYTES: u64 = 4 * 1024 * 1024;
/// Number of bytes taken from a pipe at once: its capacity.
pub const PIECE_BYTES: usize = 64 * 1024;

/// A file that only this process writes while it lives.
pub struct Log {
    file: File,
    len_bytes: u64,
}

impl Log {
    /// The log at `path`, which must exist; what is in it stays.
    pub fn open(path: &str) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        let len_bytes = file.metadata()?.len();
        Ok(Self { file, len_bytes })
    }

    /// Writes `bytes` at its end. A full disk loses them here, and nowhere else.
    pub fn append(&mut self, bytes: &[u8]) {
        if self.file.write_all_at(bytes, self.len_bytes).is_ok() {
            self.len_bytes += bytes.len() as u64;
            self.shorten();
        }
    }

    /// Moves what is in `pipe`, up to `PIECE_BYTES`, to the end, and copies it into `piece`, which stays empty if the
    /// pipe is empty.
    ///
    /// One system call moves the bytes from the pipe into the file, so whenever the process is killed they are in one
    /// of the two, where its parent finds them.
    pub fn take(&mut self, pipe: BorrowedFd<'_>, piece: &mut Vec<u8>) {
        piece.clear();
        let mut end = self.len_bytes;
        let flags = SpliceFlags::NONBLOCK;
        match splice(pipe, None, &self.file, Some(&mut end), PIECE_BYTES, flags) {
            Ok(count) => {
                piece.resize(count, 0);
                if self.file.read_exact_at(piece, self.len_bytes).is_err() {
                    piece.clear();
                }
                self.len_bytes += count as u64;
                self.shorten();
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            // A full disk, or a file system that cannot do it.
            Err(_) => {
                read_piece(pipe, piece);
                self.append(piece);
            }
        }
    }

    /// Keeps the newer half of a log that has become too long. Until it is cut, the end of the file is the latest
    /// output.
    fn shorten(&mut self) {
        if self.len_bytes < MAX_BYTES {
            return;
        }
        let kept_bytes = MAX_BYTES / 2;
        let mut kept = vec![0; kept_bytes as usize];
        let moved = self
            .file
            .read_exact_at(&mut kept, self.len_bytes - kept_bytes)
            .and_then(|()| self.file.write_all_at(&kept, 0))
            .and_then(|()| self.file.set_len(kept_bytes));
        if moved.is_ok() {
            self.len_bytes = kept_bytes;
        }
    }
}

/// Reads what is in `pipe`, up to `PIECE_BYTES`; nothing if it is empty.
fn read_piece(pipe: BorrowedFd<'_>, piece: &mut Vec<u8>) {
    piece.resize(PIECE_BYTES, 0);
    let count = rustix::io::read(pipe, &mut piece[..]).unwrap_or(0);
    piece.truncate(count);
}
