//! The table of the edge's metrics.

use service::metrics::Metric;

/// Upper bounds of the buckets of a redirect. From memory it takes microseconds, with a lookup in Postgres
/// milliseconds.
const REDIRECT_SECONDS: &[f64] = &[0.000_1, 0.001, 0.01, 0.1, 1.0];

/// The metrics of this crate. `.ci/reference.py` reads this table.
pub const METRICS: &[Metric] = &[
    Metric::counter(
        "hopline_redirects_total",
        &[("status", &["301", "302", "307", "308", "404", "410"])],
        "Answered visits",
    ),
    Metric::histogram(
        "hopline_redirect_seconds",
        REDIRECT_SECONDS,
        &[],
        "Time from a visit to its answer, without the network",
    ),
    Metric::counter("hopline_clicks_total", &[("class", &["human", "bot", "preview"])], "Answered clicks"),
    Metric::counter(
        "hopline_clicks_over_limit_total",
        &[],
        "Clicks above the limit of their client, which count as those of a bot",
    ),
    Metric::counter(
        "hopline_clicks_dropped_total",
        &[],
        "Clicks that were answered and lost; any growth is an incident",
    ),
    Metric::counter("hopline_clicks_delivered_total", &[], "Clicks that Kafka confirmed"),
    Metric::counter("hopline_clicks_sent_again_total", &[], "Clicks that were sent again"),
    Metric::counter(
        "hopline_click_delivery_errors_total",
        &[],
        "Clicks that Kafka rejected or left unconfirmed; they are sent again",
    ),
    Metric::counter(
        "hopline_edge_clicks_total",
        &[("outcome", &["accepted", "rejected", "unknown"])],
        "Clicks of POST /v1/clicks",
    ),
    Metric::gauge("hopline_spool_bytes", &[], "Size of the spool on the disk"),
    Metric::gauge("hopline_spool_max_bytes", &[], "Limit of the spool's size"),
    Metric::gauge("hopline_spool_segments", &[], "Segments of the spool"),
    Metric::gauge("hopline_spool_records", &[], "Clicks that wait for Kafka"),
    Metric::gauge(
        "hopline_spool_oldest_unconfirmed_seconds",
        &[],
        "Age of the oldest click that waits for Kafka; below a second in normal operation",
    ),
    Metric::counter("hopline_spool_damaged_bytes_total", &[], "Damaged bytes of the spool that were skipped"),
    Metric::counter(
        "hopline_spool_damaged_records_total",
        &[],
        "Clicks in the damaged bytes, as far as they can be counted",
    ),
    Metric::gauge(
        "hopline_spool_files_left_alone",
        &[],
        "Files in the spool's directory that this build does not recognize",
    ),
    Metric::gauge("hopline_links", &[], "Links in memory"),
    Metric::counter(
        "hopline_links_unreadable_total",
        &[("reason", &["malformed", "unknown_version"])],
        "Records of topic links that could not be read",
    ),
    Metric::counter(
        "hopline_link_lookups_total",
        &[("outcome", &["found", "absent", "failed", "refused"])],
        "Lookups of links in Postgres",
    ),
    Metric::gauge(
        "hopline_snapshot_written_timestamp_seconds",
        &[],
        "When the snapshot of links was last written, as a Unix time",
    ),
    Metric::counter("hopline_snapshot_errors_total", &[], "Snapshots of links that could not be written"),
    Metric::counter("hopline_country_file_refused_total", &[], "Country files that could not be used"),
];
