//! Clients: which are connected, and what each is told.

pub mod admission;
pub(crate) mod explain;
pub(crate) mod history;
pub(crate) mod notices;
pub(crate) mod records;
pub(crate) mod requests;
pub(crate) mod subscribers;
pub(crate) mod unread;
pub mod uploads;

use broadleaf_proto::ids::{FunctionId, OptionsId};
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;

use crate::clients::history::History;
use crate::tasks::ranges::Ranges;

/// Number of option sets and functions that one client may define.
pub(crate) const MAX_DEFINITIONS: usize = 1 << 20;

/// A client's set of task options.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Defined {
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
    pub name: String,
    pub congested: bool,
    /// It asked for its tasks to continue without it.
    pub leaves: bool,
    /// Its link is closed, and its tasks continue.
    pub away: bool,
    /// It starts engines if there are none, so tasks wait for them.
    pub awaits_engines: bool,
    pub outstanding_tasks: u64,
    pub outstanding_bytes: u64,
    /// The part of those bytes that is in segments.
    pub ranges: Ranges,
    pub history: History,
    /// Slots in the function cache; `None` for a function above the cache's limit.
    pub functions: IndexMap<FunctionId, Option<u32>, FxBuildHasher>,
    pub options: IndexMap<OptionsId, Defined, FxBuildHasher>,
    /// The size charged for the option sets that it defined, including replaced ones that its tasks still use.
    pub options_bytes: u64,
    /// Total size of its functions' bodies.
    pub function_bytes: u64,
}

impl Client {
    pub fn new(name: String, history: History) -> Self {
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
}
