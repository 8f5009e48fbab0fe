//! Sends a payload's large buffers, ahead of the payload, to a controller on another host.

use broadleaf_proto::{FrameKind, UploadChunk, control};
use pyo3::prelude::*;

use crate::client::link::Link;
use crate::payload::{Encoded, Upload};

/// Sends an encoded payload's uploads. Records and requests of other threads may be sent between two parts.
///
/// # Errors
/// When the connection is gone, a buffer has changed its length, or a signal handler raised: the controller is told to
/// drop what it has.
pub fn upload(py: Python<'_>, link: &Link, encoded: &mut Encoded) -> PyResult<()> {
    let uploads = std::mem::take(&mut encoded.uploads);
    for (index, upload) in uploads.iter().enumerate() {
        if let Err(error) = send(py, link, upload) {
            let released = uploads[..=index].iter().map(|upload| upload.id).collect();
            let release = control::SegmentRelease {
                released,
                retired: Vec::new(),
            };
            // Without a connection there is nothing to drop.
            let _ = link
                .shared
                .send(FrameKind::SegmentRelease, &control::encode(&release));
            return Err(error);
        }
    }
    Ok(())
}

fn send(py: Python<'_>, link: &Link, upload: &Upload) -> PyResult<()> {
    for start in (0..upload.len_bytes).step_by(UploadChunk::MAX_BYTES) {
        let queued = upload.with_part(py, start, |part| {
            let head = UploadChunk::head(upload.id, upload.len_bytes as u64);
            link.shared.queue_parts(FrameKind::Upload, &head, part)
        })?;
        queued.map_err(|error| link.send_failed(py, &error))?;
        link.flush_fully(py)?;
        py.check_signals()?;
    }
    Ok(())
}
