//! The table of the processor's metrics.

use service::metrics::{COUNTS, Metric, SECONDS};

/// The metrics of this crate. `.ci/reference.py` reads this table.
pub const METRICS: &[Metric] = &[
    Metric::gauge(
        "hopline_processor_lag_offsets",
        &[("partition", &[])],
        "Records of a partition that are not counted yet, from its owner",
    ),
    Metric::gauge(
        "hopline_processor_counted_until_seconds",
        &[("partition", &[])],
        "Time up to which the clicks of a partition are counted, as a Unix time, from its owner",
    ),
    Metric::counter("hopline_processor_rows_inserted_total", &[], "Rows of clicks inserted"),
    Metric::counter("hopline_processor_batches_total", &[], "Batches inserted"),
    Metric::histogram("hopline_processor_batch_rows", COUNTS, &[], "Rows of a batch"),
    Metric::histogram("hopline_processor_insert_seconds", SECONDS, &[], "Time of an insert"),
    Metric::counter(
        "hopline_processor_doubtful_inserts_total",
        &[("resolution", &["stored", "not_stored"])],
        "Inserts without an answer, and what was found when they were read back",
    ),
    Metric::counter(
        "hopline_processor_fenced_inserts_total",
        &[],
        "Inserts rejected because another processor owns the partition",
    ),
    Metric::counter("hopline_processor_takeovers_total", &[], "Partitions taken over"),
    Metric::counter(
        "hopline_processor_repeats_dropped_total",
        &[],
        "Repeats of clicks, which were not stored",
    ),
    Metric::counter(
        "hopline_processor_deleted_dropped_total",
        &[],
        "Clicks of deleted links, which were not stored",
    ),
    Metric::counter("hopline_processor_dead_letters_total", &[], "Records that could not be read"),
    Metric::counter("hopline_processor_conversions_total", &[], "Conversions counted"),
    Metric::gauge(
        "hopline_processor_waiting_conversions",
        &[],
        "Conversions that have waited for their click for ten minutes or more, from the processor that runs upkeep",
    ),
    Metric::counter("hopline_processor_position_gaps_total", &[], "Offsets that the log does not have"),
    Metric::counter("hopline_processor_logs_cut_total", &[], "Logs that lost their end"),
    Metric::gauge(
        "hopline_processor_full_partitions",
        &[],
        "Partitions that have enough records waiting in memory; their next ones wait in Kafka",
    ),
    Metric::gauge(
        "hopline_processor_closed_until_seconds",
        &[],
        "Start of the first open day, as a Unix time, from the processor that runs upkeep",
    ),
    Metric::histogram("hopline_processor_rollup_seconds", SECONDS, &[], "Time to close days"),
    Metric::counter(
        "hopline_processor_slices_closed_again_total",
        &[],
        "Closed days that were closed again because their clicks changed",
    ),
    Metric::counter("hopline_processor_purged_links_total", &[], "Deleted links whose rows were removed"),
    Metric::counter(
        "hopline_processor_upkeep_failures_total",
        &[],
        "Failed runs of upkeep; they are tried again",
    ),
    Metric::gauge(
        "hopline_processor_audit_differences",
        &[],
        "Differences that the newest scheduled audit found, from the processor that runs upkeep",
    ),
    Metric::gauge(
        "hopline_processor_audit_timestamp_seconds",
        &[],
        "When the newest scheduled audit ended, as a Unix time, from the processor that runs upkeep",
    ),
    Metric::counter(
        "hopline_processor_audit_failures_total",
        &[],
        "Scheduled audits that could not be finished; they run again",
    ),
];
