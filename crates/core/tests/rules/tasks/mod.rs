//! Rules of tasks: where they go, how they end, what they count for.

mod charges;
mod coalesce;
mod dependencies;
mod endings;
mod failures;
mod nesting;
mod placement;
mod result_store;
mod wakeups;
