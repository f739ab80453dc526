//! From a request to a handler and back.

pub(crate) mod cors;
pub(crate) mod mount;
pub(crate) mod operation;
pub(crate) mod request;
