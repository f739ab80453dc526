//! Sends deliveries to their receivers.
//!
//! | Step | Module |
//! |---|---|
//! | permits in turn, and claims | `schedule`, `slots`, `timers` |
//! | not more at a time than a receiver is to get | `gates` |
//! | whether it is still to be sent, and where | `recheck` |
//! | one request | `send`, `sign`, `guard` |
//! | what came of it | `outcomes`, `retry` |

mod gates;
mod guard;
mod outcomes;
mod recheck;
mod retry;
mod schedule;
mod send;
mod sign;
mod slots;
mod timers;

pub(crate) use guard::{Guard, interface_addresses};
pub(crate) use schedule::deliver;
pub(crate) use send::Sender;
