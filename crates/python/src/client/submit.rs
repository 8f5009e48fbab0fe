//! `_native.Submitter`: the submission path of one view, with everything that does not change fixed.

#![expect(
    clippy::needless_pass_by_value,
    reason = "Python's arguments arrive as values"
)]

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use broadleaf_proto::control::{ControlRequest, TaskName};
use broadleaf_proto::layout::{Delivery, PLAIN};
use broadleaf_proto::task::SegmentRef;
use broadleaf_proto::{ClientId, FrameKind, FunctionId, OptionsId, TaskSeq, control};
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple, PyType};

use super::history::History;
use super::link::Link;
use super::pending::Pending;
use super::request::Request;
use super::shared::{SubmittedParts, wall_ns};
use crate::errors::{link_closed, link_error};
use crate::payload::{Encoded, lock};
use crate::plain;

/// Submits for one view: options, targets and result type fixed once, so a call is cheap.
#[pyclass(frozen, module = "broadleaf._native")]
pub struct Submitter {
    link: Py<Link>,
    result_type: Py<PyType>,
    origin: Py<PyAny>,
    options: OptionsId,
    /// 0 for balanced tasks, else the number of targets.
    n_targets: usize,
    /// The options' results come together.
    coalesce: bool,
    /// What its engines may do with the buffers they get.
    delivery: Delivery,
    /// The client's and the view's.
    histories: Vec<Py<History>>,
    scratch: Mutex<Vec<u8>>,
}

/// Who waits for the result: decides whether the background thread must watch for it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiter {
    Caller,
    Anyone,
}

fn put_head(
    out: &mut Vec<u8>,
    seq: u64,
    function: FunctionId,
    options: OptionsId,
    after: &[u64],
    follow: &[u64],
) {
    let mut head = [0; 20];
    head[..8].copy_from_slice(&seq.to_le_bytes());
    head[8..12].copy_from_slice(&function.0.to_le_bytes());
    head[12..16].copy_from_slice(&options.0.to_le_bytes());
    head[16..18].copy_from_slice(&(after.len() as u16).to_le_bytes());
    head[18..].copy_from_slice(&(follow.len() as u16).to_le_bytes());
    out.extend_from_slice(&head);
    for seq in after.iter().chain(follow) {
        out.extend_from_slice(&seq.to_le_bytes());
    }
}

fn put_payload(out: &mut Vec<u8>, bytes: &[u8], segments: &[SegmentRef]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(&(segments.len() as u16).to_le_bytes());
    for s in segments {
        out.extend_from_slice(&s.segment.0.to_le_bytes());
        out.extend_from_slice(&s.offset_bytes.to_le_bytes());
        out.extend_from_slice(&s.len_bytes.to_le_bytes());
    }
    out.extend_from_slice(bytes);
}

fn parts_of<'a>(encoded: Option<&'a Encoded>, plain: &'a [u8]) -> (&'a [u8], &'a [SegmentRef]) {
    encoded.map_or((plain, &[]), |e| (&e.bytes, &e.segments))
}

fn weight_bytes(bytes: &[u8], segments: &[SegmentRef]) -> u64 {
    bytes.len() as u64 + segments.iter().map(|s| s.len_bytes).sum::<u64>()
}

impl Submitter {
    /// Encodes a call into `scratch` if it is plain and has no buffers, else returns the payload.
    fn encode_call(
        link: &Link,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
        delivery: Delivery,
        scratch: &mut Vec<u8>,
    ) -> PyResult<Option<Encoded>> {
        scratch.clear();
        let kwargs = kwargs.filter(|kwargs| !kwargs.is_empty());
        if args.is_empty() && kwargs.is_none() {
            return Ok(None);
        }
        scratch.push(PLAIN);
        let mut apart = plain::Apart::default();
        let is_plain = plain::encode_call(args, kwargs, scratch, &mut apart);
        if is_plain && apart.buffers.is_empty() {
            return Ok(None);
        }
        let py = args.py();
        let data = &link.shared.data;
        let mut encoded = if is_plain {
            data.encode_compound(scratch, &apart.buffers, delivery)?
        } else {
            let (pickle, buffers) = Self::pickle(link, args, kwargs, delivery)?;
            data.encode_compound(pickle.as_bytes(), &buffers, delivery)?
        };
        if !encoded.announce.is_empty() {
            announce(py, link, &mut encoded)?;
        }
        Ok(Some(encoded))
    }

