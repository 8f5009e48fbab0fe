//! Every hot record. What decodes must encode to the bytes it was read from.

use broadleaf_proto::error_head::ErrorHead;
use broadleaf_proto::limits::CHUNK_BYTES;
use broadleaf_proto::relay::{AssignMany, RelayedDone};
use broadleaf_proto::task::{
    AssignRecord, DoneRecord, FunctionRecord, OutputRecord, ResultRecord, SubmitRecord,
};
use broadleaf_proto::wire::Reader;
use broadleaf_proto::{Block, Chunk, CoalescedRecord, RefusedRun, UploadChunk};
use bytes::Bytes;

macro_rules! check {
    ($data:expr, $record:ty) => {{
        let mut reader = Reader::new(Bytes::copy_from_slice($data));
        let mut encoded = Vec::new();
        while let Ok(record) = <$record>::decode(&mut reader) {
            record.encode(&mut encoded);
            assert_eq!(encoded, $data[..encoded.len()]);
        }
    }};
}

/// Tries one input.
pub fn run(data: &[u8]) {
    let Some((which, data)) = data.split_first() else {
        return;
    };
    match which % 14 {
        0 => check!(data, SubmitRecord),
        1 => check!(data, AssignRecord),
        2 => check!(data, DoneRecord),
        3 => check!(data, ResultRecord),
        4 => check!(data, OutputRecord),
        5 => check!(data, FunctionRecord),
        6 => check!(data, AssignMany),
        7 => check!(data, RelayedDone),
        8 => check!(data, CoalescedRecord),
        9 => {
            // Its reason may be written in more than one way.
            let mut reader = Reader::new(Bytes::copy_from_slice(data));
            while let Ok(run) = RefusedRun::decode(&mut reader) {
                let mut encoded = Vec::new();
                run.encode(&mut encoded);
                let again = RefusedRun::decode(&mut Reader::new(encoded.into()));
                assert_eq!(again, Ok(run));
            }
        }
        10 => {
            if let Some(header) = data.first_chunk()
                && header[0] == Block::MARK
                && let Ok(block) = Block::decode_header(header, CHUNK_BYTES.1 as usize)
            {
                assert_eq!(block.encode_header(), *header);
            }
        }
        11 => {
            if let Ok(chunk) = Chunk::decode(Bytes::copy_from_slice(data)) {
                assert_eq!(chunk.bytes.len() + Chunk::HEAD_BYTES, data.len());
            }
        }
        12 => {
            if let Ok(chunk) = UploadChunk::decode(Bytes::copy_from_slice(data)) {
                let head = UploadChunk::head(chunk.upload, chunk.len_bytes);
                assert_eq!([&head, &chunk.bytes[..]].concat(), data);
            }
        }
        _ => {
            let mut encoded = Vec::new();
            for head in ErrorHead::all(&Bytes::copy_from_slice(data)) {
                head.encode(&mut encoded);
            }
            assert_eq!(encoded, data[..encoded.len()]);
        }
    }
}
