//! Rules of engines and their hosts.

mod draining;
mod lives;
mod observers;
mod preparations;
mod relays;
mod restarts;
mod worlds;
