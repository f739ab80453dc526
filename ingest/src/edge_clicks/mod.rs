//! `POST /v1/clicks`: accepts clicks from external redirect edges.
//!
//! Answers once Kafka has the accepted items. An item that is sent again gets the same click id and partition, so it
//! counts once.

mod identity;
mod item;
mod publish;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use http::header::{AUTHORIZATION, CONTENT_LENGTH};
use http::{HeaderMap, StatusCode};
use metrics::{Counter, counter};
use schemas::message::Click;
use serde::Serialize;
use serde_json::Value;
use service::http::route::methods;
use service::http::{ApiError, Code, Route, check_no_query, invalid_json, json, json_bytes};
use service::kafka::KafkaConfig;
use sha2::{Digest as _, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use warp::{Filter as _, Rejection};

use crate::click::Visit;
use crate::edge_clicks::identity::Identity;
use crate::edge_clicks::item::{Item, LinkRef};
use crate::edge_clicks::publish::{PublishError, Publisher};
use crate::links::{Caller, Target, TokenStatus};
use crate::publish::Partitions;
use crate::redirect::Edge;

/// The maximum number of items in a request.
const MAX_ITEMS: usize = 1_000;

/// The maximum length of a request's body, in bytes.
const BODY_LIMIT: usize = 1024 * 1024;

/// The maximum length of all bodies that are being read or published, in bytes. Further requests are rejected.
const MAX_IN_FLIGHT: usize = 32 * BODY_LIMIT;

/// The minimum that a body counts for, in bytes. Bounds the number of small bodies.
const MIN_PERMIT: usize = 4 * 1024;

/// How long publishing a request's clicks may take; longer than the producer's timeout.
const DEADLINE: Duration = Duration::from_secs(8);

/// The `Retry-After` of a rejected request.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// The state of the endpoint.
#[derive(Debug)]
pub struct EdgeClicks {
    edge: Arc<Edge>,
    /// The time from which the first key signs; see [`Identity::click_id`].
    key_since: Option<DateTime<Utc>>,
    publisher: Publisher,
    in_flight: Arc<Semaphore>,
    counts: Counts,
}

/// Counters of items.
#[derive(Debug)]
struct Counts {
    accepted: Counter,
    rejected: Counter,
    unknown: Counter,
}

/// The body of a response.
#[derive(Debug, Serialize)]
struct Results {
    results: Vec<ItemResult>,
}

/// The result of an item.
#[derive(Debug, Serialize)]
struct ItemResult {
    index: usize,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Debug, Serialize)]
#[serde(tag = "status", rename_all = "lowercase")]
enum Outcome {
    Accepted {
        click_id: String,
    },
    Rejected {
        code: &'static str,
        message: String,
    },
    /// The link does not exist or belongs to a workspace that the caller may not name.
    Unknown {
        code: &'static str,
        message: &'static str,
    },
}

impl EdgeClicks {
    /// Creates the endpoint, which creates clicks with the settings of `edge`.
    ///
    /// # Errors
    /// When the producer's settings are invalid.
    pub fn new(
        edge: &Arc<Edge>,
        key_since: Option<DateTime<Utc>>,
        config: &KafkaConfig,
        partitions: Arc<Partitions>,
    ) -> anyhow::Result<Self> {
        let count = |outcome| counter!("hopline_edge_clicks_total", "outcome" => outcome);
        Ok(Self {
            edge: Arc::clone(edge),
            key_since,
            publisher: Publisher::new(config, partitions)?,
            in_flight: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
            counts: Counts {
                accepted: count("accepted"),
                rejected: count("rejected"),
                unknown: count("unknown"),
            },
        })
    }

    /// Authenticates the caller. All invalid tokens get the same answer.
    fn caller(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let unauthorized =
            || ApiError::unauthorized("A valid edge token is required, as Authorization: Bearer.");
        let token = bearer(headers).ok_or_else(unauthorized)?;
        let links = &self.edge.links;
        match links.token(&Sha256::digest(token).into()) {
            TokenStatus::Valid(caller) => Ok(caller),
            // The token may be valid, but its record has not been read yet.
            TokenStatus::Unknown if !links.is_caught_up() => Err(starting()),
            TokenStatus::Unknown | TokenStatus::Revoked => Err(unauthorized()),
        }
    }

