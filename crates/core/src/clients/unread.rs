//! Output that is not passed on, because too much is already waiting to be read.

use broadleaf_proto::ids::EngineId;
use broadleaf_proto::task::{
    MESSAGE, OutputRecord, STDERR, STDOUT, dropped_messages_notice, dropped_notice,
};
use bytes::Bytes;

const STREAMS: [u8; 2] = [STDOUT, STDERR];

/// The part of a task's output that was dropped since its reader was last told.
#[derive(Clone, Debug, Default)]
pub struct Unread {
    task: u64,
    bytes: [u64; 2],
    messages: u64,
}

impl Unread {
    /// Counts a record as dropped; `false` if its stream is unknown.
    pub fn count(&mut self, record: &OutputRecord) -> bool {
        if self.task != record.task {
            // The other task's engine never reported its end: the task is run again, or lost with
            // its output.
            *self = Self {
                task: record.task,
                ..Self::default()
            };
        }
        if record.stream == MESSAGE {
            self.messages += 1;
            return true;
        }
        let Some(stream) = STREAMS.iter().position(|s| *s == record.stream) else {
            return false;
        };
        self.bytes[stream] += record.bytes.len() as u64;
        true
    }

    /// Whether some of this task's output was dropped.
    #[inline]
    pub fn is_of(&self, task: u64) -> bool {
        self.task == task && (self.bytes != [0; 2] || self.messages > 0)
    }

    /// Records that say how much of a task's output was dropped, if any was.
    pub fn take(&mut self, task: u64, engine: EngineId) -> Vec<OutputRecord> {
        if !self.is_of(task) {
            return Vec::new();
        }
        let said = |stream, notice: String| OutputRecord {
            task,
            engine,
            stream,
            bytes: Bytes::from(notice),
        };
        let dropped = STREAMS.into_iter().zip(std::mem::take(&mut self.bytes));
        let texts = dropped.filter(|(_, bytes)| *bytes > 0);
        let mut records: Vec<_> = texts
            .map(|(stream, bytes)| said(stream, dropped_notice(bytes)))
            .collect();
        let messages = std::mem::take(&mut self.messages);
        if messages > 0 {
            records.push(said(STDERR, dropped_messages_notice(messages)));
        }
        records
    }
}
