//! The file in which the controller's node keeps what a later controller has to know; see [`broadleaf_core::journal`].
//!
//! One fact a line, as JSON. The last line may be torn, if the machine or the process ended while it was written: what
//! is not a whole line ends the file. It is replaced by a new one, with what its facts amount to, whenever it has become
//! several times as long as that.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use broadleaf_core::journal::{Fact, Facts, Members};
use serde::Deserialize;

use crate::error::NodeError;
use crate::node::Node;

/// A file of this size is not worth replacing.
const SMALL_BYTES: u64 = 64 * 1024;
/// How much longer than necessary a larger one may be.
const GROWTH: u64 = 4;

/// Where the journal is, and what to do with it.
#[derive(Clone, Debug, Deserialize)]
pub struct JournalConfig {
    /// The file.
    pub path: PathBuf,
    /// Whether this controller takes the place of the one that wrote the file.
    pub resume: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    /// Whether each fact is on the disk before the controller goes on: it then outlives the machine's end, too.
    syncs: bool,
    file: File,
    facts: Facts,
    len_bytes: u64,
    limit_bytes: u64,
}

/// What a file's whole lines amount to.
fn read(path: &Path) -> io::Result<Facts> {
    let mut facts = Facts::default();
    for line in std::fs::read(path)?.split_inclusive(|byte| *byte == b'\n') {
        let whole = line.strip_suffix(b"\n");
        match whole.map(serde_json::from_slice) {
            Some(Ok(fact)) => facts.add(fact),
            Some(Err(_)) | None => break,
        }
    }
    Ok(facts)
}

fn append_line(fact: &Fact, to: &mut Vec<u8>) {
    serde_json::to_writer(&mut *to, fact)
        .expect("invariant: plain data is serialised into memory infallibly");
    to.push(b'\n');
}

/// Puts a new file in the place of the old one; returns it and its length.
fn replace(path: &Path, syncs: bool, facts: &Facts) -> io::Result<(File, u64)> {
    let mut text = Vec::new();
    for fact in facts.all() {
        append_line(&fact, &mut text);
    }
    let fresh = path.with_extension("new");
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = File::options();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&fresh)?;
    file.write_all(&text)?;
    if syncs {
        file.sync_data()?;
    }
    std::fs::rename(&fresh, path)?;
    if let (true, Some(directory)) = (syncs, path.parent()) {
        File::open(directory)?.sync_all()?;
    }
    Ok((file, text.len() as u64))
}

impl Journal {
    /// The journal of a controller that starts, and what that one is told first.
    ///
    /// # Errors
    /// [`NodeError::Journal`] if the file cannot be read or written.
    pub fn open(config: JournalConfig, syncs: bool) -> Result<(Self, Members), NodeError> {
        let JournalConfig { path, resume } = config;
        let failed = |source| NodeError::Journal {
            path: path.clone(),
            source,
        };
        let mut facts = if resume {
            read(&path).map_err(failed)?
        } else {
            Facts::default()
        };
        let members = facts.start();
        let (file, len_bytes) = replace(&path, syncs, &facts).map_err(failed)?;
        let journal = Self {
            path,
            syncs,
            file,
            facts,
            len_bytes,
            limit_bytes: limit_bytes(len_bytes),
        };
        Ok((journal, members))
    }

    /// What its facts amount to.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    fn note(&mut self, fact: Fact) -> io::Result<()> {
        let mut line = Vec::new();
        append_line(&fact, &mut line);
        self.facts.add(fact);
        self.len_bytes += line.len() as u64;
        if self.len_bytes > self.limit_bytes {
            (self.file, self.len_bytes) = replace(&self.path, self.syncs, &self.facts)?;
            self.limit_bytes = limit_bytes(self.len_bytes);
            return Ok(());
        }
        self.file.write_all(&line)?;
        if self.syncs {
            self.file.sync_data()?;
        }
        Ok(())
    }
}

fn limit_bytes(len_bytes: u64) -> u64 {
    SMALL_BYTES.max(len_bytes * GROWTH)
}

impl Node {
    /// Writes a fact down, if there is a journal. One that cannot be written is given up: what it says would be wrong.
    pub(crate) fn note(&mut self, fact: Fact) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        if let Err(error) = journal.note(fact) {
            let path = journal.path.clone();
            eprintln!(
                "broadleaf: the journal {} cannot be written, so this controller cannot be started again: {error}",
                path.display()
            );
            // If it stays, starting again finds facts that are out of date, and says which hosts it misses.
            let _ = std::fs::remove_file(path);
            self.journal = None;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use broadleaf_proto::HostId;

    use super::*;

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("journal-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn open(&self, resume: bool) -> (Journal, Members) {
            let path = self.file();
            Journal::open(JournalConfig { path, resume }, false).unwrap()
        }

        fn file(&self) -> PathBuf {
            self.0.join("journal")
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn names(members: &Members) -> Vec<&str> {
        members.hosts.iter().map(|h| h.name.as_str()).collect()
    }

    #[test]
    fn a_later_controller_reads_what_an_earlier_one_wrote() {
        let directory = Directory::new("reads");
        let (mut journal, members) = directory.open(false);
        assert_eq!((members.n_before, names(&members)), (0, vec![]));
        journal.note(Fact::HostUp(HostId(3), "a".into())).unwrap();
        let (_, members) = directory.open(true);
        assert_eq!((members.n_before, names(&members)), (1, vec!["a"]));
        let mode = directory.file().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_controller_that_takes_nobodys_place_begins_anew() {
        let directory = Directory::new("anew");
        let (mut journal, _) = directory.open(false);
        journal.note(Fact::HostUp(HostId(3), "a".into())).unwrap();
        let (_, members) = directory.open(false);
        assert_eq!((members.n_before, names(&members)), (0, vec![]));
    }

    #[test]
    fn a_torn_line_is_dropped_wherever_it_is_torn() {
        let directory = Directory::new("torn");
        let (mut journal, _) = directory.open(false);
        journal.note(Fact::HostUp(HostId(3), "a".into())).unwrap();
        let whole = std::fs::read(directory.file()).unwrap();
        journal.note(Fact::HostUp(HostId(4), "b".into())).unwrap();
        let all = std::fs::read(directory.file()).unwrap();
        for end in whole.len()..all.len() {
            std::fs::write(directory.file(), &all[..end]).unwrap();
            let (mut later, members) = directory.open(true);
            assert_eq!(names(&members), ["a"], "{end}");
            later.note(Fact::HostUp(HostId(5), "c".into())).unwrap();
            assert_eq!(names(&directory.open(true).1), ["a", "c"], "{end}");
        }
    }

    #[test]
    fn it_does_not_grow_with_what_is_over() {
        let directory = Directory::new("grows");
        let (mut journal, _) = directory.open(false);
        journal
            .note(Fact::HostUp(HostId(1), "stays".into()))
            .unwrap();
        for number in 2..20_000 {
            journal
                .note(Fact::HostUp(HostId(number), "goes".into()))
                .unwrap();
            journal.note(Fact::HostDown(HostId(number))).unwrap();
            assert!(directory.file().metadata().unwrap().len() <= SMALL_BYTES);
        }
        assert_eq!(names(&directory.open(true).1), ["stays"]);
    }
}
