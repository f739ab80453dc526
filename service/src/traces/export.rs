//! Sends spans to the collector, in batches.

use std::time::Duration;

use anyhow::Context as _;
use metrics::{Counter, counter};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message as _;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, Url, redirect};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::config::{Headers, TraceConfig};
use super::tracer::{Tracer, attribute};
use crate::Shutdown;

/// Spans that wait for the collector. Further ones are dropped.
const QUEUE: usize = 4_096;

/// Maximum spans of a request.
const BATCH: usize = 512;

/// How often queued spans are sent.
const INTERVAL: Duration = Duration::from_secs(1);

/// How long the collector may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long sending the last spans may take at the end of the process.
const FLUSH: Duration = Duration::from_secs(1);

/// How long before the shutdown deadline the flush ends at the latest.
const CLOSING: Duration = Duration::from_millis(200);

/// Starts sending to the configured collector. Without one, the returned tracer traces nothing.
///
/// An unreachable collector is no error: spans are then dropped and counted.
///
/// # Errors
/// When the HTTP client cannot be created.
pub fn start(config: &TraceConfig, service: &'static str) -> anyhow::Result<(Tracer, Exporter)> {
    let Some(url) = config.otlp_endpoint.clone() else { return Ok((Tracer::default(), Exporter(None))) };
    crate::process::install_crypto();
    // The collector's headers may be secret, so that no redirect may lead elsewhere.
    let client = Client::builder()
        .redirect(redirect::Policy::none())
        .timeout(TIMEOUT)
        .build()
        .context("cannot create the client of the collector of traces")?;
    let outcome = |outcome| counter!("hopline_trace_spans_total", "outcome" => outcome);
    let (sent, dropped) = (outcome("sent"), outcome("dropped"));
    let (spans, queue) = channel(QUEUE);
    let collector = Collector {
        client,
        url,
        headers: config.otlp_headers.clone().unwrap_or_default(),
        resource: resource(service),
        sent,
        dropped: dropped.clone(),
        is_failing: false,
    };
    let stop = CancellationToken::new();
    let task = tokio::spawn(collector.run(queue, stop.clone()));
    Ok((Tracer::new(config.trace_ratio, spans, dropped), Exporter(Some(Task { stop, task }))))
}

/// The task that sends spans. It also ends when all tracers are dropped.
#[derive(Debug)]
#[must_use]
pub struct Exporter(Option<Task>);

#[derive(Debug)]
struct Task {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Exporter {
    /// Sends the queued spans, for a second at most, and ends. Later spans are dropped.
    pub async fn finish(self, shutdown: &Shutdown) {
        let Self(Some(Task { stop, mut task })) = self else { return };
        stop.cancel();
        let left = shutdown.deadline().map_or(FLUSH, |deadline| deadline - Instant::now());
        if timeout(left.saturating_sub(CLOSING).min(FLUSH), &mut task).await.is_err() {
            task.abort();
        }
    }
}

/// The collector, and what to send with each request.
struct Collector {
    client: Client,
    url: Url,
    headers: Headers,
    resource: Resource,
    sent: Counter,
    dropped: Counter,
    /// Whether it did not take the last batch.
    is_failing: bool,
}

impl Collector {
    async fn run(mut self, mut queue: Receiver<Span>, stop: CancellationToken) {
        let mut is_last = false;
        while !is_last {
            tokio::select! {
                () = sleep(INTERVAL) => is_last = queue.is_closed(),
                () = stop.cancelled() => is_last = true,
            }
            while !queue.is_empty() {
                let mut batch = Vec::new();
                queue.recv_many(&mut batch, BATCH).await;
                self.send(batch).await;
            }
        }
    }

    async fn send(&mut self, spans: Vec<Span>) {
        let count = spans.len() as u64;
        match self.request(spans).await {
            Ok(()) => {
                self.sent.increment(count);
                if std::mem::replace(&mut self.is_failing, false) {
                    tracing::info!("the collector of traces takes spans again");
                }
            }
            Err(error) => {
                self.dropped.increment(count);
                if !std::mem::replace(&mut self.is_failing, true) {
                    let error = anyhow::Error::new(error.without_url());
                    tracing::warn!("spans are dropped until the collector of traces takes them: {error:#}");
                }
            }
        }
    }

