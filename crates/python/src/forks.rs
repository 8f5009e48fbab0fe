//! Forks. A child has copies of its parent's endpoints. It must not speak on their sockets, nor keep them open, nor
//! wait for threads that only its parent has.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use pyo3::prelude::*;

use crate::payload::lock;

static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Held only by holders of the interpreter lock, which a forking thread has: no child finds it locked.
static SOCKETS: Mutex<Vec<Weak<Sockets>>> = Mutex::new(Vec::new());

/// The process that made an endpoint. Asking costs a load, not a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(u32);

impl Owner {
    /// The calling process.
    pub fn this() -> Self {
        Self(PROCESS.load(Ordering::Relaxed))
    }

    /// Whether the calling process is a child that was forked since then.
    pub fn is_elsewhere(self) -> bool {
        self != Self::this()
    }
}

/// The descriptors of an endpoint's socket.
pub struct Sockets {
    numbers: Vec<i32>,
    closing: AtomicBool,
}

impl Sockets {
    /// Makes children release these descriptors as long as the value lives: drop it before they are closed.
    pub fn register(_py: Python<'_>, descriptors: &[BorrowedFd<'_>]) -> Arc<Self> {
        let registered = Arc::new(Self {
            numbers: descriptors.iter().map(AsRawFd::as_raw_fd).collect(),
            closing: AtomicBool::new(false),
        });
        let mut sockets = lock(&SOCKETS);
        sockets.retain(|known| known.strong_count() > 0);
        sockets.push(Arc::downgrade(&registered));
        registered
    }

    /// They are about to be closed, and their numbers reused.
    pub fn on_closing(&self) {
        self.closing.store(true, Ordering::Release);
    }
}

/// In a child: replaces every inherited socket with `/dev/null`. Their numbers stay taken, because somebody may still
/// close them.
#[pyfunction]
fn on_forked(py: Python<'_>) -> PyResult<()> {
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    let inherited = std::mem::take(&mut *lock(&SOCKETS));
    let sockets: Vec<_> = inherited.iter().filter_map(Weak::upgrade).collect();
    let open = sockets
        .iter()
        .filter(|sockets| !sockets.closing.load(Ordering::Acquire));
    let numbers: Vec<i32> = open.flat_map(|sockets| sockets.numbers.clone()).collect();
    if numbers.is_empty() {
        return Ok(());
    }
    let os = py.import("os")?;
    let flags: i32 = os.getattr("O_RDWR")?.extract()?;
    let cloexec: i32 = os.getattr("O_CLOEXEC")?.extract()?;
    let nothing = os.call_method1("open", (os.getattr("devnull")?, flags | cloexec))?;
    for number in numbers {
        os.call_method1("dup2", (&nothing, number, false))?;
    }
    os.call_method1("close", (nothing,)).map(drop)
}

/// Makes every child of this process call [`on_forked`].
pub fn watch(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    let kwargs = pyo3::types::PyDict::new(py);
    kwargs.set_item("after_in_child", wrap_pyfunction!(on_forked, module)?)?;
    py.import("os")?
        .call_method("register_at_fork", (), Some(&kwargs))
        .map(drop)
}
