//! Clients: which are connected, what each may submit, and what each is told.

pub mod admission;
pub(crate) mod history;
mod notices;
pub(crate) mod ranges;
mod reply_groups;
mod subscribers;
pub(crate) mod unread;
pub mod uploads;

use broadleaf_proto::control::{ControlReply, Event};
use broadleaf_proto::ids::{ClientId, EngineId, FunctionId, OptionsId, TaskSeq};
use broadleaf_proto::task::{Payload, ResultRecord, Status};
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;

use crate::Output;
use crate::check::{Violation, ensure};
use crate::clients::history::{History, Known};
use crate::clients::notices::Notices;
use crate::clients::ranges::Ranges;
use crate::clients::reply_groups::ReplyGroups;
use crate::clients::subscribers::Subscribers;

/// Number of option sets and functions that one client may define.
const MAX_DEFINITIONS: usize = 1 << 20;

/// A client's function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DefinedFunction {
    /// Its slot in the function cache.
    At(u32),
    /// It is above the cache's limit.
    OverLimit,
}

/// A client's set of task options.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DefinedOptions {
    /// Its slot.
    At(u32),
    /// There was no room for the set. Records that use the set are refused, and each stands for
    /// this many tasks; `None` for one on each existing engine.
    OverLimit(Option<usize>),
}

/// One connected client.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent facts")]
pub(crate) struct Client {
    name: String,
    congested: bool,
    /// It asked for its tasks to continue without it.
    leaves: bool,
    /// Its link is closed, and its tasks continue.
    away: bool,
    /// It starts engines if there are none, so tasks wait for them.
    awaits_engines: bool,
    outstanding_tasks: u64,
    outstanding_bytes: u64,
    /// The part of those bytes that is in segments.
    ranges: Ranges,
    history: History,
    functions: IndexMap<FunctionId, DefinedFunction, FxBuildHasher>,
    options: IndexMap<OptionsId, DefinedOptions, FxBuildHasher>,
    /// The size charged for the option sets that it defined, including replaced ones that its tasks still use.
    options_bytes: u64,
    /// Total size of its functions' bodies.
    function_bytes: u64,
}

impl Client {
    fn new(name: String, history: History) -> Self {
        Self {
            name,
            congested: false,
            leaves: false,
            away: false,
            awaits_engines: false,
            outstanding_tasks: 0,
            outstanding_bytes: 0,
            ranges: Ranges::default(),
            history,
            functions: IndexMap::default(),
            options: IndexMap::default(),
            options_bytes: 0,
            function_bytes: 0,
        }
    }

    /// The name that it gave itself.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its tasks that are not resolved.
    pub fn outstanding_tasks(&self) -> u64 {
        self.outstanding_tasks
    }

    /// What is known about one of its task numbers.
    pub fn known(&self, seq: TaskSeq) -> Known {
        self.history.get(seq)
    }

    /// Its function.
    pub fn function(&self, id: FunctionId) -> Option<DefinedFunction> {
        self.functions.get(&id).copied()
    }

    /// Its set of options.
    pub fn options(&self, id: OptionsId) -> Option<DefinedOptions> {
        match id {
            OptionsId(0) => Some(DefinedOptions::At(0)),
            id => self.options.get(&id).copied(),
        }
    }

    /// Whether this payload would exceed the client's limit on unresolved bytes. If the client has no other unresolved
    /// bytes, it is always accepted, as the arguments of one task or of all parts of a broadcast: it could never be
    /// sent otherwise. Bytes that it names are not others, even if other tasks name them too: it adds nothing to them, and
    /// the next calls with the same large value must not wait until the first have ended. A very large payload is accepted
    /// beside a small one as well, so that it need not wait for the end of a long task with a small argument. (Clients do
    /// the same, with slightly stricter thresholds: what they let through is never refused.)
    pub fn is_over_bytes(&self, max_bytes: u64, payload: &Payload, dependency_bytes: u64) -> bool {
        if dependency_bytes > max_bytes {
            return true; // Such tasks can be split up.
        }
        let added_bytes = self.ranges.weigh(payload);
        let added_bytes = added_bytes.saturating_add(payload.bytes.len() as u64);
        let added_bytes = added_bytes.saturating_add(dependency_bytes);
        if self.outstanding_bytes.saturating_add(added_bytes) <= max_bytes {
            return false;
        }
        let named_bytes = self.ranges.weigh_named(payload);
        let others_bytes = self.outstanding_bytes.saturating_sub(named_bytes);
        let are_few = others_bytes <= max_bytes / 8;
        let is_much_beside_few = are_few && added_bytes > max_bytes / 2;
        others_bytes > 0
            && others_bytes.saturating_add(added_bytes) > max_bytes
            && !is_much_beside_few
    }
}

