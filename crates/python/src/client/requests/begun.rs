//! The request that a thread's last call began. Ctrl-C may come when its tasks have been sent and the caller does not have
//! its result yet; then nobody else knows which tasks to abort.

use std::cell::Cell;
use std::sync::Arc;

use crate::client::requests::request::Request;
use crate::client::shared::Shared;

#[derive(Clone, Copy)]
struct Begun {
    /// The connection, by its address.
    connection: usize,
    first: u64,
    len: usize,
}

thread_local! {
    static BEGUN: Cell<Option<Begun>> = const { Cell::new(None) };
}

fn address(connection: &Arc<Shared>) -> usize {
    Arc::as_ptr(connection).addr()
}

/// This thread starts another call.
pub fn start_call() {
    BEGUN.set(None);
}

/// Notes what this thread's call has begun.
pub fn note(connection: &Arc<Shared>, request: &Request) {
    BEGUN.set(Some(Begun {
        connection: address(connection),
        first: request.base,
        len: request.len,
    }));
}

/// The number of the first task, and the number of tasks, of the request that this thread's last call began.
pub fn begun(connection: &Arc<Shared>) -> (u64, usize) {
    let begun = BEGUN.get().filter(|b| b.connection == address(connection));
    begun.map_or((0, 0), |b| (b.first, b.len))
}
