//! The native errors as Python sees them; the package wraps them in its public types.

use broadleaf_net::LinkError;
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;

create_exception!(
    broadleaf._native,
    ConnectionRefused,
    PyException,
    "The controller refused: args are (kind, message)."
);
create_exception!(
    broadleaf._native,
    LinkClosed,
    PyException,
    "The connection to the controller is closed or lost."
);

create_exception!(
    broadleaf._native,
    PayloadTooLarge,
    PyException,
    "A payload does not fit into a message: args are its size and the limit, in bytes, and why it must."
);

/// The exception for a connection that is already closed.
pub fn link_closed(_py: Python<'_>) -> PyErr {
    LinkClosed::new_err(
        "the connection to the controller is closed; connect again with a new Client",
    )
}

/// The exception for what a controller that has ended had yet to do, while another one is awaited.
pub fn controller_lost(_py: Python<'_>) -> PyErr {
    LinkClosed::new_err(
        "the controller has ended before this was done; the client goes on when it is started again, and a call that is \
         made now waits for that",
    )
}

/// The exception for a client of the process that this one was forked from.
pub fn forked(_py: Python<'_>) -> PyErr {
    LinkClosed::new_err(
        "this client belongs to the parent of this forked process: open a new Client after the fork",
    )
}

/// The exception for a failure of the connection.
pub fn link_error(py: Python<'_>, error: &LinkError) -> PyErr {
    if error.is_closed() {
        return link_closed(py);
    }
    if let LinkError::RecordTooLarge { bytes, limit } = error {
        return PyValueError::new_err(format!(
            "a message of {bytes} bytes is over the limit of {limit} bytes"
        ));
    }
    LinkClosed::new_err(format!("the connection to the controller failed: {error}"))
}
