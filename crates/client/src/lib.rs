//! The client's thinking, as pure state machines: which replies complete a request, what is sent when, who reads the
//! link, and how much may be unresolved.
//!
//! Nothing here reads a clock, locks, sleeps, touches a socket or knows Python. A driver holds each machine under a lock
//! of its own, tells it what happened and carries out what it returns. What the driver hands in to get back later, such
//! as a request, a callback or a claim, is a type parameter: a test or the simulation uses numbers.
//!
//! * [`Table`]: the parts that have no result yet. Each is ended exactly once.
//! * [`Parts`]: how each part of one request ended.
//! * [`Replies`]: the answers to control requests.
//! * [`Limits`]: whether a call may be submitted now.
//! * [`Batch`] and [`Linger`]: what is sent together, and when.
//! * [`Reading`]: which thread reads the link, and which ones follow it.
//! * [`Succession`]: whether a client goes on when its controller is gone.

mod batch;
mod deaths;
mod history;
mod limits;
mod parts;
mod reading;
mod replies;
mod succession;
mod table;
mod written;

pub use batch::{
    Batch, Dependencies, Head, Linger, Sending, Waiter, dependency_bytes, dependency_weight,
};
pub use deaths::Deaths;
pub use history::History;
pub use limits::{Call, Limits, Load};
pub use parts::{Part, Parts, not_run};
pub use reading::{Background, Looks, Reading, Role, Spin};
pub use replies::Replies;
pub use succession::{Sequel, Succession};
pub use table::{Ended, Mismatch, Submitted, Table, Unresolved};
pub use written::Written;

/// Nanoseconds on the driver's clock.
pub type Nanos = u64;
