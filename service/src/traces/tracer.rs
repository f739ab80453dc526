//! Traces and their spans, as the services record them.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use metrics::Counter;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
pub use opentelemetry_proto::tonic::trace::v1::span::SpanKind as Kind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span as Message, Status};
use tokio::sync::mpsc::Sender;

use super::ids::{Ids, Ratio};

/// Bit of `traceparent` and of a span's flags: the trace is recorded.
const SAMPLED: u8 = 1;

/// Chooses what is traced. Clones share one queue. The default traces nothing.
#[derive(Debug, Clone, Default)]
pub struct Tracer(Option<Arc<Queue>>);

/// The way to the collector.
#[derive(Debug)]
struct Queue {
    ratio: Ratio,
    spans: Sender<Message>,
    /// Counts the spans that the queue had no room for.
    dropped: Counter,
}

impl Tracer {
    pub(super) fn new(ratio: Ratio, spans: Sender<Message>, dropped: Counter) -> Self {
        Self(Some(Arc::new(Queue { ratio, spans, dropped })))
    }

    /// Returns whether anything may be traced.
    #[must_use]
    #[inline]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the trace of the click or event with this id, if it is traced.
    #[must_use]
    #[inline]
    pub fn trace(&self, id: &str) -> Option<Trace> {
        self.0.as_ref().and_then(|queue| Trace::chosen(queue, id))
    }
}

/// A trace that is recorded.
#[derive(Debug, Clone)]
pub struct Trace {
    queue: Arc<Queue>,
    ids: Ids,
}

impl Trace {
    fn chosen(queue: &Arc<Queue>, id: &str) -> Option<Self> {
        let ids = Ids::of(id);
        queue.ratio.includes(ids).then(|| Self { queue: Arc::clone(queue), ids })
    }

    /// Begins the root span.
    pub fn root(&self, name: &'static str, kind: Kind, start: SystemTime) -> Span {
        self.span(name, kind, start, self.ids.root, &[])
    }

    /// Begins a child of the root span, which another service may have recorded.
    pub fn child(&self, name: &'static str, kind: Kind, start: SystemTime) -> Span {
        self.span(name, kind, start, rand::random::<u64>().max(1), &self.ids.root.to_be_bytes())
    }

    fn span(&self, name: &'static str, kind: Kind, start: SystemTime, id: u64, parent: &[u8]) -> Span {
        let message = Message {
            trace_id: self.ids.trace.to_be_bytes().into(),
            span_id: id.to_be_bytes().into(),
            parent_span_id: parent.into(),
            flags: SAMPLED.into(),
            name: name.to_owned(),
            kind: kind.into(),
            start_time_unix_nano: nanoseconds(start),
            ..Message::default()
        };
        Span { queue: Arc::clone(&self.queue), message }
    }
}

/// A span that has begun. It is recorded when it ends, and not if it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Span {
    queue: Arc<Queue>,
    message: Message,
}

impl Span {
    /// Returns the header `traceparent` for a request, whose receiver continues the trace below this span.
    #[must_use]
    pub fn traceparent(&self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        format!("00-{}-{}-{SAMPLED:02x}", hex(&self.message.trace_id), hex(&self.message.span_id))
    }

    /// Adds a text.
    pub fn text(self, key: &str, value: impl fmt::Display) -> Self {
        self.attribute(key, Value::StringValue(value.to_string()))
    }

    /// Adds a number.
    pub fn number(self, key: &str, value: impl TryInto<i64>) -> Self {
        self.attribute(key, Value::IntValue(value.try_into().unwrap_or(i64::MAX)))
    }

    /// Marks the span as failed.
    pub fn failed(mut self, reason: impl fmt::Display) -> Self {
        self.message.status = Some(Status { code: StatusCode::Error.into(), message: reason.to_string() });
        self
    }

    fn attribute(mut self, key: &str, value: Value) -> Self {
        self.message.attributes.push(attribute(key, value));
        self
    }

    /// Ends the span now and queues it for the collector. Never waits: it is dropped and counted when the queue is
    /// full.
    pub fn end(mut self) {
        self.message.end_time_unix_nano = nanoseconds(SystemTime::now());
        if self.queue.spans.try_send(self.message).is_err() {
            self.queue.dropped.increment(1);
        }
    }
}

/// Returns an attribute of a span or a resource.
pub(super) fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