    /// Reserves the memory for a body before it is read.
    fn permit(&self, headers: &HeaderMap) -> Result<OwnedSemaphorePermit, ApiError> {
        let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let bytes = length.unwrap_or(BODY_LIMIT).clamp(MIN_PERMIT, BODY_LIMIT) as u32;
        Arc::clone(&self.in_flight)
            .try_acquire_many_owned(bytes)
            .map_err(|_| busy("Too many clicks are in flight"))
    }

    /// Publishes the valid items of a request.
    async fn accept(&self, caller: Caller, body: &[u8]) -> Result<Results, ApiError> {
        let items = items(body)?;
        // Otherwise items of links that have not been read yet would be rejected as unknown.
        if !self.edge.links.is_caught_up() {
            return Err(starting());
        }
        let (now, traced_since) = (Utc::now(), self.edge.tracer.is_on().then(SystemTime::now));
        let mut clicks: HashMap<String, Click> = HashMap::with_capacity(items.len());
        let mut results = Vec::with_capacity(items.len());
        for (index, item) in items.into_iter().enumerate() {
            let outcome = match Item::read(item, now) {
                Err(error) => {
                    Outcome::Rejected { code: error.code().as_str(), message: error.message().to_owned() }
                }
                Ok(item) => match self.target(caller, &item.link) {
                    None => {
                        Outcome::Unknown { code: Code::NotFound.as_str(), message: "There is no such link." }
                    }
                    Some(target) => {
                        let click_id = self.click_id(caller, &item, &target);
                        clicks
                            .entry(click_id.clone())
                            .or_insert_with(|| self.click(&item, &target, click_id.clone()));
                        Outcome::Accepted { click_id }
                    }
                },
            };
            results.push(ItemResult { index, outcome });
        }
        timeout(DEADLINE, self.publisher.publish(clicks.values()))
            .await
            .map_err(|_| busy("Kafka does not answer in time"))?
            .map_err(|error: PublishError| busy("Kafka does not take clicks").with_source(error))?;
        if let Some(since) = traced_since {
            for click in clicks.values() {
                self.edge.trace("accept", since, click, StatusCode::ACCEPTED.as_u16());
            }
        }
        for result in &results {
            match &result.outcome {
                Outcome::Accepted { .. } => self.counts.accepted.increment(1),
                Outcome::Rejected { .. } => self.counts.rejected.increment(1),
                Outcome::Unknown { .. } => self.counts.unknown.increment(1),
            }
        }
        Ok(Results { results })
    }

    /// Returns a link that the caller may name, even if it is not active: it redirected when it was visited. A blocked
    /// link is unknown.
    fn target(&self, caller: Caller, link: &LinkRef) -> Option<Arc<Target>> {
        let links = &self.edge.links;
        let target = match link {
            LinkRef::Slug(slug) => links.find(slug),
            LinkRef::Id(id) => links.find_by_id(*id),
        };
        let target = target.filter(|target| !target.is_blocked);
        target.filter(|target| caller.workspace_id.is_none_or(|workspace| workspace == target.workspace_id))
    }

    fn click_id(&self, caller: Caller, item: &Item, target: &Target) -> String {
        let identity = Identity {
            edge_token_id: caller.edge_token_id,
            link_id: target.link_id,
            occurred_at: item.occurred_at,
            event_id: &item.event_id,
        };
        identity.click_id(&self.edge.click_ids, self.key_since)
    }

    /// Creates the click like one of a visit to this edge, but always marked as a possible repeat.
    fn click(&self, item: &Item, target: &Target, click_id: String) -> Click {
        let slug = match &item.link {
            LinkRef::Slug(slug) => slug,
            LinkRef::Id(_) => target.slug(),
        };
        let visit = Visit {
            slug,
            query: item.query.as_deref(),
            user_agent: item.user_agent.as_bytes(),
            referrer: item.referrer.as_bytes(),
            // External edges do not send these; they have to respect them themselves.
            purpose: b"",
            asks_for_privacy: false,
            address: item.address,
            at: item.occurred_at,
        };
        let click = self.edge.clicks.click(&visit, target, click_id);
        Click { again: true, ..click }
    }
}

