//! Each rule of the controller by itself.

mod bench;
mod dependencies;
mod endings;
mod engines;
mod placement;