/// What becomes of a client whose link is closed.
pub(crate) enum Farewell {
    /// Its tasks continue; if they have all ended, it can be removed.
    Continues {
        /// Whether none is left.
        is_done: bool,
    },
    /// Its tasks end: the slots of those that live.
    Ends(Vec<u32>),
}

/// What a client defined: slots to which it has references.
pub(crate) struct Definitions {
    /// In the function cache.
    pub functions: Vec<u32>,
    /// Among the option sets.
    pub options: Vec<u32>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clients {
    by_id: IndexMap<ClientId, Client, FxBuildHasher>,
    reply_groups: ReplyGroups,
    subscribers: Subscribers,
    notices: Notices,
    /// Clients that start engines.
    n_awaiting: u32,
    /// Clients that are away and whose last task has ended.
    departed: Vec<ClientId>,
}

impl Clients {
    /// A client connected.
    pub fn add(&mut self, id: ClientId, name: String, history: History) {
        self.by_id.insert(id, Client::new(name, history));
    }

    pub fn get(&self, id: ClientId) -> Option<&Client> {
        self.by_id.get(&id)
    }

    pub fn contains(&self, id: ClientId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Whether it is connected.
    pub fn is_here(&self, id: ClientId) -> bool {
        self.by_id.get(&id).is_some_and(|client| !client.away)
    }

    /// Number of connected clients.
    pub fn n_here(&self) -> usize {
        self.by_id.values().filter(|client| !client.away).count()
    }

    /// What is known about a client's task number.
    pub fn known(&self, id: ClientId, seq: TaskSeq) -> Known {
        self.get(id)
            .map_or(Known::Unknown, |client| client.known(seq))
    }

    /// Tells every client.
    pub fn announce(&self, event: &Event, out: &mut Vec<Output>) {
        let here = self.by_id.iter().filter(|(_, client)| !client.away);
        out.extend(here.map(|(client, _)| Output::Event {
            client: *client,
            event: event.clone(),
        }));
    }

    /// Whether more results than it reads wait for a client.
    pub fn is_congested(&self, id: ClientId) -> bool {
        self.get(id).is_some_and(|client| client.congested)
    }

    /// Notes that; false if there is no such client.
    pub fn set_congested(&mut self, id: ClientId, congested: bool) -> bool {
        let client = self.by_id.get_mut(&id);
        client.map(|client| client.congested = congested).is_some()
    }

    /// A client starts engines if there are none, or stops doing so. True if it was the last that did.
    pub fn await_engines(&mut self, id: ClientId, awaits: bool) -> bool {
        let client = self.by_id.get_mut(&id);
        let Some(client) = client.filter(|client| client.awaits_engines != awaits) else {
            return false;
        };
        client.awaits_engines = awaits;
        if awaits {
            self.n_awaiting += 1;
            return false;
        }
        self.n_awaiting -= 1;
        self.n_awaiting == 0
    }

    /// Whether any client starts engines if there are none.
    pub fn some_await(&self) -> bool {
        self.n_awaiting > 0
    }

    /// A client's tasks are to continue without it.
    pub fn let_leave(&mut self, id: ClientId) {
        if let Some(client) = self.by_id.get_mut(&id) {
            client.leaves = true;
        }
    }

    /// A client's link is closed: nobody reads its results. `None` if that is known, or the client is not.
    pub fn close(&mut self, id: ClientId) -> Option<Farewell> {
        let client = self.by_id.get_mut(&id).filter(|client| !client.away)?;
        let farewell = if client.leaves {
            client.away = true;
            let is_done = client.outstanding_tasks == 0;
            Farewell::Continues { is_done }
        } else {
            Farewell::Ends(client.history.live().collect())
        };
        Some(farewell)
    }

    /// A closed client waits for no results.
    pub fn drop_waits(&mut self, id: ClientId) {
        self.reply_groups.drop_client(id);
        self.subscribers.drop_client(id);
    }

    /// Forgets a client that has no tasks any more; returns what it had defined.
    pub fn remove(&mut self, id: ClientId) -> Option<Definitions> {
        let gone = self.by_id.swap_remove(&id)?;
        let functions = gone
            .functions
            .into_values()
            .filter_map(|defined| match defined {
                DefinedFunction::At(slot) => Some(slot),
                DefinedFunction::OverLimit => None,
            });
        let options = gone
            .options
            .into_values()
            .filter_map(|defined| match defined {
                DefinedOptions::At(slot) => Some(slot),
                DefinedOptions::OverLimit(_) => None,
            });
        Some(Definitions {
            functions: functions.collect(),
            options: options.collect(),
        })
    }

    /// A client that is away and whose last task has ended, if there is one that was not returned before.
    pub fn next_departed(&mut self) -> Option<ClientId> {
        self.departed.pop()
    }

    /// A client is about to define a function. `None` if it may not; false if it is over its limit, which is noted.
    pub fn reserve_function(
        &mut self,
        id: ClientId,
        function: FunctionId,
        n_bytes: u64,
        limit_bytes: u64,
    ) -> Option<bool> {
        let client = self.by_id.get_mut(&id)?;
        let is_defined = client.functions.contains_key(&function);
        if is_defined || client.functions.len() >= MAX_DEFINITIONS {
            return None;
        }
        if client.function_bytes.saturating_add(n_bytes) > limit_bytes {
            let over = DefinedFunction::OverLimit;
            client.functions.insert(function, over);
            return Some(false);
        }
        client.function_bytes += n_bytes;
        Some(true)
    }

    /// A client's function has this slot.
    pub fn define_function(&mut self, id: ClientId, function: FunctionId, slot: u32) {
        if let Some(client) = self.by_id.get_mut(&id) {
            let at = DefinedFunction::At(slot);
            client.functions.insert(function, at);
        }
    }

    /// Whether a client may define another set of options.
    pub fn may_define_options(&self, id: ClientId) -> bool {
        self.get(id)
            .is_some_and(|client| client.options.len() < MAX_DEFINITIONS)
    }

    /// Charges a client for a set of options; false, and nothing is charged, if that would be over its limit.
    pub fn charge_options(&mut self, id: ClientId, n_bytes: u64, limit_bytes: u64) -> bool {
        let Some(client) = self.by_id.get_mut(&id) else {
            return false;
        };
        let bytes = client.options_bytes.saturating_add(n_bytes);
        let fits = bytes <= limit_bytes;
        if fits {
            client.options_bytes = bytes;
        }
        fits
    }

    /// A set of options that a client was charged for is gone.
    pub fn discharge_options(&mut self, id: ClientId, n_bytes: u64) {
        if let Some(client) = self.by_id.get_mut(&id) {
            client.options_bytes -= n_bytes;
        }
    }

    /// A client's set of options; returns the slot of the one that it replaces.
    pub fn define_options(
        &mut self,
        id: ClientId,
        options: OptionsId,
        defined: DefinedOptions,
    ) -> Option<u32> {
        let client = self.by_id.get_mut(&id)?;
        match client.options.insert(options, defined) {
            Some(DefinedOptions::At(before)) => Some(before),
            Some(DefinedOptions::OverLimit(_)) | None => None,
        }
    }

    /// A task was accepted, in this slot.
    pub fn submit(
        &mut self,
        id: ClientId,
        seq: TaskSeq,
        slot: u32,
        inline_bytes: u64,
        payload: &Payload,
    ) {
        if let Some(client) = self.by_id.get_mut(&id) {
            client.outstanding_tasks += 1;
            let bytes = inline_bytes.wrapping_add(client.ranges.name(payload));
            client.outstanding_bytes = client.outstanding_bytes.wrapping_add(bytes);
            client.history.submit(seq, slot);
        }
    }

    /// A task is resolved; whether its client is away.
    pub fn resolve(
        &mut self,
        id: ClientId,
        seq: TaskSeq,
        (status, engine): (Status, EngineId),
        inline_bytes: u64,
        payload: &Payload,
    ) -> bool {
        let Some(client) = self.by_id.get_mut(&id) else {
            return false;
        };
        client.outstanding_tasks -= 1;
        let bytes = inline_bytes.wrapping_add(client.ranges.release(payload));
        client.outstanding_bytes = client.outstanding_bytes.wrapping_sub(bytes);
        client.history.resolve(seq, status, engine);
        if client.away && client.outstanding_tasks == 0 {
            self.departed.push(id);
        }
        client.away
    }

    /// Tasks with consecutive numbers were refused, and never became tasks.
    pub fn refuse(&mut self, id: ClientId, first: TaskSeq, n_tasks: u64) {
        if let Some(client) = self.by_id.get_mut(&id) {
            client.history.refuse(first, n_tasks);
        }
    }

    /// The results of a request's tasks will reach their client together.
    pub fn begin_reply_group(&mut self, id: ClientId, first: TaskSeq, n_parts: usize) -> u32 {
        self.reply_groups.begin(id, first, n_parts)
    }

    /// Sends a client a result, or holds it until those it is coalesced with have come.
    pub fn deliver(
        &mut self,
        id: ClientId,
        reply_group: Option<u32>,
        record: ResultRecord,
        out: &mut Vec<Output>,
    ) {
        self.reply_groups.deliver(id, reply_group, record, out);
    }

    /// A client waits for the result of the task in a slot. False if it waits for as many as it may.
    pub fn subscribe(&mut self, id: ClientId, slot: u32, seq: TaskSeq, max_tasks: u64) -> bool {
        let may = self.contains(id) && self.subscribers.n_of(id) < max_tasks;
        if may {
            self.subscribers.add(slot, id, seq);
        }
        may
    }

    /// The task in a slot ended: who waits for its result, and under which number.
    pub fn take_subscribers(&mut self, slot: u32) -> Vec<(ClientId, TaskSeq)> {
        self.subscribers.take(slot)
    }

    /// Keeps a text for other clients, or takes it back if it is empty.
    pub fn keep_notice(&mut self, about: String, text: String) -> ControlReply {
        self.notices.keep(about, text)
    }

    /// The text about this; empty if there is none.
    pub fn notice_about(&self, about: &str) -> String {
        self.notices.about(about)
    }

    /// References to a function that clients hold.
    pub fn n_defining(&self, function: u32) -> usize {
        let defined = self.by_id.values().flat_map(|c| c.functions.values());
        defined
            .filter(|d| **d == DefinedFunction::At(function))
            .count()
    }

    /// References to a set of options that clients hold.
    pub fn n_defining_options(&self, options: u32) -> usize {
        let defined = self.by_id.values().flat_map(|c| c.options.values());
        let is_it =
            |defined: &&DefinedOptions| matches!(defined, DefinedOptions::At(at) if *at == options);
        defined.filter(is_it).count()
    }

    /// Verifies the counts of each client, which may have `max_tasks` tasks. `tasks` gives what its unresolved tasks add up to, `options_bytes` the size of
    /// its option sets, `is_awaited` whether subscribers wait for the task in a slot, and `n_unfinished` how many tasks
    /// of a client's reply group have not ended.
    pub fn check(
        &self,
        max_tasks: u64,
        tasks: impl Fn(ClientId) -> (u64, u64),
        options_bytes: impl Fn(ClientId) -> u64,
        is_awaited: impl Fn(u32) -> bool,
        n_unfinished: impl Fn(u32, ClientId) -> u64,
    ) -> Result<(), Violation> {
        for (id, client) in &self.by_id {
            let n = client.outstanding_tasks;
            ensure(tasks(*id) == (n, client.outstanding_bytes), || {
                format!("client {} miscounts its tasks", id.0)
            })?;
            ensure(client.history.live().count() as u64 == n, || {
                format!("client {} misremembers its tasks", id.0)
            })?;
            ensure(options_bytes(*id) == client.options_bytes, || {
                format!("client {} miscounts its options", id.0)
            })?;
            ensure(n <= max_tasks, || {
                format!("client {} is over its bound", id.0)
            })?;
            ensure(!client.away || n > 0, || {
                format!("client {} is away without a reason", id.0)
            })?;
        }
        let n_awaiting = self.by_id.values().filter(|c| c.awaits_engines).count();
        ensure(n_awaiting == self.n_awaiting as usize, || {
            "clients that start engines are miscounted".into()
        })?;
        ensure(self.departed.is_empty(), || {
            "a departed client is still listed".into()
        })?;
        self.reply_groups.check(n_unfinished)?;
        self.subscribers.check(is_awaited, |id| self.is_here(id))
    }
}
