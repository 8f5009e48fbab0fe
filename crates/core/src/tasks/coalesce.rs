//! Requests whose results reach their client together.

use broadleaf_proto::CoalescedRecord;
use broadleaf_proto::ids::{ClientId, TaskSeq};
use broadleaf_proto::limits::MAX_COALESCED_BYTES;
use broadleaf_proto::task::ResultRecord;
use slab::Slab;

use crate::{Controller, Output};

/// The results so far of one request.
#[derive(Clone, Debug)]
pub(crate) struct ReplyGroup {
    pub client: ClientId,
    pub first_seq: TaskSeq,
    /// By part.
    results: Vec<Option<ResultRecord>>,
    pub n_missing: u64,
    inline_bytes: usize,
}

/// Every coalescing request that is not complete.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReplyGroups(Slab<ReplyGroup>);

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
    pub fn iter(&self) -> impl Iterator<Item = (u32, &ReplyGroup)> {
        self.0
            .iter()
            .map(|(id, reply_group)| (id as u32, reply_group))
    }
    /// The client is gone: nobody will ask for what was collected.
    pub fn drop_client(&mut self, client: ClientId) {
        self.0.retain(|_, reply_group| reply_group.client != client);
    }
}

impl Controller {
    /// Sends a result to its client, or holds it until the results it is coalesced with have
    /// arrived.
    pub(crate) fn deliver(
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
        let found = &mut self.reply_groups.0[id as usize];
        let part = (record.seq.0 - found.first_seq.0) as usize;
        found.inline_bytes += record.payload.bytes.len();
        let before = found.results[part].replace(record);
        debug_assert!(before.is_none(), "a task is resolved once");
        found.n_missing -= 1;
        if found.n_missing > 0 {
            return;
        }
        let complete = self.reply_groups.0.remove(id as usize);
        let results = complete.results.into_iter().flatten();
        if complete.inline_bytes > MAX_COALESCED_BYTES {
            out.extend(results.map(|record| Output::Result { client, record }));
        } else {
            let record = CoalescedRecord::pack(results.collect());
            out.push(Output::Coalesced { client, record });
        }
    }
}
