//! A call on its way out: its function resolved, its arguments encoded.

use broadleaf_client::Dependencies;
use broadleaf_proto::FunctionId;
use broadleaf_proto::layout::{Delivery, PLAIN};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyDictMethods, PyTuple};

use crate::client::outgoing::announce::announce;
use crate::client::outgoing::dependencies::check_together;
use crate::client::session::Session;
use crate::errors::PayloadTooLarge;
use crate::payload::plain;
use crate::payload::{Captured, Encoded, Way};

/// Memory for encoding that is kept for the next call; more is given back.
pub(super) const MAX_SCRATCH_BYTES: usize = 1024 * 1024;

/// Resolves a call's function and puts its captured values into segments.
pub(in crate::client) fn place_function<'py, 'l>(
    py: Python<'py>,
    session: &'l Session,
    function: &Bound<'py, PyAny>,
    many: bool,
) -> PyResult<(FunctionId, Option<Box<Captured<'l>>>)> {
    let (id, buffers) = session.resolve_function(py, function, many)?;
    if buffers.is_empty() {
        return Ok((id, None));
    }
    let mut captured = session.shared.data.capture(&buffers, many)?;
    announce(py, session, captured.encoded())?;
    Ok((id, Some(Box::new(captured))))
}

/// Encodes a call into `scratch` if it is plain and has no buffers, else returns the payload.
pub(in crate::client) fn encode_call(
    session: &Session,
    way: Way,
    function: &Bound<'_, PyAny>,
    call: (&Bound<'_, PyTuple>, Option<&Bound<'_, PyDict>>),
    captured: Option<&Captured<'_>>,
    dependencies: Dependencies<'_>,
    scratch: &mut Vec<u8>,
) -> PyResult<Option<Box<Encoded>>> {
    scratch.clear();
    let (args, kwargs) = (call.0, call.1.filter(|kwargs| !kwargs.is_empty()));
    let has_arguments = !args.is_empty() || kwargs.is_some();
    if !has_arguments && captured.is_none() {
        return Ok(None);
    }
    let mut out_of_band = plain::OutOfBand::default();
    if has_arguments {
        scratch.push(PLAIN);
    }
    // In a window, text would be something that all can write to.
    let is_plain = !has_arguments
        || (plain::encode_call(args, kwargs, scratch, &mut out_of_band)
            && (way.delivery != Delivery::Shared || !out_of_band.has_text()));
    let py = args.py();
    let data = &session.shared.data;
    let has_buffers = !out_of_band.buffers.is_empty() || data.is_apart(scratch.len());
    if is_plain && !has_buffers && captured.is_none() {
        return Ok(None);
    }
    let encoded = if is_plain {
        let way = if out_of_band.is_text() {
            Way {
                delivery: Delivery::Readonly,
                ..way
            }
        } else {
            way
        };
        data.encode_compound(scratch, &out_of_band.buffers, way, captured)
    } else {
        // What was encoded in vain.
        scratch.clear();
        scratch.shrink_to(MAX_SCRATCH_BYTES);
        pickle(session, args, kwargs, way.delivery).and_then(|(pickle, buffers)| {
            data.encode_compound(pickle.as_bytes(), &buffers, way, captured)
        })
    };
    let mut encoded = encoded.map_err(|error| {
        if error.is_instance_of::<PayloadTooLarge>(py) {
            session.explain_too_large(&error, function, args, kwargs)
        } else {
            error
        }
    })?;
    if let Err(error) = check_together(dependencies, &encoded.bytes) {
        data.give_back(&mut encoded);
        return Err(error);
    }
    if !encoded.announce.is_empty() {
        announce(py, session, &mut encoded)?;
    }
    Ok(Some(Box::new(encoded)))
}

/// A call's arguments as a pickle and its buffers.
fn pickle<'py>(
    session: &Session,
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
    delivery: Delivery,
) -> PyResult<(Bound<'py, PyBytes>, Vec<Bound<'py, PyAny>>)> {
    let py = args.py();
    let named = kwargs.into_iter().flat_map(PyDictMethods::iter);
    let values = args.iter().chain(named.map(|(_, value)| value));
    session.shared.data.check_size(values)?;
    let kwargs = kwargs.map_or_else(|| PyDict::new(py), Clone::clone);
    let dumped = session.hooks.bind(py).call_method1(
        intern!(py, "dump_args"),
        (args, kwargs, delivery == Delivery::Shared),
    )?;
    dumped.extract()
}
