//! Every control message. What decodes must survive encoding and decoding.

use broadleaf_proto::control::{
    ControlReply, ControlRequest, DeathCertificate, DefineOptions, Event, ForkServerCommand,
    ForkServerEvent, Hello, Refusal, RefusalReason, SegmentAnnounce, SegmentRelease, Welcome,
    decode, encode,
};
use broadleaf_proto::engine::{EngineCommand, EngineEvent};
use broadleaf_proto::host::{EngineOrder, EngineReport};
use broadleaf_proto::mover::{MoverCommand, MoverEvent};
use broadleaf_proto::relay::{PayloadCommand, RelayCommand, RelayEvent};

macro_rules! check {
    ($data:expr, $($message:ty),*) => {$(
        if let Ok(message) = decode::<$message>($data) {
            let again = decode::<$message>(&encode(&message)).expect("what was encoded decodes");
            assert_eq!(again, message);
        }
    )*};
}

/// Tries one input.
pub fn run(data: &[u8]) {
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
        ForkServerCommand,
        ForkServerEvent,
        EngineCommand,
        EngineEvent,
        MoverCommand,
        MoverEvent,
        EngineOrder,
        EngineReport,
        RelayCommand,
        RelayEvent,
        PayloadCommand
    );
}
