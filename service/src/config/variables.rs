//! The list of variables, and the detection of unknown ones.

use std::ffi::OsStr;

use super::fault::Fault;

/// Prefix of Hopline's variables. Those of Kafka, Postgres and ClickHouse have their usual names.
pub(super) const PREFIX: &str = "HOPLINE_";

/// Suffix of the variable with the path of a secret's file.
pub(super) const FILE_SUFFIX: &str = "_FILE";

/// All `HOPLINE_` variables of the four processes.
///
/// The processes share one environment file, so each accepts the others' variables and ignores them.
pub const VARIABLES: &[&str] = &[
    "HOPLINE_ADDRESS_REQUESTS_PER_MINUTE",
    "HOPLINE_API_LISTEN",
    "HOPLINE_API_OPERATIONS_LISTEN",
    "HOPLINE_AUDIT_HOURS",
    "HOPLINE_CLICKHOUSE_CA_FILE",
    "HOPLINE_CLICKHOUSE_CLUSTER",
    "HOPLINE_CLICK_ID_KEYS",
    "HOPLINE_CLICK_ID_KEY_SINCE",
    "HOPLINE_CLICKS_PER_MINUTE",
    "HOPLINE_CONNECTIONS_PER_CLIENT",
    "HOPLINE_COUNTRY_FILE",
    "HOPLINE_COUNTRY_SOURCE",
    "HOPLINE_DASHBOARD_URL",
    "HOPLINE_DATA_DIR",
    "HOPLINE_DISPATCHER_OPERATIONS_LISTEN",
    "HOPLINE_DRAIN_SECONDS",
    "HOPLINE_EDGE_LISTEN",
    "HOPLINE_HEADER_TIMEOUT_SECONDS",
    "HOPLINE_INGEST_OPERATIONS_LISTEN",
    "HOPLINE_LOG_FORMAT",
    "HOPLINE_LOOKUP_DATABASE_URL",
    "HOPLINE_MAX_CONNECTIONS",
    "HOPLINE_PLANS_FILE",
    "HOPLINE_PROCESSOR_OPERATIONS_LISTEN",
    "HOPLINE_PUBLIC_URL",
    "HOPLINE_PURGE_SECONDS",
    "HOPLINE_QUERIES_PER_WORKSPACE",
    "HOPLINE_RESPECT_PRIVACY_SIGNALS",
    "HOPLINE_SECRET_KEYS",
    "HOPLINE_SNAPSHOT_FILE",
    "HOPLINE_SNAPSHOT_SECONDS",
    "HOPLINE_SLICE_DELAY_SECONDS",
    "HOPLINE_SPOOL_DIR",
    "HOPLINE_SPOOL_MAX_BYTES",
    "HOPLINE_SPOOL_SYNC_MILLISECONDS",
    "HOPLINE_STATS_TIMEOUT_SECONDS",
    "HOPLINE_TOPIC_PREFIX",
    "HOPLINE_TOPIC_REPLICAS",
    "HOPLINE_TRUSTED_PROXIES",
    "HOPLINE_VISITOR_KEY",
    "HOPLINE_VISITOR_KEY_ROTATION",
    "HOPLINE_WEBHOOK_ALLOW",
    "HOPLINE_WEBHOOK_FAILURE_LIMIT",
    "HOPLINE_WEBHOOK_QUEUE_LIMIT",
    "HOPLINE_WRITE_TIMEOUT_SECONDS",
];

/// The secrets among [`VARIABLES`], which may be in a file.
pub(super) const SECRETS: &[&str] =
    &["HOPLINE_CLICK_ID_KEYS", "HOPLINE_LOOKUP_DATABASE_URL", "HOPLINE_SECRET_KEYS", "HOPLINE_VISITOR_KEY"];

/// Returns a fault for a variable that has the prefix but is not in [`VARIABLES`].
pub(super) fn unknown(name: &OsStr) -> Option<Fault> {
    let name = name.to_string_lossy();
    if !name.starts_with(PREFIX) || VARIABLES.contains(&&*name) {
        return None;
    }
    if name.strip_suffix(FILE_SUFFIX).is_some_and(|secret| SECRETS.contains(&secret)) {
        return None;
    }
    let without_prefix = |name: &str| name.strip_prefix(PREFIX).unwrap_or(name).to_owned();
    let nearest = VARIABLES
        .iter()
        .map(|known| {
            (strsim::normalized_damerau_levenshtein(&without_prefix(known), &without_prefix(&name)), known)
        })
        // A typing error: at least three quarters of the letters after the prefix match.
        .filter(|(similarity, _)| *similarity >= 0.75)
        .max_by(|left, right| left.0.total_cmp(&right.0));
    Some(Fault::new(
        &*name,
        match nearest {
            Some((_, known)) => format!("unknown variable, did you mean {known}?"),
            None => "unknown variable".to_owned(),
        },
    ))
}
