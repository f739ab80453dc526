//! The metrics of the publisher.

use metrics::{Counter, Gauge, counter, gauge};

use crate::spool::Spool;

/// The metrics of the publisher; `docs/reference/metrics.md` describes them.
pub(super) struct Metrics {
    pub(super) delivered: Counter,
    pub(super) again: Counter,
    pub(super) errors: Counter,
    pub(super) damaged_bytes: Counter,
    pub(super) damaged_records: Counter,
    pub(super) bytes: Gauge,
    pub(super) segments: Gauge,
    pub(super) records: Gauge,
    pub(super) oldest: Gauge,
}

impl Metrics {
    /// Registers the metrics and sets those that do not change.
    pub(super) fn register(spool: &Spool) -> Self {
        gauge!("hopline_spool_max_bytes").set(spool.max_bytes() as f64);
        gauge!("hopline_spool_files_left_alone").set(spool.unrecognized().len() as f64);
        Self {
            delivered: counter!("hopline_clicks_delivered_total"),
            again: counter!("hopline_clicks_sent_again_total"),
            errors: counter!("hopline_click_delivery_errors_total"),
            damaged_bytes: counter!("hopline_spool_damaged_bytes_total"),
            damaged_records: counter!("hopline_spool_damaged_records_total"),
            bytes: gauge!("hopline_spool_bytes"),
            segments: gauge!("hopline_spool_segments"),
            records: gauge!("hopline_spool_records"),
            oldest: gauge!("hopline_spool_oldest_unconfirmed_seconds"),
        }
    }
}
