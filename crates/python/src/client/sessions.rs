//! The connections of a client, one after the other: when its controller has died and may be started again, a thread
//! dials until another one accepts the client, and calls that need a controller wait for that.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use broadleaf_client::{Sequel, Succession};
use broadleaf_net::LinkError;
use broadleaf_node::redial::{Attempt, Redial};
use broadleaf_proto::control::{Hello, RefusalKind};
use broadleaf_proto::{FrameKind, OptionsId};
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use rustc_hash::FxHashMap;

use super::incoming::tell::tell;
use super::session::{Accepted, Notes, Session};
use super::shared::{Incoming, Lasting, Notice, json};
use super::waiting::{deadline_after, looks_of_this_thread};
use crate::errors::{forked, link_closed};
use crate::forks::Owner;
use crate::node::connect::{ConnectError, Connection};
use crate::payload::lock;

/// How long an attempt waits for an answer, at least.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// What each of a client's controllers and connections is told.
#[derive(Default)]
pub struct Agreed {
    /// Sets of task options that the client has defined, by their text.
    pub options_ids: FxHashMap<String, OptionsId>,
    /// The frames that define them, in the order of their numbers.
    pub options: Vec<Vec<u8>>,
    /// How many callers want buffers kept that are sent again.
    n_keepers: usize,
}

/// What changes when a controller dies and another one takes its place.
struct State {
    succession: Succession,
    /// How many sessions have taken the place of another one.
    n_used: u64,
    /// A session that is being prepared, and the only thread that may use it.
    prepared: Option<(ThreadId, Arc<Session>)>,
}

impl State {
    /// The session that this thread prepares.
    fn prepared_here(&self) -> Option<&Arc<Session>> {
        let (thread, session) = self.prepared.as_ref()?;
        (*thread == std::thread::current().id()).then_some(session)
    }
}

/// See the module.
pub struct Sessions {
    owner: Owner,
    connection: Connection,
    hello: Hello,
    hooks: Arc<Py<PyAny>>,
    lasting: Arc<Lasting>,
    pub(super) notes: Arc<Notes>,
    /// Written only by holders of the interpreter lock.
    current: RwLock<Option<Arc<Session>>>,
    state: Mutex<State>,
    changed: Condvar,
    close_started: AtomicBool,
    /// Locked while another session takes the place of the current one.
    pub(super) agreed: Mutex<Agreed>,
    /// The threads that have dialled and tell Python of it, and those of earlier sessions.
    dialers: Mutex<Vec<JoinHandle<()>>>,
}

/// Whether a controller may have died if a connection to it ended with this.
fn may_have_died(error: &LinkError) -> bool {
    match error {
        LinkError::Io(_) => true,
        // It does not know the link, because another controller does.
        LinkError::Refused(refusal) => refusal.kind == RefusalKind::Session,
        error => error.is_closed(),
    }
}

fn news(kind: &'static str, body: String) -> Incoming {
    Incoming {
        notices: vec![Notice { kind, body }],
        ..Incoming::default()
    }
}

impl Sessions {
    /// Connects. With `goes_on`, the client goes on when its controller was started again.
    ///
    /// # Errors
    /// The exception for Python if no connection was made.
    pub fn connect(
        py: Python<'_>,
        connection: Connection,
        hello: Hello,
        hooks: Py<PyAny>,
        timeout_s: f64,
        goes_on: bool,
    ) -> PyResult<Arc<Self>> {
        let limit = deadline_after(timeout_s)?.saturating_duration_since(Instant::now());
        let accepted = py
            .detach(|| Accepted::dial(&connection, &hello, limit, limit))
            .map_err(|error| error.into_py(py))?;
        let may_go_on = goes_on && accepted.keeps_journal();
        let connect_time = accepted.connect_time();
        let this = Arc::new(Self {
            owner: Owner::this(),
            connection,
            hello,
            hooks: Arc::new(hooks),
            lasting: Arc::default(),
            notes: Arc::default(),
            current: RwLock::default(),
            state: Mutex::new(State {
                succession: Succession::new(may_go_on),
                n_used: 0,
                prepared: None,
            }),
            changed: Condvar::new(),
            close_started: AtomicBool::new(false),
            agreed: Mutex::default(),
            dialers: Mutex::default(),
        });
        let session = this.begin(py, accepted, 0, connect_time)?;
        let mut current = (this.current.write()).unwrap_or_else(PoisonError::into_inner);
        // Its controller may have been started again by now.
        current.get_or_insert(session);
        drop(current);
        Ok(this)
    }

    fn begin(
        self: &Arc<Self>,
        py: Python<'_>,
        accepted: Accepted,
        number: u32,
        connect_time: Duration,
    ) -> PyResult<Arc<Session>> {
        let weak = Arc::downgrade(self);
        let session = Session::begin(
            py,
            accepted,
            (&self.connection, &self.hello),
            &self.hooks,
            (&self.lasting, &self.notes),
            move |error, as_announced| {
                let this = weak.upgrade();
                this.is_some_and(|this| this.on_lost(number, error, as_announced, connect_time))
            },
        )?;
        Ok(Arc::new(session))
    }

