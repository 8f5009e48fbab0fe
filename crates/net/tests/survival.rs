//! The fuzzing that the stable compiler can do: no decoder panics, over-reads or allocates memory
//! because a peer says so. `crates/fuzz` goes deeper with the same checks.
#![allow(clippy::unwrap_used)] // a test fails by panicking

use broadleaf_net::Inbox;
use broadleaf_proto::CoalescedRecord;
use broadleaf_proto::control::{
    ControlReply, ControlRequest, DeathCertificate, DefineOptions, Event, ForkServerCommand,
    ForkServerEvent, Hello, Refusal, RefusalReason, SegmentAnnounce, SegmentRelease, Welcome,
    decode, encode,
};
use broadleaf_proto::engine::EngineCommand;
use broadleaf_proto::task::{
    AssignRecord, DoneRecord, FunctionRecord, OutputRecord, ResultRecord, SubmitRecord,
};
use broadleaf_proto::wire::Reader;
use bytes::Bytes;
use proptest::prelude::*;

macro_rules! records {
    ($data:expr, $($record:ty),*) => {$(
        let mut reader = Reader::new(Bytes::copy_from_slice($data));
        let mut encoded = Vec::new();
        while let Ok(record) = <$record>::decode(&mut reader) {
            record.encode(&mut encoded);
            prop_assert_eq!(&encoded[..], &$data[..encoded.len()]);
        }
    )*};
}

macro_rules! messages {
    ($data:expr, $($message:ty),*) => {$(
        if let Ok(message) = decode::<$message>($data) {
            prop_assert_eq!(decode::<$message>(&encode(&message)).unwrap(), message);
        }
    )*};
}

/// Random bytes rarely get far; small ones often do, because lengths, kinds and tags are small.
fn hostile_bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![4 => Just(0u8), 4 => 0..24u8, 1 => any::<u8>()];
    prop::collection::vec(byte, 0..400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]
    #[test]
    fn decoders_survive_random_bytes(data in hostile_bytes(), step in 1..64usize) {
        let data = &data[..];
        records!(data, SubmitRecord, AssignRecord, DoneRecord, ResultRecord, OutputRecord,
            FunctionRecord, CoalescedRecord);
        messages!(data, Hello, Welcome, Refusal, DefineOptions, RefusalReason, DeathCertificate,
            SegmentAnnounce, SegmentRelease, (u64, ControlRequest), (u64, ControlReply), Event,
            ForkServerCommand, ForkServerEvent, EngineCommand);
        let mut inbox = Inbox::new();
        inbox.set_frame_limit(256);
        let mut taken_bytes = 0;
        'all: for piece in data.chunks(step) {
            if inbox.push(piece).is_err() {
                break;
            }
            loop {
                match inbox.next_frame() {
                    Ok(Some(frame)) => taken_bytes += 8 + frame.body.len(),
                    Ok(None) => break,
                    Err(_) => break 'all,
                }
            }
        }
        prop_assert!(taken_bytes + inbox.filled_bytes() <= data.len());
        prop_assert!(inbox.capacity_bytes() <= 16 * 1024);
    }
}

#[test]
fn a_functions_name_is_bounded() {
    let record = |name_len: u8| {
        let mut bytes = vec![0; 20];
        bytes.push(name_len);
        bytes.resize(bytes.len() + usize::from(name_len) + 4, 0);
        FunctionRecord::decode(&mut Reader::new(Bytes::from(bytes)))
    };
    assert_eq!(record(120).unwrap().name.len(), 120);
    assert!(record(121).is_err());
}
