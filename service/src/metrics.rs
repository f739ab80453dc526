//! The Prometheus recorder for the `metrics` facade.

use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use parking_lot::Mutex;

/// Upper bounds of the buckets of times in seconds: 100 microseconds to one minute.
pub const SECONDS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0, 60.0,
];

/// Upper bounds of the buckets of counts, such as rows in a batch.
pub const COUNTS: &[f64] =
    &[1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0, 30_000.0, 100_000.0, 300_000.0];

/// The value of a gauge that is not known, or not any more. [`Metrics::render`] leaves such a gauge out.
pub const UNKNOWN: f64 = f64::NAN;

/// The metrics that this crate records in every program. `.ci/reference.py` reads this table.
pub const METRICS: &[Metric] = &[
    Metric::gauge("hopline_build_info", &[("service", &[]), ("version", &[])], "Always 1"),
    Metric::gauge("hopline_check_ready", &[("check", &[])], "1 while a check of /readyz passes"),
    Metric::counter("hopline_http_accept_errors_total", &[], "Connections that could not be accepted"),
    Metric::counter(
        "hopline_http_connections_refused_total",
        &[],
        "Connections of clients that had too many",
    ),
    Metric::counter(
        "hopline_trace_spans_total",
        &[("outcome", &["sent", "dropped"])],
        "Spans sent to the collector, and spans dropped because it did not take them or too many waited",
    ),
];

/// Time between two merges of recorded samples into buckets.
const UPKEEP: Duration = Duration::from_secs(5);

/// A label of a metric and its values. Without values, they are not known before the program runs.
pub type Label = (&'static str, &'static [&'static str]);

/// A metric of a program: a row of its table. Its name ends with its unit, as Prometheus recommends.
///
/// `.ci/reference.py` writes the reference from the tables, and checks that they have every metric of the code.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    name: &'static str,
    kind: Kind,
    labels: &'static [Label],
    help: &'static str,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
    Histogram(&'static [f64]),
}

impl Metric {
    /// A number of events, which exists from the start of the program. Otherwise Prometheus would miss the first event.
    #[must_use]
    pub const fn counter(name: &'static str, labels: &'static [Label], help: &'static str) -> Self {
        Self { name, kind: Kind::Counter, labels, help }
    }

    /// A state, which exists from when it is known.
    #[must_use]
    pub const fn gauge(name: &'static str, labels: &'static [Label], help: &'static str) -> Self {
        Self { name, kind: Kind::Gauge, labels, help }
    }

    /// A distribution, which exists from the start of the program; `buckets` are their upper bounds.
    #[must_use]
    pub const fn histogram(
        name: &'static str,
        buckets: &'static [f64],
        labels: &'static [Label],
        help: &'static str,
    ) -> Self {
        Self { name, kind: Kind::Histogram(buckets), labels, help }
    }

    fn register(&self) {
        let Self { name, kind, labels, help } = *self;
        let combinations = combinations(labels);
        match kind {
            Kind::Counter => {
                metrics::describe_counter!(name, help);
                combinations.for_each(|labels| drop(metrics::counter!(name, labels)));
            }
            Kind::Gauge => metrics::describe_gauge!(name, help),
            Kind::Histogram(_) => {
                metrics::describe_histogram!(name, help);
                combinations.for_each(|labels| drop(metrics::histogram!(name, labels)));
            }
        }
    }
}

/// Returns each combination of the labels' values; none if one has no values.
fn combinations(labels: &'static [Label]) -> impl Iterator<Item = Vec<metrics::Label>> {
    let mut combinations = vec![Vec::new()];
    for (name, values) in labels {
        let with = |combination: &Vec<metrics::Label>, value: &'static str| {
            let mut combination = combination.clone();
            combination.push(metrics::Label::from_static_parts(name, value));
            combination
        };
        combinations = combinations
            .iter()
            .flat_map(|combination| values.iter().map(move |value| with(combination, value)))
            .collect();
    }
    combinations.into_iter()
}

static INSTALLED: Mutex<Option<Metrics>> = Mutex::new(None);

/// A handle to the metrics of this process; cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    recorder: PrometheusHandle,
    process: metrics_process::Collector,
}