    fn put(&self, session: Arc<Session>) -> Option<Arc<Session>> {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        current.replace(session)
    }

    /// The connection to use, or the last one if there is none at the moment.
    pub fn now(&self) -> Arc<Session> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        let session = (current.clone()).expect("invariant: connecting puts the first one");
        drop(current);
        if !session.shared.is_closed() || self.owner.is_elsewhere() {
            return session;
        }
        let state = lock(&self.state);
        let prepared = state.prepared_here().cloned();
        prepared.unwrap_or(session)
    }

    /// The connection to use. Waits while the client awaits another controller; runs Python's signal handlers.
    ///
    /// # Errors
    /// The client is closed, or the time is over.
    pub fn live(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<Arc<Session>> {
        let session = self.now();
        if !session.shared.is_closed() {
            return Ok(session);
        }
        self.await_next(py, timeout_s)
    }

    #[cold]
    fn await_next(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<Arc<Session>> {
        if self.owner.is_elsewhere() {
            return Err(forked(py));
        }
        let deadline = timeout_s.map(deadline_after).transpose()?;
        let looks = looks_of_this_thread();
        loop {
            let n_used = {
                let state = lock(&self.state);
                if state.succession.is_over() || state.prepared_here().is_some() {
                    return Err(link_closed(py));
                }
                state.n_used
            };
            let session = self.now();
            if !session.shared.is_closed() {
                return Ok(session);
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let left_ns = left.map(|left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
            let Some(longest_ns) = looks.longest_sleep_ns(left_ns) else {
                return Err(PyTimeoutError::new_err(
                    "the controller has ended, and was not started again in time",
                ));
            };
            py.detach(|| self.sleep(n_used, longest_ns.map(Duration::from_nanos)));
            py.check_signals()?;
        }
    }

    /// Sleeps until another session is used than the `n_used`th, or the client is closed.
    fn sleep(&self, n_used: u64, longest: Option<Duration>) {
        let state = lock(&self.state);
        let is_same = |state: &mut State| state.n_used == n_used && !state.succession.is_over();
        match longest {
            None => drop(self.changed.wait_while(state, is_same)),
            Some(longest) => drop(self.changed.wait_timeout_while(state, longest, is_same)),
        }
    }

    /// What the client keeps.
    pub fn lasting(&self) -> &Lasting {
        &self.lasting
    }

    /// What the client calls in Python.
    pub fn hooks(&self) -> &Arc<Py<PyAny>> {
        &self.hooks
    }

    /// Whether this is a child of the process that made it.
    pub fn is_elsewhere(&self) -> bool {
        self.owner.is_elsewhere()
    }

    /// Whether the client is closed. In children of the process that made it, it always is.
    pub fn is_closed(&self) -> bool {
        self.owner.is_elsewhere() || lock(&self.state).succession.is_over()
    }

    /// Large buffers that are sent again are kept from now on, until the same number of calls with `false`.
    pub fn keep_sent_again(&self, keep: bool) {
        let mut agreed = lock(&self.agreed);
        let session = self.now();
        if keep {
            agreed.n_keepers += 1;
            session.shared.data.start_keeping();
        } else {
            agreed.n_keepers = agreed.n_keepers.saturating_sub(1);
            session.shared.data.stop_keeping();
        }
    }

    /// Whether this is the first call, in the process that made it.
    pub fn begins_to_close(&self) -> bool {
        !self.owner.is_elsewhere() && !self.close_started.swap(true, Ordering::AcqRel)
    }

    /// Closes the client.
    pub fn close(&self, incoming: &mut Incoming) -> Option<JoinHandle<()>> {
        lock(&self.state).succession.close();
        self.changed.notify_all();
        self.now().close(incoming)
    }

    /// The threads that tell Python that a connection is there again.
    pub fn take_redials(&self) -> Vec<JoinHandle<()>> {
        let mut threads = std::mem::take(&mut *lock(&self.dialers));
        threads.append(&mut self.now().take_redials());
        threads
    }

    /// In a child of the process that made it: its threads do not belong to this process, and are neither joined nor
    /// detached.
    pub fn forget_threads(self: &Arc<Self>) {
        self.now().forget_threads();
        match self.dialers.try_lock() {
            Ok(mut dialers) => std::mem::forget(std::mem::take(&mut *dialers)),
            Err(_) => std::mem::forget(Arc::clone(self)),
        }
    }

    /// A session has ended with this error, `as_announced` or not. Returns whether another one will take its place.
    fn on_lost(
        self: &Arc<Self>,
        number: u32,
        error: &LinkError,
        as_announced: bool,
        connect_time: Duration,
    ) -> bool {
        let has_died = !as_announced && may_have_died(error);
        let sequel = lock(&self.state).succession.on_lost(number, has_died);
        match sequel {
            Sequel::Over => {
                self.changed.notify_all();
                false
            }
            Sequel::Dials => true,
            Sequel::Dial => {
                let this = Arc::clone(self);
                let thread = std::thread::Builder::new().name("broadleaf-redial".to_owned());
                let started = thread.spawn(move || this.dial(connect_time));
                let Ok(thread) = started else {
                    self.give_up(); // Nobody dials.
                    return false;
                };
                self.keep_thread(thread);
                true
            }
        }
    }

    fn keep_thread(&self, thread: JoinHandle<()>) {
        let dialers = &mut *lock(&self.dialers);
        dialers.retain(|thread| !thread.is_finished());
        dialers.push(thread);
    }

    /// No controller has accepted the client in time.
    fn give_up(&self) {
        lock(&self.state).succession.close();
        self.lasting.engines_version.fetch_add(1, Ordering::Release);
        self.changed.notify_all();
    }

    fn pause(&self, longest: Duration) {
        let state = lock(&self.state);
        let is_open = |state: &mut State| !state.succession.is_over();
        drop(self.changed.wait_timeout_while(state, longest, is_open));
    }

    /// Dials until another controller has accepted the client, or the time is over.
    fn dial(self: &Arc<Self>, connect_time: Duration) {
        let limit = Duration::from_secs_f64(self.connection.options.rejoin_timeout_s);
        let connect_ns = u64::try_from(connect_time.as_nanos()).unwrap_or(u64::MAX);
        let mut begun = Instant::now();
        let mut redial = Redial::new(connect_ns, u64::MAX);
        redial.begin(0);
        let mut last = None;
        while begun.elapsed() <= limit {
            let now_ns = || u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
            if let Some(at) = redial.next_tick() {
                self.pause(Duration::from_nanos(at.saturating_sub(now_ns())));
            }
            if self.is_closed() {
                return;
            }
            if !redial.on_tick(now_ns()) {
                continue;
            }
            let connecting = Duration::from_nanos(redial.connect_ns());
            let answering = ANSWER_TIME.max(connecting * 4);
            match Accepted::dial(&self.connection, &self.hello, connecting, answering) {
                Ok(accepted) => {
                    if self.go_on(accepted, connect_time) {
                        return;
                    }
                    // It has died as well.
                    begun = Instant::now();
                    redial = Redial::new(connect_ns, u64::MAX);
                    redial.begin(0);
                }
                Err(error @ ConnectError::Refused(_)) => {
                    last = Some(error);
                    break;
                }
                Err(error) => {
                    let attempt = if error.is_nobody_there() {
                        Attempt::NobodyListens
                    } else {
                        Attempt::Failed
                    };
                    last = Some(error);
                    redial.on_attempt(now_ns(), attempt);
                }
            }
        }
        if self.is_closed() {
            return;
        }
        // Before the calls that wait have ended, since their errors depend on it. Without an interpreter to tell, the
        // event is useless.
        let _ = Python::try_attach(|py| {
            let why = match last {
                Some(ConnectError::Refused(refusal)) => refusal.message,
                Some(error) => error.into_py(py).value(py).to_string(),
                None => LinkError::Closed.to_string(),
            };
            tell(py, &self.hooks, news("link_lost", json(&why)));
        });
        self.give_up();
    }

    /// Goes on with a controller that has accepted the client. Returns false if it has died meanwhile.
    fn go_on(self: &Arc<Self>, accepted: Accepted, connect_time: Duration) -> bool {
        let Some(number) = lock(&self.state).succession.on_accepted() else {
            return true; // The client is closed.
        };
        let may_go_on = accepted.keeps_journal();
        let went_on = Python::try_attach(|py| {
            let Ok(session) = self.begin(py, accepted, number, connect_time) else {
                let succession = &mut lock(&self.state).succession;
                succession.on_lost(number, true);
                return succession.on_ready(may_go_on);
            };
            lock(&self.state).prepared = Some((std::thread::current().id(), Arc::clone(&session)));
            tell(py, &self.hooks, news("successor", "null".to_owned()));
            let Some(former) = self.replace_by(&session, may_go_on) else {
                drop(session.close(&mut Incoming::default()));
                return self.is_closed();
            };
            // Their values remain.
            let functions = std::mem::take(&mut *lock(&former.functions));
            drop(functions);
            let thread = former.close(&mut Incoming::default());
            for thread in thread.into_iter().chain(former.take_redials()) {
                self.keep_thread(thread);
            }
            tell(py, &self.hooks, news("link_resumed", "null".to_owned()));
            true
        });
        // Without an interpreter nobody needs a connection.
        went_on.unwrap_or(true)
    }

    /// Uses a session from now on; returns the one before. `None` if its controller has died, or the client was closed.
    fn replace_by(&self, session: &Arc<Session>, may_go_on: bool) -> Option<Arc<Session>> {
        let agreed = lock(&self.agreed);
        for frame in &agreed.options {
            // An error is met by whoever uses the connection first.
            let _ = session.shared.queue(FrameKind::Options, frame, &[]);
        }
        for _ in 0..agreed.n_keepers {
            session.shared.data.start_keeping();
        }
        let mut state = lock(&self.state);
        state.prepared = None;
        if !state.succession.on_ready(may_go_on) {
            return None;
        }
        state.n_used += 1;
        let former = self.put(Arc::clone(session));
        drop(state);
        drop(agreed);
        self.lasting.engines_version.fetch_add(1, Ordering::Release);
        self.changed.notify_all();
        former
    }
}
