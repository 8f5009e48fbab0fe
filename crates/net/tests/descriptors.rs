//! Descriptors: they arrive with their frame, or they are closed.
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod wires;

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use broadleaf_net::{Link, LinkError};
use broadleaf_proto::limits::MAX_FRAME_FDS;
use broadleaf_proto::{FrameHeader, FrameKind};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use wires::{Wire, connect, take, until, until_error};

/// A pipe whose reader sees its end once every copy of the writer is closed.
fn pipe() -> (std::fs::File, OwnedFd) {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    (reader.into(), writer)
}

fn assert_closed_everywhere(mut reader: std::fs::File) {
    rustix::io::ioctl_fionbio(&reader, true).unwrap();
    assert_eq!(
        reader.read(&mut [0]).unwrap(),
        0,
        "a copy of the descriptor is still open"
    );
}

fn header(body_bytes: u32, fd_count: u16) -> [u8; 8] {
    FrameHeader {
        body_bytes,
        kind: FrameKind::SegmentAnnounce,
        fd_count,
    }
    .encode()
}

/// Sends bytes and descriptors as a peer might that follows no rule.
fn send_raw(stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    let flags = SendFlags::empty();
    rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut control, flags).unwrap();
}

fn raw_peer(max_fds: u16) -> (UnixStream, Link) {
    let (raw, other) = UnixStream::pair().unwrap();
    let mut link = Link::unix(other).unwrap();
    link.set_max_fds(max_fds);
    (raw, link)
}

#[test]
fn they_travel_with_their_frame_and_work() {
    let (mut a, mut b) = connect(Wire::Unix);
    let (mut reader, writer) = pipe();
    a.append(FrameKind::Submit, |out| out.push(1));
    a.send(FrameKind::SegmentAnnounce, b"one", &[writer.as_fd()])
        .unwrap();
    a.send(
        FrameKind::SegmentAnnounce,
        b"many",
        &[writer.as_fd(); MAX_FRAME_FDS as usize],
    )
    .unwrap();
    a.append(FrameKind::Submit, |out| out.push(2));
    drop(writer);
    assert!(a.flush().unwrap());
    let mut frames = Vec::new();
    until(|| {
        take(&mut b, &mut frames).unwrap();
        (frames.len() == 4).then_some(())
    });
    let counts: Vec<_> = frames.iter().map(|f| f.fds.len()).collect();
    assert_eq!(counts, [0, 1, 64, 0]);
    let received: OwnedFd = frames[1].fds.pop().unwrap();
    drop(frames);
    std::fs::File::from(received).write_all(b"through").unwrap();
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "through");
}

#[test]
fn a_first_frame_brings_them_in_one_call_each_way() {
    let (mut a, mut b) = connect(Wire::Unix);
    let (_reader, writer) = pipe();
    a.send(FrameKind::SegmentAnnounce, b"", &[writer.as_fd()])
        .unwrap();
    a.append(FrameKind::Submit, |out| out.push(1));
    assert!(a.flush().unwrap());
    assert!(b.fill().unwrap() > 0);
    assert_eq!((a.counters().writes, b.counters().reads), (1, 1));
    assert_eq!(b.next_frame().unwrap().unwrap().fds.len(), 1);
    assert_eq!(b.next_frame().unwrap().unwrap().body.len(), 1);
}

#[test]
fn they_wait_for_the_rest_of_their_frame() {
    let (raw, mut link) = raw_peer(2);
    let (reader, writer) = pipe();
    let bytes = [&header(3, 2)[..], b"abc"].concat();
    send_raw(&raw, &bytes[..1], &[writer.as_fd(), writer.as_fd()]);
    drop(writer);
    let mut frames = Vec::new();
    for byte in &bytes[1..] {
        take(&mut link, &mut frames).unwrap();
        assert!(frames.is_empty());
        send_raw(&raw, &[*byte], &[]);
    }
    take(&mut link, &mut frames).unwrap();
    assert_eq!(frames[0].fds.len(), 2);
    drop(frames);
    assert_closed_everywhere(reader);
}

