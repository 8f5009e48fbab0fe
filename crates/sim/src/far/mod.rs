//! Clients on other hosts, on their own: what they send and get.

pub(crate) mod uploads;
pub(crate) mod values;
