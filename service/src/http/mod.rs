//! The HTTP server of every process, with extractors and errors for its routes.
//!
//! A service builds [`Route`]s and passes them to [`serve`], which adds request ids, error bodies and timeouts.
//! Extractors reject with [`ApiError`] only; warp's own rejections mean "not my route".

mod body;
mod buckets;
mod client_address;
mod code;
mod compress;
mod decode;
mod error;
mod fault;
mod head;
mod host;
mod linger;
mod middleware;
mod operations;
mod pace;
mod query;
mod request;
pub mod route;
mod serve;
mod syntax;
mod tls;

pub use body::{BODY_LIMIT, json_bytes, parse_entry, parse_json, read_json, require_plain};
pub use buckets::Buckets;
pub use client_address::{client_address, client_network};
pub use code::Code;
pub use compress::accepts_gzip;
pub use error::ApiError;
pub use middleware::Middleware;
pub use operations::{OperationsServer, serve_operations};
pub use query::{check_no_query, parse_query};
pub use request::{Peer, RequestId};
pub use route::{Route, json};
pub use serve::{Limits, serve, serve_with_middleware};
pub use syntax::invalid_json;
pub use tls::{came_over_tls, require_tls};