    /// A call's arguments as a pickle and its buffers.
    fn pickle<'py>(
        link: &Link,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
        delivery: Delivery,
    ) -> PyResult<(Bound<'py, PyBytes>, Vec<Bound<'py, PyAny>>)> {
        let py = args.py();
        let kwargs = kwargs.map_or_else(|| PyDict::new(py), Clone::clone);
        let dumped = link.hooks.bind(py).call_method1(
            intern!(py, "dump_args"),
            (args, kwargs, delivery == Delivery::Shared),
        )?;
        dumped.extract()
    }

    fn pending<'py>(
        &self,
        py: Python<'py>,
        request: Arc<Request>,
        function: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, Pending>> {
        for history in &self.histories {
            history.get().record(request.base, request.len);
        }
        let pending = self.result_type.bind(py).call0()?.cast_into::<Pending>()?;
        Pending::fill(&pending, request, &self.link, &self.origin, function);
        Ok(pending)
    }

    /// Sees to it that what was submitted goes out soon, and that somebody reads the replies.
    fn after_submit(
        py: Python<'_>,
        link: &Link,
        at_once: bool,
        pending_bytes: usize,
        waiter: Waiter,
    ) -> PyResult<()> {
        let shared = &link.shared;
        if at_once || pending_bytes >= shared.tuning.flush_bytes {
            link.flush_fully(py)?;
            if at_once && waiter == Waiter::Anyone && shared.parked.load(Ordering::Acquire) {
                shared.wake_background();
            }
        } else if waiter == Waiter::Anyone && !shared.armed.swap(true, Ordering::AcqRel) {
            shared.wake_background();
        }
        Ok(())
    }

    /// As `admit`; where that fails, what the call refers to is given up.
    fn admit_or_give_back(
        py: Python<'_>,
        link: &Link,
        n: u64,
        weight_bytes: u64,
        encoded: &mut Option<Encoded>,
    ) -> PyResult<bool> {
        let admitted = Self::admit(py, link, n, weight_bytes);
        if admitted.is_err()
            && let Some(encoded) = encoded
        {
            link.shared.data.give_back(encoded);
        }
        admitted
    }

    /// Waits until `n` more tasks of `weight_bytes` in all fit the bounds: a submitter that does not read is slowed
    /// down. Returns whether an engine may be idle, so that they should leave at once.
    fn admit(py: Python<'_>, link: &Link, n: u64, weight_bytes: u64) -> PyResult<bool> {
        let shared = &link.shared;
        if shared.is_closed() {
            return Err(link_closed(py));
        }
        let before = shared.outstanding.fetch_add(n, Ordering::AcqRel);
        let bytes_before = shared
            .outstanding_bytes
            .fetch_add(weight_bytes, Ordering::AcqRel);
        shared.counters.submitted.fetch_add(n, Ordering::Relaxed);
        let over = |tasks: u64, bytes: u64| {
            (tasks + n > shared.tuning.max_tasks && tasks > 0)
                || (bytes + weight_bytes > shared.tuning.max_bytes && bytes > 0)
        };
        if !over(before, bytes_before) {
            return Ok(before < shared.n_engines.load(Ordering::Relaxed));
        }
        shared.outstanding.fetch_sub(n, Ordering::AcqRel);
        shared
            .outstanding_bytes
            .fetch_sub(weight_bytes, Ordering::AcqRel);
        shared.counters.throttled.fetch_add(1, Ordering::Relaxed);
        let fits = || {
            !over(
                shared.outstanding.load(Ordering::Acquire),
                shared.outstanding_bytes.load(Ordering::Acquire),
            )
        };
        let admitted = link.wait_until(py, None, &fits);
        let before = shared.outstanding.fetch_add(n, Ordering::AcqRel);
        shared
            .outstanding_bytes
            .fetch_add(weight_bytes, Ordering::AcqRel);
        if let Err(error) = admitted {
            shared.outstanding.fetch_sub(n, Ordering::AcqRel);
            shared
                .outstanding_bytes
                .fetch_sub(weight_bytes, Ordering::AcqRel);
            return Err(error);
        }
        Ok(before < shared.n_engines.load(Ordering::Relaxed))
    }

    fn submit<'py>(
        &self,
        py: Python<'py>,
        function: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
        deps: (&[u64], &[u64]),
        waiter: Waiter,
    ) -> PyResult<Bound<'py, Pending>> {
        let link = self.link.get();
        let id = link.function_id(py, function)?;
        let mut scratch = std::mem::take(&mut *lock(&self.scratch));
        let mut encoded = Self::encode_call(link, args, kwargs, self.delivery, &mut scratch)?;
        let (bytes, segments) = parts_of(encoded.as_ref(), &scratch);
        let weight = weight_bytes(bytes, segments);
        let n = self.n_targets.max(1);
        // The arguments exist once, however many engines share them.
        let share = weight.div_ceil(n as u64);
        let at_once = Self::admit_or_give_back(py, link, n as u64, share * n as u64, &mut encoded)?;
        let (bytes, segments) = parts_of(encoded.as_ref(), &scratch);
        let (request, pending_bytes) = {
            let mut submission = lock(&link.shared.submission);
            let seq = link.shared.next_seq.fetch_add(n as u64, Ordering::Relaxed);
            let request = if self.coalesce {
                Request::coalescing(seq, n, wall_ns())
            } else {
                Request::new(seq, n, wall_ns())
            };
            let request = Arc::new(request);
            put_head(&mut submission.bytes, seq, id, self.options, deps.0, deps.1);
            put_payload(&mut submission.bytes, bytes, segments);
            submission.parts.push(SubmittedParts {
                seq,
                len: n,
                weight_bytes: share,
                request: Arc::clone(&request),
            });
            (request, submission.bytes.len())
        };
        *lock(&self.scratch) = scratch;
        let pending = self.pending(py, request, function)?;
        Self::after_submit(py, link, at_once, pending_bytes, waiter)?;
        Ok(pending)
    }

    fn submit_parts<'py>(
        &self,
        py: Python<'py>,
        function: &Bound<'py, PyAny>,
        calls: &Bound<'py, PyAny>,
        deps: (&[u64], &[u64]),
        options_of: impl Fn(usize) -> OptionsId,
    ) -> PyResult<Bound<'py, Pending>> {
        let link = self.link.get();
        let id = link.function_id(py, function)?;
        let calls = calls.try_iter()?.collect::<PyResult<Vec<_>>>()?;
        let n = calls.len();
        if n == 0 {
            return Err(PyValueError::new_err("a request needs one call at least"));
        }
        let base = link.shared.next_seq.fetch_add(n as u64, Ordering::Relaxed);
        let request = Arc::new(Request::new(base, n, wall_ns()));
        let pending = self.pending(py, Arc::clone(&request), function)?;
        let mut scratch = Vec::new();
        for (index, call) in calls.iter().enumerate() {
            let args = call.cast::<PyTuple>()?;
            let mut encoded = Self::encode_call(link, args, None, self.delivery, &mut scratch)?;
            let (bytes, segments) = parts_of(encoded.as_ref(), &scratch);
            let weight = weight_bytes(bytes, segments);
            let at_once = Self::admit_or_give_back(py, link, 1, weight, &mut encoded)?;
            let (bytes, segments) = parts_of(encoded.as_ref(), &scratch);
            let pending_bytes = {
                let mut submission = lock(&link.shared.submission);
                let seq = base + index as u64;
                put_head(
                    &mut submission.bytes,
                    seq,
                    id,
                    options_of(index),
                    deps.0,
                    deps.1,
                );
                put_payload(&mut submission.bytes, bytes, segments);
                submission.parts.push(SubmittedParts {
                    seq,
                    len: 1,
                    weight_bytes: weight,
                    request: Arc::clone(&request),
                });
                submission.bytes.len()
            };
            Self::after_submit(py, link, at_once, pending_bytes, Waiter::Anyone)?;
        }
        Ok(pending)
    }
}

