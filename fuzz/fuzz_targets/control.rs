//! Every control message. What decodes must survive encoding and decoding.
#![no_main]

use broadleaf_proto::control::{
    ControlReply, ControlRequest, DeathCertificate, DefineOptions, EngineCommand, Event, Hello,
    Refusal, RefusalReason, SegmentAnnounce, SegmentRelease, SpawnerCommand, SpawnerEvent, Welcome,
    decode, encode,
};
use broadleaf_proto::relay::{PayloadCommand, RelayCommand, RelayEvent};
use libfuzzer_sys::fuzz_target;

macro_rules! check {
    ($data:expr, $($message:ty),*) => {$(
        if let Ok(message) = decode::<$message>($data) {
            let again = decode::<$message>(&encode(&message)).expect("what was encoded decodes");
            assert_eq!(again, message);
        }
    )*};
}

fuzz_target!(|data: &[u8]| {
    check!(
        data,
        Hello,
        Welcome,
        Refusal,
        DefineOptions,
        RefusalReason,
        DeathCertificate,
        SegmentAnnounce,
        SegmentRelease,
        (u64, ControlRequest),
        (u64, ControlReply),
        Event,
        SpawnerCommand,
        SpawnerEvent,
        EngineCommand,
        RelayCommand,
        RelayEvent,
        PayloadCommand
    );
});
