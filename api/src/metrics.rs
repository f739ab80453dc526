//! The table of the API's metrics.

use service::metrics::Metric;

/// The metrics of this crate. `.ci/reference.py` reads this table.
pub const METRICS: &[Metric] = &[
    Metric::counter("hopline_outbox_published_total", &[], "Messages of the outbox that Kafka has"),
    Metric::gauge("hopline_live_listeners", &[], "Open live streams"),
];