impl Metrics {
    /// Installs the recorder of this process with the program's metrics, or returns the installed one.
    ///
    /// # Errors
    /// When other code has installed a recorder, or no thread can be started.
    pub fn install(service: &'static str, table: &[Metric]) -> anyhow::Result<Self> {
        let mut installed = INSTALLED.lock();
        if let Some(metrics) = &*installed {
            return Ok(metrics.clone());
        }
        // Otherwise a histogram that is in no table would be a summary.
        let mut builder = PrometheusBuilder::new().set_buckets(SECONDS)?;
        for metric in table {
            if let Kind::Histogram(buckets) = metric.kind {
                builder = builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), buckets)?;
            }
        }
        let recorder = builder.install_recorder().context("cannot install the metrics recorder")?;
        METRICS.iter().chain(table).for_each(Metric::register);
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
        // The recorder cannot remove a gauge.
        self.recorder.render().split_inclusive('\n').filter(|line| !line.ends_with(" NaN\n")).collect()
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

    const TABLE: &[Metric] = &[
        Metric::counter("hopline_attempts_total", &[("to", &["a", "b"]), ("by", &["c", "d"])], "Attempts"),
        Metric::counter("hopline_operations_total", &[("operation", &[])], "Operations"),
        Metric::gauge("hopline_lag", &[("partition", &[])], "Lag"),
        Metric::histogram("hopline_insert_seconds", &[0.5, 1.0], &[], "Time of an insert"),
    ];

    fn install() -> Metrics {
        Metrics::install("test", TABLE).unwrap()
    }

    #[test]
    fn a_second_install_shares_the_recorder() {
        let build = format!(r#"hopline_build_info{{service="test",version="{}"}} 1"#, crate::VERSION);
        for text in [install().render(), install().render()] {
            assert!(text.contains(&build), "{text}");
            assert!(text.contains("process_resident_memory_bytes"), "{text}");
        }
    }

    #[test]
    fn counters_and_histograms_exist_from_the_start() {
        let text = install().render();
        for line in [
            "# HELP hopline_attempts_total Attempts\n# TYPE hopline_attempts_total counter\n",
            "hopline_attempts_total{to=\"a\",by=\"c\"} 0\n",
            "hopline_attempts_total{to=\"a\",by=\"d\"} 0\n",
            "hopline_attempts_total{to=\"b\",by=\"c\"} 0\n",
            "hopline_attempts_total{to=\"b\",by=\"d\"} 0\n",
            "# HELP hopline_insert_seconds Time of an insert\n# TYPE hopline_insert_seconds histogram\n",
            "hopline_insert_seconds_bucket{le=\"0.5\"} 0\nhopline_insert_seconds_bucket{le=\"1\"} 0\n",
            "hopline_insert_seconds_count 0\n",
            "hopline_http_connections_refused_total 0\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        assert!(!text.contains("hopline_operations_total"), "the values of its label are not known: {text}");
    }

    #[test]
    fn a_gauge_without_a_known_value_is_left_out() {
        let metrics = install();
        let lag = |partition: &'static str| metrics::gauge!("hopline_lag", "partition" => partition);
        lag("0").set(5.0);
        lag("1").set(7.0);
        lag("1").set(UNKNOWN);
        let text = metrics.render();
        assert!(text.contains("# TYPE hopline_lag gauge\nhopline_lag{partition=\"0\"} 5\n"), "{text}");
        assert!(!text.contains("partition=\"1\""), "{text}");
        lag("1").set(9.0);
        assert!(metrics.render().contains("hopline_lag{partition=\"1\"} 9\n"));
    }
}
