//! `_native.Submitter`: the submission path of one view, with everything constant computed once.

#![expect(
    clippy::needless_pass_by_value,
    reason = "Python's arguments arrive as values"
)]

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use broadleaf_client::{
    Call as Addition, Dependencies, Head, Load, Parts, Sending, Submitted, Waiter,
    dependency_weight,
};
use broadleaf_proto::control::{ControlRequest, TaskName};
use broadleaf_proto::layout::Delivery;
use broadleaf_proto::{ClientId, OptionsId, TaskSeq};
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};

use crate::client::link::Link;
use crate::client::outgoing::call::{MAX_SCRATCH_BYTES, encode_call, place_function};
use crate::client::outgoing::dependencies::check_dependencies;
use crate::client::outgoing::upload::upload;
use crate::client::requests::history::History;
use crate::client::requests::pending::Pending;
use crate::client::requests::request::Request;
use crate::client::session::Session;
use crate::client::shared::Claims;
use crate::clock::{follow_steps, wall_ns};
use crate::engine::checked_depth;
use crate::payload::{Claim, Counted, Encoded, Way, lock};

/// Submits for one view, with options, targets and result type fixed once, so a call is cheap.
#[pyclass(frozen, module = "broadleaf._native")]
pub struct Submitter {
    link: Py<Link>,
    result_type: Py<PyType>,
    origin: Py<PyAny>,
    options: OptionsId,
    /// 0 for load-balanced tasks, and otherwise the number of targets.
    n_targets: usize,
    /// The results arrive together.
    coalesce: bool,
    /// What its tasks write is shown by this process.
    show_output: bool,
    /// How the buffers of its calls are delivered.
    way: Way,
    /// The client's and the view's.
    histories: Vec<Py<History>>,
    scratch: Mutex<Vec<u8>>,
}

/// A call of a request, and the options that it is sent with.
struct Call<'a, 'py> {
    args: Bound<'py, PyTuple>,
    kwargs: Option<&'a Bound<'py, PyDict>>,
    options: OptionsId,
}

/// What an iterable of argument tuples yields, one by one: a tuple that is gone before the next is made costs neither
/// memory nor the garbage collector's time.
fn positional<'py>(
    calls: &Bound<'py, PyAny>,
) -> PyResult<impl Iterator<Item = PyResult<Bound<'py, PyTuple>>> + use<'py>> {
    let calls = calls.try_iter()?;
    Ok(calls.map(|args| Ok(args?.cast_into::<PyTuple>()?)))
}

impl<'py> Call<'_, 'py> {
    fn positional(args: Bound<'py, PyTuple>, options: OptionsId) -> Self {
        Self {
            args,
            kwargs: None,
            options,
        }
    }
}

/// What comes back for the calls of a request.
#[derive(Clone, Copy)]
struct Replies {
    /// Parts of each call: one per target.
    n_per_call: usize,
    /// The results arrive together.
    coalesce: bool,
}

impl Replies {
    /// Each call has one, of its own.
    const SINGLE: Self = Self {
        n_per_call: 1,
        coalesce: false,
    };
}

/// A request whose calls are being submitted.
struct Submitting<'a, 'py> {
    n_calls: usize,
    depth: u16,
    replies: Replies,
    dependencies: Dependencies<'a>,
    waiter: Waiter,
    scratch: Vec<u8>,
    /// Its result, once the first call is submitted.
    pending: Option<Bound<'py, Pending>>,
    /// Parts of the calls that are submitted.
    n_submitted: u64,
}

impl Submitter {
    fn pending<'py>(
        &self,
        py: Python<'py>,
        session: &Arc<Session>,
        request: Arc<Request>,
        function: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, Pending>> {
        for history in &self.histories {
            history.get().record(request.base, request.len);
        }
        let pending = self.result_type.bind(py).call0()?.cast_into::<Pending>()?;
        Pending::fill(
            &pending,
            request,
            &self.link,
            session,
            &self.origin,
            function,
        );
        Ok(pending)
    }

    /// Sends what was submitted, and makes sure that somebody reads the replies.
    fn send_now(py: Python<'_>, session: &Session, unwatched: bool) -> PyResult<()> {
        session.flush_fully(py)?;
        if unwatched && session.shared.parked.load(Ordering::Acquire) {
            session.shared.wake_background();
        }
        Ok(())
    }

