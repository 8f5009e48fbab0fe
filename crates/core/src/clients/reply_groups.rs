//! Requests whose results reach their client together.

use broadleaf_proto::CoalescedRecord;
use broadleaf_proto::ids::{ClientId, TaskSeq};
use broadleaf_proto::limits::MAX_COALESCED_BYTES;
use broadleaf_proto::task::ResultRecord;
use slab::Slab;

use crate::Output;
use crate::check::{Violation, ensure};

/// The results so far of one request.
#[derive(Clone, Debug)]
struct ReplyGroup {
    client: ClientId,
    first_seq: TaskSeq,
    /// By part.
    results: Vec<Option<ResultRecord>>,
    n_missing: u64,
    inline_bytes: usize,
}

/// Every coalescing request that is not complete.
#[derive(Clone, Debug, Default)]
pub(super) struct ReplyGroups(Slab<ReplyGroup>);

impl ReplyGroups {
    pub fn begin(&mut self, client: ClientId, first_seq: TaskSeq, n_parts: usize) -> u32 {
        self.0.insert(ReplyGroup {
            client,
            first_seq,
            results: vec![None; n_parts],
            n_missing: n_parts as u64,
            inline_bytes: 0,
        }) as u32
    }
    /// The client is gone: nobody will ask for what was collected.
    pub fn drop_client(&mut self, client: ClientId) {
        self.0.retain(|_, reply_group| reply_group.client != client);
    }

    /// Sends a result to its client, or holds it until the results it is coalesced with have
    /// arrived.
    pub fn deliver(
        &mut self,
        client: ClientId,
        reply_group: Option<u32>,
        record: ResultRecord,
        out: &mut Vec<Output>,
    ) {
        let Some(id) = reply_group else {
            out.push(Output::Result { client, record });
            return;
        };
        let found = &mut self.0[id as usize];
        let part = (record.seq.0 - found.first_seq.0) as usize;
        found.inline_bytes += record.payload.bytes.len();
        let before = found.results[part].replace(record);
        debug_assert!(before.is_none(), "a task is resolved once");
        found.n_missing -= 1;
        if found.n_missing > 0 {
            return;
        }
        let complete = self.0.remove(id as usize);
        let results = complete.results.into_iter().flatten();
        if complete.inline_bytes > MAX_COALESCED_BYTES {
            out.extend(results.map(|record| Output::Result { client, record }));
        } else {
            let record = CoalescedRecord::pack(results.collect());
            out.push(Output::Coalesced { client, record });
        }
    }

    /// Verifies the number of missing results against the number of a group's unfinished tasks.
    pub fn check(&self, n_unfinished: impl Fn(u32, ClientId) -> u64) -> Result<(), Violation> {
        for (id, reply_group) in &self.0 {
            let n = n_unfinished(id as u32, reply_group.client);
            ensure(n == reply_group.n_missing && n > 0, || {
                format!(
                    "the request {:?} lacks {} results of {n} tasks",
                    reply_group.first_seq, reply_group.n_missing
                )
            })?;
        }
        Ok(())
    }
}
