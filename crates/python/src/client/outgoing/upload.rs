//! Sends a payload's large buffers, ahead of the payload, to a controller on another host.

use broadleaf_proto::{FrameKind, UploadChunk, control};
use pyo3::prelude::*;

use crate::client::session::Session;
use crate::payload::{Encoded, Upload};

/// Sends an encoded payload's uploads. Records and requests of other threads may be sent between two parts.
///
/// # Errors
/// When the connection is gone, a buffer has changed its length, or a signal handler raised: the controller is told to
/// drop what it has.
pub fn upload(py: Python<'_>, session: &Session, encoded: &mut Encoded) -> PyResult<()> {
    let uploads = std::mem::take(&mut encoded.uploads);
    for (index, upload) in uploads.iter().enumerate() {
        if let Err(error) = send(py, session, upload) {
            let released = uploads[..=index].iter().map(|upload| upload.id).collect();
            let release = control::SegmentRelease {
                released,
                retired: Vec::new(),
            };
            // Without a connection there is nothing to drop.
            let _ = session
                .shared
                .send(FrameKind::SegmentRelease, &control::encode(&release));
            return Err(error);
        }
    }
    Ok(())
}

fn send(py: Python<'_>, session: &Session, upload: &Upload) -> PyResult<()> {
    for start in (0..upload.len_bytes).step_by(UploadChunk::MAX_BYTES) {
        let queued = upload.with_part(py, start, |part| {
            let head = UploadChunk::head(upload.id, upload.len_bytes as u64);
            session.shared.queue_parts(FrameKind::Upload, &head, part)
        })?;
        queued.map_err(|error| session.send_failed(py, &error))?;
        session.flush_fully(py)?;
        py.check_signals()?;
    }
    Ok(())
}