    /// Waits until a call fits the limits, claims what it shares with others, and sends what its payload uploads. If that
    /// fails, the call's references are released. Returns whether an engine may be idle, so that the call should be sent
    /// at once, and the claims.
    fn admit_call(
        py: Python<'_>,
        session: &Session,
        (n, weight_bytes): (u64, u64),
        mut encoded: Option<&mut Encoded>,
        captured: &[Arc<Counted>],
    ) -> PyResult<(bool, Claims)> {
        if encoded.is_none() && captured.is_empty() {
            return Ok((Self::admit(py, session, n, weight_bytes, &[])?, None));
        }
        let mut counted = captured.to_vec();
        if let Some(encoded) = encoded.as_deref_mut() {
            counted.extend(encoded.counted.drain(..));
        }
        let sent = Self::admit(py, session, n, weight_bytes, &counted).and_then(|at_once| {
            let claims = (!counted.is_empty())
                .then(|| Arc::new(counted.iter().map(Claim::new).collect::<Vec<_>>()));
            if let Some(encoded) = encoded.as_deref_mut() {
                upload(py, session, encoded).inspect_err(|_| {
                    session.shared.take_back(n, weight_bytes);
                })?;
            }
            Ok((at_once, claims))
        });
        if sent.is_err()
            && let Some(encoded) = encoded
        {
            session.shared.data.give_back(encoded);
        }
        sent
    }

