//! What an instance does besides answering requests.

pub(crate) mod blocked_hosts;
pub(crate) mod outbox;
pub(crate) mod retention;
pub(crate) mod sweep;
