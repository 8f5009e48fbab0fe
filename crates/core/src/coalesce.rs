//! Requests whose results reach their client together.

use broadleaf_proto::CoalescedRecord;
use broadleaf_proto::ids::{ClientId, TaskSeq};
use broadleaf_proto::limits::MAX_COALESCED_BYTES;
use broadleaf_proto::task::ResultRecord;
use slab::Slab;

use crate::{Controller, Output};

/// The results so far of one request.
#[derive(Clone, Debug)]
pub(crate) struct Gathering {
    pub client: ClientId,
    pub first_seq: TaskSeq,
    /// By part.
    results: Vec<Option<ResultRecord>>,
    pub n_missing: u64,
    inline_bytes: usize,
}

/// Every coalescing request that is not complete.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gatherings(Slab<Gathering>);

impl Gatherings {
    pub fn begin(&mut self, client: ClientId, first_seq: TaskSeq, n_parts: usize) -> u32 {
        self.0.insert(Gathering {
            client,
            first_seq,
            results: vec![None; n_parts],
            n_missing: n_parts as u64,
            inline_bytes: 0,
        }) as u32
    }
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Gathering)> {
        self.0.iter().map(|(id, gathering)| (id as u32, gathering))
    }
    /// Its client is gone: nobody will ask for what was gathered.
    pub fn drop_client(&mut self, client: ClientId) {
        self.0.retain(|_, gathering| gathering.client != client);
    }
}

impl Controller {
    /// Hands a result to its client, or keeps it until those it is coalesced with are there.
    pub(crate) fn deliver(
        &mut self,
        client: ClientId,
        gathering: Option<u32>,
        record: ResultRecord,
        out: &mut Vec<Output>,
    ) {
        let Some(id) = gathering else {
            out.push(Output::Result { client, record });
            return;
        };
        let found = &mut self.gatherings.0[id as usize];
        let part = (record.seq.0 - found.first_seq.0) as usize;
        found.inline_bytes += record.payload.bytes.len();
        let before = found.results[part].replace(record);
        debug_assert!(before.is_none(), "a task is resolved once");
        found.n_missing -= 1;
        if found.n_missing > 0 {
            return;
        }
        let complete = self.gatherings.0.remove(id as usize);
        let results = complete.results.into_iter().flatten();
        if complete.inline_bytes > MAX_COALESCED_BYTES {
            out.extend(results.map(|record| Output::Result { client, record }));
        } else {
            let record = CoalescedRecord::pack(results.collect());
            out.push(Output::Coalesced { client, record });
        }
    }
}
