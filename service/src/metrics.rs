//! The Prometheus recorder for the `metrics` facade.

use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use parking_lot::Mutex;

/// Upper bounds of histograms in seconds: 100 microseconds to one minute.
const SECONDS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0, 60.0,
];

/// Upper bounds of histograms in bytes: 256 B to 64 MiB.
const BYTES: &[f64] = &[
    256.0,
    1_024.0,
    4_096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];

/// Upper bounds of histograms of counts, such as rows in a batch.
const COUNTS: &[f64] =
    &[1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0, 30_000.0, 100_000.0, 300_000.0];

/// Time between two merges of recorded samples into buckets.
const UPKEEP: Duration = Duration::from_secs(5);

static INSTALLED: Mutex<Option<Metrics>> = Mutex::new(None);

/// A handle to the metrics of this process; cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    recorder: PrometheusHandle,
    process: metrics_process::Collector,
}

impl Metrics {
    /// Installs the recorder of this process, or returns the installed one.
    ///
    /// The suffix of a histogram's name selects its buckets: `_seconds`, `_bytes`, or else counts.
    ///
    /// # Errors
    /// When other code has installed a recorder, or no thread can be started.
    pub fn install(service: &'static str) -> anyhow::Result<Self> {
        let mut installed = INSTALLED.lock();
        if let Some(metrics) = &*installed {
            return Ok(metrics.clone());
        }
        let recorder = PrometheusBuilder::new()
            .set_buckets(COUNTS)?
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), SECONDS)?
            .set_buckets_for_metric(Matcher::Suffix("_bytes".to_owned()), BYTES)?
            .install_recorder()
            .context("cannot install the metrics recorder")?;
        // The recorder keeps every sample until it is merged, so without this thread an unscraped process would grow
        // without limit.
        let upkeep = recorder.clone();
        thread::Builder::new()
            .name("metrics-upkeep".to_owned())
            .spawn(move || {
                loop {
                    thread::sleep(UPKEEP);
                    upkeep.run_upkeep();
                }
            })
            .context("cannot start the metrics thread")?;
        let process = metrics_process::Collector::default();
        process.describe();
        metrics::gauge!("hopline_build_info", "service" => service, "version" => crate::VERSION).set(1.0);
        Ok(installed.insert(Self { recorder, process }).clone())
    }

    /// Returns all metrics, including those of the process, in Prometheus' text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.process.collect();
        self.recorder.render()
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Metrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_install_shares_the_recorder() {
        let first = Metrics::install("test").unwrap();
        metrics::histogram!("hopline_insert_seconds").record(0.002);
        let second = Metrics::install("test").unwrap();
        for text in [first.render(), second.render()] {
            assert!(text.contains(r#"hopline_insert_seconds_bucket{le="0.0025"} 1"#), "{text}");
            let build = format!(r#"hopline_build_info{{service="test",version="{}"}} 1"#, crate::VERSION);
            assert!(text.contains(&build), "{text}");
            assert!(text.contains("process_resident_memory_bytes"), "{text}");
        }
    }
}
