//! A trace follows a click from the edge to its row and to its receiver, and never delays it.

use std::collections::BTreeSet;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message as _;
use sha2::{Digest as _, Sha256};
use tests::deployment::{BROWSER, Deployment};
use tests::engines::{http_client, isolated};
use tests::receiver::{Answer, Receiver};
use tests::signals::stop;
use tests::{eventually, free_address, metric};

use crate::traffic::Traffic;

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const RATIO: &str = "OTEL_TRACES_SAMPLER_ARG";

#[tokio::test(flavor = "multi_thread")]
async fn one_trace_has_all_spans_of_a_click_and_continues_at_its_receiver() {
    let collector = Receiver::start(|_, _| Answer::Status(200)).await;
    // The first attempt of the click's delivery fails.
    let receiver = Receiver::start(|request, number| {
        Answer::Status(if request.path == "/clicks" && number == 0 { 503 } else { 200 })
    })
    .await;
    let variables = [
        (ENDPOINT, &*collector.url("/otlp")),
        (RATIO, "1"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc"),
    ];
    let deployment = Deployment::start_on(isolated().await, &variables).await;
    let endpoint = deployment.create_endpoint(&receiver.url("/clicks"), &["click.created"]).await;
    deployment.create_endpoint(&receiver.url("/links"), &["link.created"]).await;
    let mut traffic = Traffic::on_links(&deployment, 1, 1).await;
    assert!(traffic.click(&deployment).await);
    let click_id = traffic.click_ids().into_iter().next().unwrap().to_owned();

    let (trace, root) = ids_of(&click_id);
    let spans = spans_of(&collector, &trace, 6).await;
    let [redirect, publish, insert, enqueue, failed, delivered] =
        ["redirect", "publish", "insert", "enqueue", "deliver 1", "deliver 2"]
            .map(|name| named(&spans, name));
    assert_eq!((redirect.id(), redirect.parent()), (root.clone(), String::new()));
    for (span, service) in [
        (redirect, "ingest"),
        (publish, "ingest"),
        (insert, "processor"),
        (enqueue, "dispatcher"),
        (failed, "dispatcher"),
        (delivered, "dispatcher"),
    ] {
        assert_eq!(span.service, service, "{}", span.name);
        assert!(span.name == "redirect" || span.parent() == root, "{} has another parent", span.name);
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano, "{} ends too early", span.name);
    }
    assert_eq!(spans.iter().map(Seen::id).collect::<BTreeSet<_>>().len(), 6, "ids are distinct");

    let link = deployment.show_link(traffic.link_ids().next().unwrap()).await;
    assert_eq!(redirect.attribute("hopline.link.id"), link["id"].as_str().unwrap());
    assert_eq!(redirect.attribute("hopline.click.class"), "human");
    assert_eq!(redirect.attribute("http.response.status_code"), "302");
    let query = format!("SELECT koff FROM clicks WHERE click_id = '{click_id}'");
    let offset = deployment.engines.clickhouse(&query).await;
    let partition = insert.attribute("messaging.destination.partition.id");
    for span in [publish, insert] {
        assert_eq!(span.attribute("messaging.kafka.offset"), offset.trim(), "{}", span.name);
        assert_eq!(span.attribute("messaging.destination.partition.id"), partition, "{}", span.name);
    }
    for span in [enqueue, failed, delivered] {
        assert_eq!(span.attribute("hopline.endpoint.id"), endpoint["id"].as_str().unwrap());
    }
    assert_eq!(failed.attribute("http.response.status_code"), "503");
    assert_eq!(delivered.attribute("http.response.status_code"), "200");
    let is_failed =
        |span: &Seen| span.status.as_ref().is_some_and(|status| status.code == StatusCode::Error as i32);
    assert!(is_failed(failed) && !is_failed(delivered));

    let requests = receiver.requests();
    let attempts: Vec<_> = requests.iter().filter(|request| request.path == "/clicks").collect();
    for (request, span) in attempts.iter().zip([failed, delivered]) {
        assert_eq!(request.header("traceparent"), format!("00-{trace}-{}-01", span.id()));
        assert!(request.is_signed_with(endpoint["secret"].as_str().unwrap()));
    }

    // An event that is not a click has a separate trace, by the delivery's id.
    let request = requests.iter().find(|request| request.path == "/links").unwrap();
    let (trace, root) = ids_of(request.delivery());
    let spans = spans_of(&collector, &trace, 2).await;
    let [enqueue, deliver] = ["enqueue", "deliver 1"].map(|name| named(&spans, name));
    assert_eq!((enqueue.id(), enqueue.parent(), deliver.parent()), (root.clone(), String::new(), root));
    assert_eq!(request.header("traceparent"), format!("00-{trace}-{}-01", deliver.id()));

    for request in collector.requests() {
        assert_eq!((&*request.path, request.header("authorization")), ("/otlp/v1/traces", "Bearer abc"));
        let body = String::from_utf8_lossy(&request.body);
        for private in ["198.51.", BROWSER, "example.com", &click_id] {
            assert!(!body.contains(private), "{private} is in a span");
        }
    }
    for service in ["ingest", "processor", "dispatcher"] {
        assert!(!deployment.log(service).contains("Bearer"), "the headers are in {service}'s log");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clicks_of_external_edges_have_a_root_span_too() {
    let collector = Receiver::start(|_, _| Answer::Status(200)).await;
    let variables = [(ENDPOINT, &*collector.url("")), (RATIO, "1")];
    let deployment = Deployment::start_on(isolated().await, &variables).await;
    let traffic = Traffic::on_links(&deployment, 1, 1).await;
    let token = deployment.admin(&["create-edge-token"]).await;
    let item = serde_json::json!({
        "slug": traffic.slugs().next().unwrap(),
        "occurred_at": chrono::Utc::now().to_rfc3339(),
        "ip": "198.51.100.7",
        "user_agent": BROWSER,
        "event_id": "e-1",
    });
    let answer: serde_json::Value = eventually("the edge knows the token", async || {
        let request = http_client()
            .post(format!("{}/v1/clicks", deployment.edge_url()))
            .bearer_auth(token["edge_token"].as_str().unwrap())
            .json(&item);
        let answer = request.send().await.unwrap();
        if answer.status() == 202 { Ok(answer.json().await.unwrap()) } else { Err(answer.status()) }
    })
    .await;
    let (trace, root) = ids_of(answer["results"][0]["click_id"].as_str().unwrap());
    let spans = spans_of(&collector, &trace, 2).await;
    let [accept, insert] =
        ["accept", "insert"].map(|name| spans.iter().find(|span| span.name == name).unwrap());
    assert_eq!((accept.id(), accept.parent(), insert.parent()), (root.clone(), String::new(), root));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_collector_costs_spans_and_one_line_in_the_log() {
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    let variables = [(ENDPOINT, &*format!("http://{}", free_address())), (RATIO, "1")];
    let deployment = Deployment::start_on(isolated().await, &variables).await;
    deployment.create_endpoint(&receiver.url("/in"), &["click.created"]).await;
    let mut traffic = Traffic::on_links(&deployment, 2, 5).await;
    for (service, program) in [
        (&deployment.ingest, "ingest"),
        (&deployment.processor, "processor"),
        (&deployment.dispatcher, "dispatcher"),
    ] {
        let mut dropped = BTreeSet::new();
        eventually("several batches are dropped", async || {
            assert!(traffic.click(&deployment).await);
            let spans = metric(service.url(), "hopline_trace_spans_total{outcome=\"dropped\"}").await;
            dropped.insert(spans as u64);
            if dropped.len() > 3 { Ok(()) } else { Err(dropped.clone()) }
        })
        .await;
        assert_eq!(deployment.log(program).matches("spans are dropped").count(), 1, "{program}");
    }
    traffic.is_counted(&deployment).await;
    eventually("every click is delivered", async || match receiver.deliveries() {
        delivered if delivered == traffic.answered() => Ok(()),
        delivered => Err(delivered),
    })
    .await;
    for service in [&deployment.ingest, &deployment.processor, &deployment.dispatcher] {
        stop(service).await;
    }
}

/// A span, and the service that recorded it.
#[derive(Debug, Clone)]
struct Seen {
    service: String,
    span: Span,
}

impl std::ops::Deref for Seen {
    type Target = Span;

    fn deref(&self) -> &Span {
        &self.span
    }
}

impl Seen {
    fn id(&self) -> String {
        hex(&self.span_id)
    }

    fn parent(&self) -> String {
        hex(&self.parent_span_id)
    }

    fn attribute(&self, key: &str) -> String {
        text(&self.attributes, key)
    }
}

/// Returns the only span with this name, which may be followed by the number of an attempt.
fn named<'a>(spans: &'a [Seen], name: &str) -> &'a Seen {
    let is_named = |span: &&Seen| match name.split_once(' ') {
        Some((name, attempt)) => span.name == name && span.attribute("hopline.delivery.attempt") == attempt,
        None => span.name == name,
    };
    let found: Vec<&Seen> = spans.iter().filter(is_named).collect();
    assert_eq!(found.len(), 1, "{name}: {spans:#?}");
    found[0]
}

/// Waits until the collector has this many spans of a trace, and asserts that it has no others.
async fn spans_of(collector: &Receiver, trace: &str, count: usize) -> Vec<Seen> {
    let spans = eventually("the collector gets the trace", async || {
        let spans: Vec<Seen> = collector.requests().iter().flat_map(|request| seen(&request.body)).collect();
        let spans: Vec<Seen> = spans.into_iter().filter(|span| hex(&span.trace_id) == trace).collect();
        if spans.len() >= count { Ok(spans) } else { Err(spans) }
    })
    .await;
    assert_eq!(spans.len(), count, "{spans:#?}");
    spans
}

fn seen(body: &[u8]) -> Vec<Seen> {
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    let spans = request.resource_spans.into_iter().flat_map(|group| {
        let service = text(&group.resource.unwrap().attributes, "service.name");
        let spans = group.scope_spans.into_iter().flat_map(|scope| scope.spans);
        spans.map(move |span| Seen { service: service.clone(), span })
    });
    spans.collect()
}

/// Returns an attribute as text.
fn text(attributes: &[KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == key);
    match found.and_then(|attribute| attribute.value.clone()?.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("{key}: {other:?}"),
    }
}

/// Returns the ids of the trace of a click or delivery and of its root span, as docs/guides/monitoring.md describes.
fn ids_of(id: &str) -> (String, String) {
    let digest = hex(&Sha256::digest(id));
    (digest[..32].to_owned(), digest[32..48].to_owned())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