#[test]
fn more_than_allowed_are_refused_and_closed() {
    for (allowed, sent) in [(1, 2), (1, 64), (64, 65), (64, 200), (0, 1)] {
        let (raw, mut link) = raw_peer(allowed);
        let (reader, writer) = pipe();
        let fds = vec![writer.as_fd(); sent];
        send_raw(&raw, &header(0, allowed), &fds);
        drop(fds);
        drop(writer);
        let error = until_error(&mut link);
        assert!(
            matches!(error, LinkError::TooManyFds { .. }),
            "{sent}: {error}"
        );
        assert_closed_everywhere(reader);
    }
}

#[test]
fn hoarding_them_for_frames_that_claim_none_is_refused() {
    let (raw, mut link) = raw_peer(1);
    let (reader, writer) = pipe();
    for _ in 0..2 {
        send_raw(&raw, &header(0, 0), &[writer.as_fd()]);
    }
    drop(writer);
    let error = until_error(&mut link);
    assert!(
        matches!(error, LinkError::TooManyFds { count: 2, limit: 1 }),
        "{error}"
    );
    assert_closed_everywhere(reader);
}

#[test]
fn claimed_but_not_sent_is_refused() {
    let (raw, mut link) = raw_peer(2);
    let (_reader, writer) = pipe();
    send_raw(&raw, &header(0, 2), &[writer.as_fd()]);
    let error = until_error(&mut link);
    assert!(
        matches!(
            error,
            LinkError::MissingFds {
                claimed: 2,
                received: 1
            }
        ),
        "{error}"
    );
    let (raw, mut link) = raw_peer(1);
    send_raw(&raw, &header(0, 2), &[]);
    let error = until_error(&mut link);
    assert!(
        matches!(error, LinkError::TooManyFds { count: 2, limit: 1 }),
        "{error}"
    );
}

#[test]
fn what_nobody_took_is_closed_with_the_link() {
    let (mut a, mut b) = connect(Wire::Unix);
    let (reader, writer) = pipe();
    a.send(FrameKind::SegmentAnnounce, b"arrives", &[writer.as_fd()])
        .unwrap();
    assert!(a.flush().unwrap());
    b.fill().unwrap();
    a.send(FrameKind::SegmentAnnounce, b"stays", &[writer.as_fd()])
        .unwrap();
    drop((a, b, writer));
    assert_closed_everywhere(reader);
}

#[test]
fn they_need_a_unix_socket_and_a_limit() {
    let (_reader, writer) = pipe();
    for wire in [Wire::Tcp, Wire::Tls] {
        let (mut a, _b) = connect(wire);
        let error = a
            .send(FrameKind::SegmentAnnounce, b"", &[writer.as_fd()])
            .unwrap_err();
        assert!(matches!(error, LinkError::FdsNeedUnixSocket));
        assert_eq!(a.queued_bytes(), 0);
    }
    let (mut a, _b) = connect(Wire::Unix);
    let error = a
        .send(FrameKind::SegmentAnnounce, b"", &[writer.as_fd(); 65])
        .unwrap_err();
    assert!(matches!(
        error,
        LinkError::TooManyFds {
            count: 65,
            limit: 64
        }
    ));
    assert_eq!(a.queued_bytes(), 0);
}

#[test]
fn the_peer_is_known_on_a_unix_socket_only() {
    let (a, _b) = connect(Wire::Unix);
    let peer = a.peer_credentials().unwrap();
    assert_eq!(peer.pid.map(i32::cast_unsigned), Some(std::process::id()));
    assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
    assert!(a.is_local());
    let (a, _b) = connect(Wire::Tcp);
    assert!(a.peer_credentials().is_none() && !a.is_local());
}
