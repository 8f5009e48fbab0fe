//! One link against another in one process.
use std::os::fd::AsFd;

use broadleaf_net::{Link, LinkError};
use broadleaf_proto::FrameKind;

#[test]
fn records_of_one_kind_share_a_frame_and_one_call_each_way() {
    let (mut a, mut b) = Link::pair().unwrap();
    for n in 0..100u64 {
        a.append(FrameKind::Submit, |out| {
            out.extend_from_slice(&n.to_le_bytes())
        });
    }
    assert!(a.flush().unwrap());
    assert_eq!(b.fill().unwrap(), 808);
    let frame = b.next_frame().unwrap().unwrap();
    assert_eq!((frame.kind, frame.body.len()), (FrameKind::Submit, 800));
    assert!(b.next_frame().unwrap().is_none());
    assert_eq!((a.counters().writes, b.counters().reads), (1, 1));
    drop(a);
    assert!(matches!(b.fill(), Err(LinkError::Closed)));
}

#[test]
fn descriptors_travel_with_their_frame() {
    let (mut a, mut b) = Link::pair().unwrap();
    let file = tempfile::tempfile().unwrap();
    a.append(FrameKind::Submit, |out| out.push(1));
    a.send(FrameKind::Hello, b"hi", &[file.as_fd()]).unwrap();
    assert!(a.flush().unwrap());
    while !b.is_drained() {
        b.fill().unwrap();
    }
    assert!(b.next_frame().unwrap().unwrap().fds.is_empty());
    assert_eq!(b.next_frame().unwrap().unwrap().fds.len(), 1);
}
