//! HTTP for every process: the server, and the shapes that all routes share.
//!
//! A service builds [`Route`]s and gives them to [`serve`], which adds what every answer must have: a request
//! id, the house's error body and a header timeout. Extractors reject with [`ApiError`] and nothing else; a
//! rejection of warp's own means "not my route".

mod around;
mod body;
mod client_address;
mod decode;
pub mod error;
mod operations;
mod query;
mod request;
pub mod route;
mod serve;

pub use around::Around;
pub use body::{BODY_LIMIT, bytes, json_bytes, parse_json, read_json};
pub use client_address::client_address;
pub use error::{ApiError, Code, FieldError};
pub use operations::{Operations, operations, serve_operations};
pub use query::{parse_query, query};
pub use request::{Peer, RequestId};
pub use route::{Route, json};
pub use serve::{Limits, serve, serve_around};
