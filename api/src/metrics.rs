//! The table of the API's metrics.

use service::metrics::Metric;

/// The metrics of this crate. `.ci/reference.py` reads this table.
pub const METRICS: &[Metric] = &[
    Metric::counter(
        "hopline_api_requests_total",
        &[("operation", &[]), ("status", &["2xx", "3xx", "4xx", "5xx"])],
        "Requests by operation and class of the answer's status; every operation exists from the start",
    ),
    Metric::gauge("hopline_outbox_messages", &[], "Messages that wait in the outbox for Kafka"),
    Metric::gauge(
        "hopline_outbox_oldest_seconds",
        &[],
        "Age of the oldest message in the outbox; 0 when it is empty",
    ),
    Metric::counter("hopline_outbox_published_total", &[], "Messages of the outbox that Kafka has"),
    Metric::counter(
        "hopline_conversions_over_limit_total",
        &[],
        "Conversions rejected because their account had as many as it may have on a day",
    ),
    Metric::gauge("hopline_live_listeners", &[], "Open live streams"),
];
