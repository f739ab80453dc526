//! Traces of single clicks and events, for a collector that speaks OTLP over HTTP.
//!
//! Nothing is passed on from one service to the next. The trace's id and that of its root span follow from an id that
//! every service knows, and so does whether it is traced. See `docs/decisions/0017-traces-by-id.md`.

mod config;
mod export;
mod ids;
mod tracer;

pub use config::TraceConfig;
pub use export::{Exporter, start};
pub use tracer::{Kind, Span, Trace, Tracer};