fn announce(py: Python<'_>, link: &Link, encoded: &mut Encoded) -> PyResult<()> {
    for (body, fds) in split_announce(encoded) {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        link.shared
            .queue(FrameKind::SegmentAnnounce, &body, &fds)
            .map_err(|error| link_error(py, &error))?;
    }
    Ok(())
}

/// Frames that announce an encoded payload's new segments, each within the limit of descriptors.
pub fn split_announce(encoded: &mut Encoded) -> Vec<(Vec<u8>, Vec<std::os::fd::OwnedFd>)> {
    let mut frames = Vec::new();
    let mut rest = std::mem::take(&mut encoded.announce).into_iter().peekable();
    while rest.peek().is_some() {
        let mut segments = Vec::new();
        let mut fds = Vec::new();
        for (id, len, fd) in rest
            .by_ref()
            .take(usize::from(broadleaf_proto::limits::MAX_FRAME_FDS))
        {
            segments.push((id, len));
            fds.push(fd);
        }
        frames.push((control::encode(&control::SegmentAnnounce { segments }), fds));
    }
    frames
}

#[pymethods]
impl Submitter {
    /// A view keeps its submitter, which keeps the view: the collector must see it.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.link)?;
        visit.call(&self.result_type)?;
        visit.call(&self.origin)
    }

    #[new]
    #[pyo3(signature = (link, result_type, origin, options_id, n_targets, coalesce = false, delivery = "private", histories = Vec::new()))]
    #[expect(clippy::too_many_arguments, reason = "they are Python's")]
    fn new(
        link: Py<Link>,
        result_type: Py<PyType>,
        origin: Py<PyAny>,
        options_id: u32,
        n_targets: usize,
        coalesce: bool,
        delivery: &str,
        histories: Vec<Py<History>>,
    ) -> PyResult<Self> {
        let delivery = match delivery {
            "private" => Delivery::Private,
            "readonly" => Delivery::Readonly,
            "shared" => Delivery::Shared,
            other => {
                return Err(PyValueError::new_err(format!(
                    "mode '{other}' is none of 'private', 'readonly' and 'shared'"
                )));
            }
        };
        Ok(Self {
            link,
            result_type,
            origin,
            options: OptionsId(options_id),
            n_targets,
            coalesce,
            delivery,
            histories,
            scratch: Mutex::default(),
        })
    }

    /// With `caller_waits` no other thread is woken to read the result.
    #[pyo3(signature = (function, args, kwargs, after = Vec::new(), follow = Vec::new(), caller_waits = false))]
    #[expect(clippy::too_many_arguments, reason = "they are Python's")]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        function: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
        after: Vec<u64>,
        follow: Vec<u64>,
        caller_waits: bool,
    ) -> PyResult<Bound<'py, Pending>> {
        let waiter = if caller_waits {
            Waiter::Caller
        } else {
            Waiter::Anyone
        };
        self.submit(py, function, args, kwargs, (&after, &follow), waiter)
    }

    #[pyo3(signature = (function, calls, after = Vec::new(), follow = Vec::new()))]
    fn many<'py>(
        &self,
        py: Python<'py>,
        function: &Bound<'py, PyAny>,
        calls: &Bound<'py, PyAny>,
        after: Vec<u64>,
        follow: Vec<u64>,
    ) -> PyResult<Bound<'py, Pending>> {
        self.submit_parts(py, function, calls, (&after, &follow), |_| self.options)
    }

    /// The results of tasks of any client, or of those run again, as one request.
    fn adopt<'py>(
        &self,
        py: Python<'py>,
        function: &Bound<'py, PyAny>,
        tasks: Vec<(u32, u64)>,
        run_again: bool,
    ) -> PyResult<Bound<'py, Pending>> {
        let link = self.link.get();
        let tasks: Vec<TaskName> = tasks
            .into_iter()
            .map(|(client, seq)| (ClientId(client), TaskSeq(seq)))
            .collect();
        let n = tasks.len();
        Self::admit(py, link, n as u64, 0)?;
        let make = |first| {
            if run_again {
                ControlRequest::Resubmit { first, tasks }
            } else {
                ControlRequest::Adopt { first, tasks }
            }
        };
        let request = link
            .shared
            .start_adoption(n, make)
            .map_err(|error| link_error(py, &error))?;
        let pending = self.pending(py, request, function)?;
        Self::after_submit(py, link, true, 0, Waiter::Anyone)?;
        Ok(pending)
    }

    /// The i-th call goes out with the i-th options: one request whose parts have targets of their own.
    fn each<'py>(
        &self,
        py: Python<'py>,
        function: &Bound<'py, PyAny>,
        calls: &Bound<'py, PyAny>,
        options_ids: Vec<u32>,
    ) -> PyResult<Bound<'py, Pending>> {
        if calls.len()? != options_ids.len() {
            return Err(PyValueError::new_err("each call needs options of its own"));
        }
        self.submit_parts(py, function, calls, (&[], &[]), |index| {
            OptionsId(options_ids[index])
        })
    }
}
