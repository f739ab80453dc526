//! From a request to a handler and back.

pub(crate) mod caller;
pub(crate) mod cors;
pub(crate) mod csv;
pub(crate) mod dashboard;
pub(crate) mod dates;
pub(crate) mod download;
pub(crate) mod faults;
mod file;
pub(crate) mod idempotency;
pub(crate) mod limits;
pub(crate) mod middleware;
pub(crate) mod mount;
pub(crate) mod openapi;
pub(crate) mod operation;
pub(crate) mod page;
pub(crate) mod qr;
pub(crate) mod request;
pub(crate) mod revision;
pub(crate) mod text;
