//! Connected clients.

use broadleaf_proto::ids::{FunctionId, OptionsId};
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;

use crate::history::History;

/// Option sets and functions one client may define.
pub(crate) const MAX_DEFINITIONS: usize = 1 << 20;

/// One connected client.
#[derive(Debug)]
pub(crate) struct Client {
    pub name: String,
    pub congested: bool,
    /// It asked that its tasks go on without it.
    pub leaves: bool,
    /// Its link is closed, and its tasks go on.
    pub away: bool,
    pub outstanding_tasks: u64,
    pub outstanding_bytes: u64,
    pub history: History,
    /// Slots in the function cache; `None` for one above the cache's bound.
    pub functions: IndexMap<FunctionId, Option<u32>, FxBuildHasher>,
    /// Slots among the option sets.
    pub options: IndexMap<OptionsId, u32, FxBuildHasher>,
}

impl Client {
    pub fn new(name: String, history: History) -> Self {
        Self {
            name,
            congested: false,
            leaves: false,
            away: false,
            outstanding_tasks: 0,
            outstanding_bytes: 0,
            history,
            functions: IndexMap::default(),
            options: IndexMap::default(),
        }
    }
}