    async fn request(&self, spans: Vec<Span>) -> reqwest::Result<()> {
        let spans = ScopeSpans { spans, ..ScopeSpans::default() };
        let spans = ResourceSpans {
            resource: Some(self.resource.clone()),
            scope_spans: vec![spans],
            ..ResourceSpans::default()
        };
        let request = ExportTraceServiceRequest { resource_spans: vec![spans] };
        self.client
            .post(self.url.clone())
            .headers(self.headers.0.clone())
            .header(CONTENT_TYPE, "application/x-protobuf")
            .body(request.encode_to_vec())
            .send()
            .await?
            .error_for_status()
            .map(drop)
    }
}

/// Describes the sender of spans.
fn resource(service: &str) -> Resource {
    let text = |key, value: &str| attribute(key, Value::StringValue(value.to_owned()));
    Resource {
        attributes: vec![
            text("service.namespace", "hopline"),
            text("service.name", service),
            text("service.version", crate::VERSION),
        ],
        ..Resource::default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use clap::Parser;
    use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::{TcpListener, TcpStream};

    use super::super::tracer::Kind;
    use super::*;
    use crate::metrics::Metrics;

    #[derive(Debug, Parser)]
    struct Sample {
        #[command(flatten)]
        traces: TraceConfig,
    }

    fn started(arguments: &[&str]) -> (Tracer, Exporter) {
        let arguments = [&["sample"], arguments].concat();
        start(&Sample::parse_from(arguments).traces, "test").unwrap()
    }

    /// Starts a tracer of everything with a collector that listens here.
    fn started_with(listener: &TcpListener) -> (Tracer, Exporter) {
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        started(&["--otlp-endpoint", &endpoint, "--trace-ratio", "1"])
    }

    fn record(tracer: &Tracer) {
        tracer.trace("id").unwrap().root("span", Kind::Internal, SystemTime::now()).end();
    }

    /// Answers the next request of a connection, and returns its spans.
    async fn spans(connection: &mut BufReader<TcpStream>) -> usize {
        let (mut line, mut length) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            assert!(connection.read_line(&mut line).await.unwrap() > 0, "the connection ended");
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        connection.read_exact(&mut body).await.unwrap();
        connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        let request = ExportTraceServiceRequest::decode(&*body).unwrap();
        request
            .resource_spans
            .iter()
            .flat_map(|group| &group.scope_spans)
            .map(|scope| scope.spans.len())
            .sum()
    }

    #[tokio::test]
    async fn nothing_is_traced_without_an_endpoint() {
        let (tracer, exporter) = started(&["--trace-ratio", "1"]);
        assert!(!tracer.is_on() && tracer.trace("id").is_none());
        exporter.finish(&Shutdown::new(Duration::ZERO)).await;
    }

    #[tokio::test]
    async fn waiting_spans_are_sent_in_batches_before_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (tracer, exporter) = started_with(&listener);
        (0..=BATCH).for_each(|_| record(&tracer));
        let collector = tokio::spawn(async move {
            let mut connection = BufReader::new(listener.accept().await.unwrap().0);
            (spans(&mut connection).await, spans(&mut connection).await)
        });
        exporter.finish(&Shutdown::new(Duration::ZERO)).await;
        let received = timeout(TIMEOUT, collector).await.expect("all spans were sent").unwrap();
        assert_eq!(received, (BATCH, 1));
    }

    #[tokio::test]
    async fn a_silent_collector_delays_neither_a_span_nor_the_end() {
        let metrics = Metrics::install("test", &[]).unwrap();
        // Connections wait in its backlog.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (tracer, exporter) = started_with(&listener);
        (0..QUEUE + 7).for_each(|_| record(&tracer));
        let dropped = r#"hopline_trace_spans_total{outcome="dropped"} 7"#;
        assert!(metrics.render().contains(dropped), "{}", metrics.render());
        let began = Instant::now();
        let shutdown = Shutdown::new(Duration::from_secs(60));
        shutdown.request();
        exporter.finish(&shutdown).await;
        assert!(began.elapsed() < TIMEOUT / 2);

        let (tracer, exporter) = started_with(&listener);
        record(&tracer);
        let shutdown = Shutdown::new(Duration::ZERO);
        shutdown.request();
        timeout(FLUSH / 2, exporter.finish(&shutdown)).await.expect("the deadline has passed");
    }
}
