//! Announces segments that the peer has not seen, before a record names them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use broadleaf_proto::limits::MAX_FRAME_FDS;
use broadleaf_proto::{FrameKind, SegmentId, control};
use pyo3::prelude::*;

use crate::client::session::Session;
use crate::payload::Encoded;

/// A frame that announces segments.
pub struct Announcement {
    pub ids: Vec<SegmentId>,
    pub body: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

impl Announcement {
    /// The descriptors to send.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.fds.iter().map(AsFd::as_fd).collect()
    }
}

/// Announces an encoded payload's new segments.
///
/// # Errors
/// When the connection is gone.
pub fn announce(py: Python<'_>, session: &Session, encoded: &mut Encoded) -> PyResult<()> {
    for announcement in split_announce(encoded) {
        session
            .shared
            .queue(
                FrameKind::SegmentAnnounce,
                &announcement.body,
                &announcement.fds(),
            )
            .map_err(|error| session.send_failed(py, &error))?;
        session.shared.data.on_announced(&announcement.ids);
    }
    Ok(())
}

/// Frames that announce an encoded payload's new segments, each within the limit of descriptors.
pub fn split_announce(encoded: &mut Encoded) -> Vec<Announcement> {
    let mut frames = Vec::new();
    let mut rest = std::mem::take(&mut encoded.announce).into_iter().peekable();
    while rest.peek().is_some() {
        let mut segments = Vec::new();
        let mut fds = Vec::new();
        for (id, len, fd) in rest.by_ref().take(usize::from(MAX_FRAME_FDS)) {
            segments.push((id, len));
            fds.push(fd);
        }
        frames.push(Announcement {
            ids: segments.iter().map(|(id, _)| *id).collect(),
            body: control::encode(&control::SegmentAnnounce { segments }),
            fds,
        });
    }
    frames
}