    /// Waits until `n` more tasks fit the limits: a submitter that does not read is slowed down. They have `weight_bytes`
    /// of their own in total, and name what is `counted` once. Returns whether an engine may be idle, so that the tasks
    /// should be sent at once.
    fn admit(
        py: Python<'_>,
        session: &Session,
        n: u64,
        weight_bytes: u64,
        counted: &[Arc<Counted>],
    ) -> PyResult<bool> {
        let shared = &session.shared;
        if shared.is_closed() {
            return Err(session.gone(py));
        }
        let before = shared.outstanding.fetch_add(n, Ordering::AcqRel);
        let bytes_before = shared
            .outstanding_bytes
            .fetch_add(weight_bytes, Ordering::AcqRel);
        // Only holders of the interpreter lock write it, so this is a plain store, which costs a tenth of an exchange.
        let submitted = &shared.counters.submitted;
        submitted.store(submitted.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        let fits_beside = |load: Load| {
            let addition = Addition {
                tasks: n,
                own_bytes: weight_bytes,
                named_bytes: counted.iter().map(|c| c.len_bytes()).sum(),
                charged_bytes: counted.iter().map(|c| c.charged_bytes()).sum(),
            };
            shared.tuning.limits.admit(load, addition)
        };
        let load = Load {
            tasks: before,
            bytes: bytes_before,
        };
        if fits_beside(load) {
            return Ok(before < shared.n_engines.load(Ordering::Relaxed));
        }
        shared.take_back(n, weight_bytes);
        shared.counters.throttled.fetch_add(1, Ordering::Relaxed);
        let fits = || fits_beside(shared.load());
        // Results that are dropped make room, too.
        session.wait_for_anything(py, None, &fits)?;
        let before = shared.outstanding.fetch_add(n, Ordering::AcqRel);
        shared
            .outstanding_bytes
            .fetch_add(weight_bytes, Ordering::AcqRel);
        Ok(before < shared.n_engines.load(Ordering::Relaxed))
    }

    /// Submits calls as one request, one record for each call.
    ///
    /// Its numbers are drawn and it is recorded when the first call is admitted, so a call that cannot be encoded
    /// leaves nothing behind. If a later one cannot be, or a signal handler raises while this waits, the tasks that were
    /// submitted before are aborted: nobody would have their result.
    fn submit<'a, 'py: 'a>(
        &self,
        py: Python<'py>,
        function: &Bound<'py, PyAny>,
        (n_calls, calls): (usize, impl Iterator<Item = PyResult<Call<'a, 'py>>>),
        replies: Replies,
        dependencies: Dependencies<'_>,
        waiter: Waiter,
    ) -> PyResult<Bound<'py, Pending>> {
        let session = &self.link.get().session(py)?;
        check_dependencies(dependencies)?;
        if session.shared.outstanding.load(Ordering::Relaxed) == 0 {
            follow_steps();
        }
        let mut submitting = Submitting {
            n_calls,
            depth: checked_depth()?,
            replies,
            dependencies,
            waiter,
            scratch: std::mem::take(&mut *lock(&self.scratch)),
            pending: None,
            n_submitted: 0,
        };
        let submitted = self.submit_calls(py, session, function, calls, &mut submitting);
        let scratch = &mut submitting.scratch;
        if scratch.capacity() <= MAX_SCRATCH_BYTES {
            *lock(&self.scratch) = std::mem::take(scratch);
        }
        if let (Err(_), Some(pending)) = (&submitted, &submitting.pending) {
            let first = pending.get().request()?.base;
            let seqs: Vec<u64> = (first..first + submitting.n_submitted).collect();
            let client = self.origin.bind(py).getattr(intern!(py, "client"))?;
            // Without a connection there is nothing to abort.
            let _ = client.call_method1(intern!(py, "cancel_tasks"), (seqs,));
        }
        submitted?;
        let pending = submitting.pending;
        pending.ok_or_else(|| PyValueError::new_err("a request needs at least one call"))
    }

    fn submit_calls<'a, 'py: 'a>(
        &self,
        py: Python<'py>,
        session: &Arc<Session>,
        function: &Bound<'py, PyAny>,
        mut calls: impl Iterator<Item = PyResult<Call<'a, 'py>>>,
        submitting: &mut Submitting<'_, 'py>,
    ) -> PyResult<()> {
        let (replies, dependencies) = (submitting.replies, submitting.dependencies);
        let n = replies.n_per_call;
        let (id, mut captured) = place_function(py, session, function, submitting.n_calls > 1)?;
        let counted = captured
            .as_mut()
            .map(|captured| std::mem::take(&mut captured.encoded().counted))
            .unwrap_or_default();
        for made in 0..submitting.n_calls {
            let call = calls.next().unwrap_or_else(|| {
                Err(PyValueError::new_err(format!(
                    "the input became shorter while it was being submitted: it gave {made} of {} calls; pass a copy of it",
                    submitting.n_calls
                )))
            });
            let Call {
                args,
                kwargs,
                options,
            } = call?;
            let mut encoded = encode_call(
                session,
                self.way,
                function,
                (&args, kwargs),
                captured.as_deref(),
                dependencies,
                &mut submitting.scratch,
            )?;
            let scratch = &submitting.scratch;
            let weight = encoded
                .as_deref()
                .map_or(scratch.len() as u64, Encoded::own_weight_bytes);
            // The arguments exist once, however many engines share them.
            let share = weight.div_ceil(n as u64) + dependency_weight(dependencies);
            let weights = (n as u64, share * n as u64);
            let (at_once, claims) =
                Self::admit_call(py, session, weights, encoded.as_deref_mut(), &counted)?;
            let bytes = encoded.as_deref();
            let payload = bytes.map_or((&scratch[..], &[][..]), |e| (&e.bytes, &e.segments));
            let (request, sending) = {
                let mut batch = lock(&session.shared.batch);
                // Later, nobody would end what is added.
                if session.shared.is_closed() {
                    drop(batch);
                    session.shared.take_back(weights.0, weights.1);
                    if let Some(encoded) = encoded.as_deref_mut() {
                        session.shared.data.give_back(encoded);
                    }
                    return Err(session.gone(py));
                }
                let request = match &submitting.pending {
                    None => self.new_request(session, submitting.n_calls * n, replies.coalesce),
                    Some(pending) => Arc::clone(pending.get().request()?),
                };
                let head = Head {
                    seq: request.base + submitting.n_submitted,
                    function: id,
                    options,
                    depth: submitting.depth,
                    dependencies,
                };
                let parts = Submitted {
                    seq: head.seq,
                    len: n,
                    coalescing: replies.coalesce,
                    weight_bytes: share,
                    claims,
                    request: Arc::clone(&request),
                };
                let sending = batch.push(&head, payload, parts, at_once, submitting.waiter);
                (request, sending)
            };
            if sending == Sending::Soon {
                session.shared.wake_background();
            }
            submitting.n_submitted += n as u64;
            if submitting.pending.is_none() {
                submitting.pending = Some(self.pending(py, session, request, function)?);
            }
            if let Sending::Now { unwatched } = sending {
                Self::send_now(py, session, unwatched)?;
            }
        }
        Ok(())
    }

    /// A request with the next `len` numbers.
    fn new_request(&self, session: &Session, len: usize, coalesce: bool) -> Arc<Request> {
        let base = session
            .shared
            .lasting
            .next_seq
            .fetch_add(len as u64, Ordering::Relaxed);
        let parts = if coalesce {
            Parts::coalescing(len)
        } else {
            Parts::new(len)
        };
        Arc::new(Request::new(base, wall_ns(), self.show_output, parts))
    }
}

