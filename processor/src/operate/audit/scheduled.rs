//! The audits that the processor which runs upkeep makes by itself. Table `audits` has their results, and the newest
//! one is exported as metrics: `hopline_processor_audit_differences` and `hopline_processor_audit_timestamp_seconds`.

use std::time::Duration;

use anyhow::Context as _;
use metrics::{counter, gauge};
use service::clickhouse::Clickhouse;
use service::metrics::UNKNOWN;
use tokio::time::sleep;

use super::audit;
use super::store::AuditStore;
use crate::Config;
use crate::upkeep::Turn;

/// The pause after an audit that could not be finished.
const AFTER_FAILURE: Duration = Duration::from_secs(10);

/// Runs an audit whenever the newest result is older than the interval, while it is this process's turn to run upkeep.
pub async fn audits(config: &Config, mut turn: Turn) {
    if config.audit_hours == 0 {
        return;
    }
    while turn.begins().await {
        if turn.ends_during(work(config)).await {
            export(UNKNOWN, UNKNOWN);
        }
    }
}

/// Exports the differences of a result and when it ended, in seconds since 1970.
fn export(differences: f64, ended: f64) {
    gauge!("hopline_processor_audit_differences").set(differences);
    gauge!("hopline_processor_audit_timestamp_seconds").set(ended);
}

/// Runs the audits that are due, forever.
async fn work(config: &Config) {
    loop {
        let pause = round(config).await.unwrap_or_else(|error| {
            // The timestamp of the newest result does not move, so its alert comes.
            counter!("hopline_processor_audit_failures_total").increment(1);
            tracing::warn!("cannot audit: {error:#}");
            AFTER_FAILURE
        });
        sleep(pause).await;
    }
}

/// Exports the newest result, or runs an audit if it is too old. Returns how long to pause after it.
async fn round(config: &Config) -> anyhow::Result<Duration> {
    let every = Duration::from_secs(3_600 * config.audit_hours);
    let tables =
        AuditStore::new(&Clickhouse::new(&config.clickhouse)).await.context("cannot reach ClickHouse")?;
    if let Some(newest) = tables.newest().await.context("cannot read the results of audits")? {
        export(newest.differences as f64, newest.ended as f64 / 1e3);
        // A clock that was set back: the next one comes an interval from now.
        let age = Duration::from_millis(u64::try_from(newest.age).unwrap_or(0));
        if let Some(pause) = every.checked_sub(age).filter(|pause| !pause.is_zero()) {
            return Ok(pause);
        }
    }
    tracing::info!("auditing the counts");
    let report = audit(config).await?;
    if report.equal {
        tracing::info!("the audit found no difference");
    } else {
        let (count, first) = (report.difference_count, &report.differences[0].detail);
        tracing::error!("the audit found {count} differences; the first: {first}");
    }
    tables.add(&report).await.context("cannot store the result of the audit")?;
    Ok(Duration::ZERO)
}
