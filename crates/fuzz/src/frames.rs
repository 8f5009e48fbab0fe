//! Frame headers and the inbox that cuts frames: the bytes arrive in pieces whose sizes the input
//! chooses.

use broadleaf_net::Inbox;
use broadleaf_proto::FrameHeader;
use broadleaf_proto::frame::HEADER_BYTES;

const LIMIT_BYTES: u32 = 4096;

/// Tries one input.
pub fn run(data: &[u8]) {
    let header = data.first_chunk::<HEADER_BYTES>();
    let decoded = header.map(|header| (header, FrameHeader::decode(*header, LIMIT_BYTES)));
    if let Some((header, Ok(decoded))) = decoded {
        assert!(decoded.body_bytes <= LIMIT_BYTES);
        assert_eq!(decoded.encode(), *header);
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
}
