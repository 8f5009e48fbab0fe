//! The file in which a node records what its machines are told; see [`broadleaf_core::recording`].

use std::cell::RefCell;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use broadleaf_core::recording::{self, Answer, Call, End, Head, Recorder, RelayCall, Start};
use broadleaf_core::{Input, Nanos};
use broadleaf_proto::FunctionHash;
use broadleaf_proto::task::FunctionRecord;
use serde_json::json;

use crate::config::NodeOptions;
use crate::error::NodeError;

/// Lines that wait in memory while the node is busy.
const PENDING_BYTES: usize = 256 * 1024;
/// Maximum size of a piece that is read from the file for a client.
const PIECE_BYTES: usize = 4 * 1024 * 1024;

/// A node's recording, which its machines share.
#[derive(Clone)]
pub struct Recording(Rc<RefCell<Lines>>);

struct Lines {
    path: PathBuf,
    file: File,
    /// Not in the file yet.
    pending: Vec<u8>,
    written_bytes: u64,
    limit_bytes: u64,
    calls: u64,
    /// Why nothing more is recorded.
    ended: Option<String>,
    /// Replaces the hashes of functions' bodies, which would confirm a guess of a body.
    hashes: RandomState,
}

impl Recording {
    /// Begins the recording of a node that starts, if the options ask for one. A relay of this name adds it to the
    /// file's.
    ///
    /// # Errors
    /// [`NodeError::Recording`] if the file cannot be written.
    pub fn begin(
        options: &NodeOptions,
        start: Start,
        relay: Option<&str>,
    ) -> Result<Option<Self>, NodeError> {
        if options.record_inputs.is_empty() {
            return Ok(None);
        }
        let mut path = options.record_inputs.clone();
        if let Some(name) = relay {
            path = format!("{path}.{}", name.replace('/', "_"));
        }
        let path = PathBuf::from(path);
        let file = open(&path).map_err(|source| NodeError::Recording {
            path: path.clone(),
            source,
        })?;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let mut pending = Vec::new();
        recording::begin(&Head { version, start }, &mut pending);
        let mut lines = Lines {
            path,
            file,
            pending,
            written_bytes: 0,
            limit_bytes: options.record_inputs_bytes,
            calls: 0,
            ended: None,
            hashes: RandomState::new(),
        };
        lines.flush();
        Ok(Some(Self(Rc::new(RefCell::new(lines)))))
    }

    /// Brings the file up to date.
    pub fn flush(&self) {
        self.0.borrow_mut().flush();
    }

    /// Records nothing more.
    pub fn stop(&self) {
        self.0.borrow_mut().end(End::Stopped);
    }

    /// Its file, its size and why it ended, as JSON.
    pub fn to_json(&self) -> String {
        let lines = self.0.borrow();
        let bytes = lines.written_bytes + lines.pending.len() as u64;
        json!({
            "path": lines.path, "calls": lines.calls, "bytes": bytes,
            "limit_bytes": lines.limit_bytes, "ended": lines.ended,
        })
        .to_string()
    }

    /// The text of the file from there on, or the beginning of it; empty at its end.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&self, from_bytes: u64) -> io::Result<String> {
        let mut lines = self.0.borrow_mut();
        lines.flush();
        let left = lines.written_bytes.saturating_sub(from_bytes);
        let len = usize::try_from(left)
            .unwrap_or(PIECE_BYTES)
            .min(PIECE_BYTES);
        let mut piece = vec![0; len];
        lines.file.read_exact_at(&mut piece, from_bytes)?;
        // A character that the piece ends in belongs to the next piece.
        let whole = piece.utf8_chunks().next().map_or("", |chunk| chunk.valid());
        Ok(whole.to_owned())
    }
}

fn open(path: &Path) -> io::Result<File> {
    (File::options().read(true).write(true))
        .create(true)
        .truncate(true)
        // Whatever the umask is: it tells what users run, and where.
        .mode(0o600)
        .open(path)
}

impl Lines {
    fn flush(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        match self.file.write_all(&self.pending) {
            Ok(()) => self.written_bytes += self.pending.len() as u64,
            // A full disk costs the recording, never the cluster. What cannot be cut off is half a line.
            Err(error) => {
                let _ = self.file.set_len(self.written_bytes);
                self.give_up(error.to_string());
            }
        }
        self.pending.clear();
    }

    fn end(&mut self, end: End) {
        if self.ended.is_none() {
            recording::end(end, &mut self.pending);
            self.flush();
            self.give_up(end.name().to_owned());
        }
    }

    fn give_up(&mut self, why: String) {
        if self.ended.is_none() {
            // Nobody reads a log that cannot be written.
            let _ = writeln!(
                io::stderr(),
                "the recording {} has ended after {} bytes: {why}",
                self.path.display(),
                self.written_bytes
            );
            self.ended = Some(why);
        }
    }
}

impl Drop for Lines {
    /// The last call may be the one that a machine did not return from.
    fn drop(&mut self) {
        self.flush();
    }
}

impl Recorder for Recording {
    fn call(&mut self, now: Nanos, mut call: Call) {
        let mut lines = self.0.borrow_mut();
        if lines.ended.is_some() {
            return;
        }
        if let Call::Input(Input::Function { record, .. })
        | Call::Relay(RelayCall::OnFunction { record }) = &mut call
        {
            hide(record, &lines.hashes);
        }
        let before = lines.pending.len();
        recording::call(now, &call, &mut lines.pending);
        if lines.written_bytes + lines.pending.len() as u64 > lines.limit_bytes {
            lines.pending.truncate(before);
            lines.end(End::Limit);
            return;
        }
        lines.calls += 1;
    }

    fn answer(&mut self, answer: Answer) {
        let mut lines = self.0.borrow_mut();
        if lines.ended.is_some() {
            return;
        }
        recording::answer(&answer, &mut lines.pending);
        if lines.pending.len() > PENDING_BYTES {
            lines.flush();
        }
    }
}

/// Equal functions keep equal hashes.
fn hide(record: &mut FunctionRecord, hashes: &RandomState) {
    let hash = hashes.hash_one(record.hash).to_le_bytes();
    record.hash = FunctionHash(std::array::from_fn(|i| hash[i % hash.len()]));
}
