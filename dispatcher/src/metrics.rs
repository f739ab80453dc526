//! The table of the dispatcher's metrics.

use service::metrics::{Metric, SECONDS};

/// The metrics of this crate. `.ci/reference.py` reads this table.
pub const METRICS: &[Metric] = &[
    Metric::counter("hopline_webhook_events_total", &[], "Events read"),
    Metric::counter("hopline_webhook_deliveries_stored_total", &[], "Deliveries queued"),
    Metric::counter(
        "hopline_webhook_deliveries_dropped_total",
        &[],
        "Deliveries dropped because their endpoint's queue was full",
    ),
    Metric::gauge(
        "hopline_webhook_enqueue_age_seconds",
        &[],
        "Time from Kafka taking the newest event of a batch to its deliveries being queued",
    ),
    Metric::counter(
        "hopline_webhook_enqueue_failures_total",
        &[],
        "Failed attempts to queue a batch; they are tried again",
    ),
    Metric::counter(
        "hopline_webhook_position_jumps_total",
        &[("reason", &["beyond-end", "before-start", "other-topic"])],
        "Positions that the log does not have",
    ),
    Metric::counter(
        "hopline_webhook_attempts_total",
        &[
            (
                "outcome",
                &[
                    "delivered",
                    "failed",
                    "exhausted",
                    "refused",
                    "withdrawn",
                    "unsent",
                    "unsendable",
                    "superseded",
                ],
            ),
            (
                "class",
                &[
                    "1xx", "2xx", "3xx", "4xx", "5xx", "other", "blocked", "dns", "connect", "timeout",
                    "response", "none",
                ],
            ),
        ],
        "Requests to receivers",
    ),
    Metric::histogram("hopline_webhook_attempt_seconds", SECONDS, &[], "Time of a request to a receiver"),
    Metric::histogram(
        "hopline_webhook_delivered_after_seconds",
        SECONDS,
        &[],
        "Time from an event to its successful delivery",
    ),
    Metric::gauge("hopline_webhook_endpoints_due", &[], "Endpoints with due deliveries"),
    Metric::gauge(
        "hopline_webhook_oldest_due_seconds",
        &[("attempt", &["first", "retry"])],
        "How long the oldest delivery has been due",
    ),
    Metric::gauge("hopline_webhook_in_flight", &[], "Requests under way"),
    Metric::gauge("hopline_webhook_in_flight_bytes", &[], "Bytes of the bodies of the requests under way"),
    Metric::counter(
        "hopline_webhook_leases_taken_over_total",
        &[],
        "Deliveries taken over from dead dispatchers",
    ),
    Metric::counter(
        "hopline_webhook_endpoints_disabled_total",
        &[],
        "Endpoints disabled after fifteen exhausted deliveries",
    ),
    Metric::counter(
        "hopline_webhook_notices_total",
        &[("exhausted", &["5", "10", "15"])],
        "Notices about endpoints that keep failing, by how many deliveries in a row were exhausted",
    ),
    Metric::counter(
        "hopline_dead_letters_total",
        &[("schema", &["click.v1", "link_event.v1"])],
        "Events that could not be read",
    ),
];
