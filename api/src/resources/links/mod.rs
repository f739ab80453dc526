//! Links: create, list, get, change, delete, QR codes.

pub(crate) mod block;
pub(crate) mod bulk;
mod counters;
pub(crate) mod create;
mod cursor;
pub(crate) mod delete;
pub(crate) mod destination;
pub(crate) mod export;
pub(crate) mod fields;
pub(crate) mod list;
pub(crate) mod object;
pub(crate) mod qr;
pub(crate) mod show;
pub(crate) mod slug;
pub(crate) mod update;
pub(crate) mod upsert;
