//! What an instance does besides answering requests.

pub(crate) mod outbox;
pub(crate) mod retention;
pub(crate) mod sweep;
