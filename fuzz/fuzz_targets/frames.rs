//! Frame headers and the inbox that cuts frames: the bytes arrive in pieces whose sizes the input
//! chooses.
#![no_main]

use broadleaf_net::Inbox;
use broadleaf_proto::FrameHeader;
use broadleaf_proto::frame::HEADER_BYTES;
use libfuzzer_sys::fuzz_target;

const LIMIT_BYTES: u32 = 4096;

fuzz_target!(|data: &[u8]| {
    if let Some(header) = data.first_chunk::<HEADER_BYTES>() {
        if let Ok(decoded) = FrameHeader::decode(*header, LIMIT_BYTES) {
            assert!(decoded.body_bytes <= LIMIT_BYTES);
            assert_eq!(decoded.encode(), *header);
        }
    }
    let Some((&step, mut rest)) = data.split_first() else {
        return;
    };
    let mut inbox = Inbox::new();
    inbox.set_frame_limit(LIMIT_BYTES);
    while !rest.is_empty() {
        let (piece, later) = rest.split_at(rest.len().min(usize::from(step) + 1));
        if inbox.push(piece).is_err() {
            break;
        }
        rest = later;
        loop {
            match inbox.next_frame() {
                Ok(Some(frame)) => assert!(frame.body.len() <= LIMIT_BYTES as usize),
                Ok(None) => break,
                Err(_) => return,
            }
        }
        assert!(inbox.capacity_bytes() <= 512 * 1024);
    }
});
