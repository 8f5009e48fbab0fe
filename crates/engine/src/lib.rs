//! The engine's thinking, as pure state machines: which task runs next and on top of which, and what is sent when.
//!
//! Nothing here reads a clock, locks, sleeps, touches a socket or knows Python: a driver tells a machine what happened and
//! carries out what it returns. Some are under a lock of the driver's. Others consist of atomics: those that
//! more threads than the main one use, and those that this one uses for every task.
//!
//! * [`Work`]: what was sent to the engine and has not begun.
//! * [`Stack`]: what has begun and not ended.
//! * [`Turns`]: where the engine looks for more, and how long it sleeps, once nothing is left to run.
//! * [`Flushing`]: when replies and output are sent; [`LastTask`]: how long a task is expected to hold them back.
//! * [`Lines`], [`WriteTimes`]: what of a task's output is sent, and when there can be any.
//! * [`LaneTask`]: the task that came over the lane, until it is counted.
//! * [`Wakeups`]: when the main thread is woken for a signal again.

mod flushing;
mod lane_task;
mod last_task;
mod output;
mod stack;
mod turns;
mod wakeups;
mod work;

pub use flushing::{Batching, Before, Flushing, Turn};
pub use lane_task::LaneTask;
pub use last_task::LastTask;
pub use output::{Lines, Stream, WriteTimes, Written, pieces};
pub use stack::{Outer, Stack};
pub use turns::{Arrived, Look, Turns, longest_sleep_ns};
pub use wakeups::Wakeups;
pub use work::{Next, Work};

/// Nanoseconds on the driver's clock.
pub type Nanos = u64;

const MS: Nanos = 1_000_000;

/// How often free segments are looked at, in an idle engine and while user code runs.
const TRIM_NS: Nanos = 1_000 * MS;