#[pymethods]
impl Submitter {
    /// A view and its submitter refer to each other, so the collector must see it.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.link)?;
        visit.call(&self.result_type)?;
        visit.call(&self.origin)
    }

    #[new]
    #[pyo3(signature = (link, result_type, origin, options_id, n_targets, coalesce = false, delivery = "private", histories = Vec::new(), show_output = false))]
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
        show_output: bool,
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
            show_output,
            way: Way {
                delivery,
                // A call with one target is often one of many with the same argument.
                again: n_targets == 0,
            },
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
        let call = Call {
            args: args.clone(),
            kwargs,
            options: self.options,
        };
        let replies = Replies {
            n_per_call: self.n_targets.max(1),
            coalesce: self.coalesce,
        };
        let calls = (1, std::iter::once(Ok(call)));
        self.submit(py, function, calls, replies, (&after, &follow), waiter)
    }

    #[pyo3(signature = (function, calls, n_calls, after = Vec::new(), follow = Vec::new()))]
    fn many<'py>(
        &self,
        py: Python<'py>,
        function: &Bound<'py, PyAny>,
        calls: &Bound<'py, PyAny>,
        n_calls: usize,
        after: Vec<u64>,
        follow: Vec<u64>,
    ) -> PyResult<Bound<'py, Pending>> {
        let calls = positional(calls)?.map(|args| Ok(Call::positional(args?, self.options)));
        let dependencies: Dependencies<'_> = (&after, &follow);
        self.submit(
            py,
            function,
            (n_calls, calls),
            Replies::SINGLE,
            dependencies,
            Waiter::Anyone,
        )
    }

    /// The results of any client's tasks, or of running them again, as one request.
    fn subscribe<'py>(
        &self,
        py: Python<'py>,
        function: &Bound<'py, PyAny>,
        tasks: Vec<(u32, u64)>,
        run_again: bool,
    ) -> PyResult<Bound<'py, Pending>> {
        let session = &self.link.get().session(py)?;
        let tasks: Vec<TaskName> = tasks
            .into_iter()
            .map(|(client, seq)| (ClientId(client), TaskSeq(seq)))
            .collect();
        let (n, depth) = (tasks.len(), checked_depth()?);
        let max_tasks = session.shared.tuning.limits.max_tasks;
        if n as u64 > max_tasks {
            return Err(PyValueError::new_err(format!(
                "{n} results are requested at once, and the limit is {max_tasks}: request fewer at a time"
            )));
        }
        Self::admit(py, session, n as u64, 0, &[])?;
        let make = |first| {
            if run_again {
                ControlRequest::Resubmit {
                    first,
                    tasks,
                    depth,
                }
            } else {
                ControlRequest::Subscribe { first, tasks }
            }
        };
        let request = session
            .shared
            .start_adoption(n, make)
            .map_err(|error| session.send_failed(py, &error))?;
        let pending = self.pending(py, session, request, function)?;
        Self::send_now(py, session, true)?;
        Ok(pending)
    }

    /// The i-th call is sent with the i-th options: one request whose parts have their own targets.
    fn each<'py>(
        &self,
        py: Python<'py>,
        function: &Bound<'py, PyAny>,
        calls: &Bound<'py, PyAny>,
        options_ids: Vec<u32>,
    ) -> PyResult<Bound<'py, Pending>> {
        let n_calls = options_ids.len();
        let calls = positional(calls)?.zip(options_ids);
        let calls = calls.map(|(args, options)| Ok(Call::positional(args?, OptionsId(options))));
        let dependencies: Dependencies<'_> = (&[], &[]);
        self.submit(
            py,
            function,
            (n_calls, calls),
            Replies::SINGLE,
            dependencies,
            Waiter::Anyone,
        )
    }
}
