//! The spans of a delivery: in the trace of its click, or for other events in a trace of its own.

use std::borrow::Cow;
use std::time::SystemTime;

use serde::Deserialize;
use service::traces::{Kind, Span, Trace, Tracer};
use uuid::Uuid;

use crate::attempt::{Claimed, ErrorClass};
use crate::store::NewDelivery;

/// Traces a delivery that was inserted, from its event's record on.
pub(crate) fn enqueued(tracer: &Tracer, delivery: &NewDelivery) {
    let NewDelivery { delivery_id, endpoint_id, event, body, accepted_at, .. } = delivery;
    let Some((trace, is_click)) = trace(tracer, *delivery_id, body.as_bytes()) else { return };
    let (kind, since) = (Kind::Consumer, SystemTime::from(*accepted_at));
    let span =
        if is_click { trace.child("enqueue", kind, since) } else { trace.root("enqueue", kind, since) };
    span.text("hopline.delivery.id", delivery_id)
        .text("hopline.endpoint.id", endpoint_id)
        .text("hopline.event", event)
        .end();
}

/// Begins the span of an attempt; `None` when its delivery is not traced.
pub(crate) fn attempt(tracer: &Tracer, delivery: &Claimed) -> Option<Span> {
    let (trace, _) = trace(tracer, delivery.delivery_id, &delivery.body)?;
    let span = trace
        .child("deliver", Kind::Client, SystemTime::now())
        .text("hopline.delivery.id", delivery.delivery_id)
        .text("hopline.endpoint.id", delivery.endpoint_id)
        .number("hopline.delivery.attempt", delivery.attempt);
    Some(span)
}

/// Ends the span of an attempt with the receiver's status, or why there is none.
pub(crate) fn answered(span: Span, answer: Result<u16, ErrorClass>) {
    match answer {
        Ok(status) => {
            let span = span.number("http.response.status_code", status);
            if (200..300).contains(&status) { span } else { span.failed(status) }
        }
        Err(class) => span.failed(class.as_str()),
    }
    .end();
}

/// Returns the trace of a delivery, if it is traced, and whether it is that of a click, which has a root span already.
///
/// The body is all that is stored of an event, so the click's id comes from there.
fn trace(tracer: &Tracer, delivery_id: Uuid, body: &[u8]) -> Option<(Trace, bool)> {
    if !tracer.is_on() {
        return None;
    }
    match click_id(body) {
        Some(id) => Some((tracer.trace(&id)?, true)),
        None => Some((tracer.trace(&delivery_id.to_string())?, false)),
    }
}

fn click_id(body: &[u8]) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct Body<'a> {
        #[serde(borrow)]
        data: Data<'a>,
    }
    #[derive(Deserialize)]
    struct Data<'a> {
        #[serde(borrow)]
        click_id: Option<Cow<'a, str>>,
    }
    serde_json::from_slice::<Body<'_>>(body).ok()?.data.click_id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clicks_body_has_a_click_id() {
        let body = |data: &str| format!(r#"{{"id":"1","event":"e","created_at":"now","data":{data}}}"#);
        let click = body(r#"{"link_id":"l","slug":"s","click_id":"AQ\u0047x","class":"human"}"#);
        assert_eq!(click_id(click.as_bytes()).as_deref(), Some("AQGx"));
        for other in [&body(r#"{"link_id":"l","slug":"s"}"#), &body("null"), "", "{"] {
            assert_eq!(click_id(other.as_bytes()), None, "{other}");
        }
    }
}