/// Builds the endpoint's route.
pub fn route(clicks: &Arc<EdgeClicks>) -> Route {
    let with_state = |clicks: &Arc<EdgeClicks>| {
        let clicks = Arc::clone(clicks);
        warp::any().map(move || Arc::clone(&clicks))
    };
    let caller = with_state(clicks).and(warp::header::headers_cloned()).and_then(
        async |clicks: Arc<EdgeClicks>, headers: HeaderMap| {
            clicks.caller(&headers).map_err(warp::reject::custom)
        },
    );
    let no_query = warp::query::raw()
        .or(warp::any().map(String::new))
        .unify()
        .and_then(async |query: String| check_no_query(&query).map_err(warp::reject::custom))
        .untuple_one();
    let permit = with_state(clicks).and(warp::header::headers_cloned()).and_then(
        async |clicks: Arc<EdgeClicks>, headers: HeaderMap| {
            clicks.permit(&headers).map_err(warp::reject::custom)
        },
    );
    warp::path!("v1" / "clicks")
        .and(methods("POST"))
        .and(with_state(clicks))
        // In this order, so that a body is read only from an authenticated caller and with a permit.
        .and(caller)
        .and(no_query)
        .and(permit)
        .and(json_bytes(BODY_LIMIT))
        .and_then(
            async |clicks: Arc<EdgeClicks>, caller: Caller, permit: OwnedSemaphorePermit, body: Bytes| {
                let results = clicks.accept(caller, &body).await;
                drop(permit);
                let results = results.map_err(warp::reject::custom)?;
                Ok::<_, Rejection>(json(StatusCode::ACCEPTED, &results))
            },
        )
        .boxed()
}

/// Parses the items of a body: one object, or an array of 1 to 1,000.
fn items(body: &[u8]) -> Result<Vec<Value>, ApiError> {
    let items = match serde_json::from_slice(body) {
        Ok(Value::Array(items)) => items,
        Ok(item @ Value::Object(_)) => vec![item],
        Ok(_) => return Err(ApiError::bad_request("The body must be a click or an array of clicks.")),
        Err(fault) => return Err(invalid_json(body, &fault)),
    };
    if items.is_empty() || items.len() > MAX_ITEMS {
        return Err(ApiError::bad_request(format!("An array must have 1 to {MAX_ITEMS} clicks.")));
    }
    Ok(items)
}

/// Returns the token of `Authorization: Bearer`; different ones count as none.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let first = values.next().filter(|first| values.all(|other| other == first))?;
    let (scheme, token) = first.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

fn busy(message: &str) -> ApiError {
    ApiError::new(Code::Unavailable, format!("{message}. Send the same items again."))
        .with_retry_after(RETRY_AFTER)
}

fn starting() -> ApiError {
    busy("This edge has not read all links yet")
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_body_is_one_click_or_an_array() {
        assert_eq!(items(b"{}").unwrap().len(), 1);
        assert_eq!(items(b" [{}, 7]").unwrap().len(), 2);
        let many = |count| format!("[{}]", vec!["{}"; count].join(","));
        assert_eq!(items(many(1_000).as_bytes()).unwrap().len(), 1_000);
        for invalid in ["", "[]", "7", "null", "\"a\"", "{", "[{}", "[{}] x", &many(1_001)] {
            assert_eq!(items(invalid.as_bytes()).unwrap_err().status(), 400, "{invalid}");
        }
        let fault = items(b"[{\"ip\":\"192.0.2.7\",}]").unwrap_err();
        assert_eq!(
            fault.message(),
            "The body is not valid JSON in line 1, column 20: a comma has nothing behind it."
        );
    }

    #[test]
    fn the_token_follows_bearer() {
        let token = |value: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_bytes(value).unwrap());
            bearer(&headers).map(<[u8]>::to_vec)
        };
        assert_eq!(token(b"Bearer abc"), Some(b"abc".to_vec()));
        assert_eq!(token(b"bearer  \xff "), Some(b"\xff".to_vec()));
        for none in [&b"Basic abc"[..], b"abc", b"", b"Bearer"] {
            assert_eq!(token(none), None);
        }
        assert_eq!(bearer(&HeaderMap::new()), None);
    }
}
