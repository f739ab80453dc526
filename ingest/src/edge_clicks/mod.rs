//! `POST /v1/clicks`: clicks of other redirect edges.
//!
//! The answer comes when Kafka has the accepted items. An item that is sent again has the same click id and goes to
//! the same partition, so it counts once, whatever became of the first try.

mod identity;
mod item;
mod publish;

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use http::{
    HeaderMap, StatusCode,
    header::{AUTHORIZATION, CONTENT_LENGTH},
};
use metrics::{Counter, counter};
use schemas::message::Click;
use serde::Serialize;
use serde_json::Value;
use service::{
    http::{ApiError, Code, Route, json, json_bytes},
    kafka::KafkaConfig,
};
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use warp::{Filter as _, Rejection};

use crate::{
    click::Visit,
    links::{Caller, Presented, Target},
    publish::Partitions,
    redirect::Edge,
};
use identity::Identity;
use item::{Item, Named};
use publish::{Publisher, Unpublished};

/// The most items of one request.
const MAX_ITEMS: usize = 1_000;

/// The most bytes of one request's body.
const BODY_LIMIT: usize = 1024 * 1024;

/// The most bytes of all bodies that are being read or published; further requests are refused for now.
const IN_FLIGHT: usize = 32 * BODY_LIMIT;

/// What a small body counts for, so that many of them are bounded too.
const LEAST_BYTES: usize = 4 * 1024;

/// How long a request may take after its body is there; more than the steps within, which end by themselves.
const DEADLINE: Duration = Duration::from_secs(8);

/// When a refused request may be sent again.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// What the endpoint needs.
#[derive(Debug)]
pub struct EdgeClicks {
    edge: Arc<Edge>,
    /// From when on the first key signs; see [`Identity::click_id`].
    key_since: Option<DateTime<Utc>>,
    publisher: Publisher,
    in_flight: Arc<Semaphore>,
    counts: Counts,
}

/// Counters of items.
struct Counts {
    accepted: Counter,
    rejected: Counter,
    unknown: Counter,
}

impl std::fmt::Debug for Counts {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Counts").finish_non_exhaustive()
    }
}

/// The body of an answer.
#[derive(Debug, Serialize)]
struct Results {
    results: Vec<ItemResult>,
}

/// What became of an item.
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
    /// There is no such link, as far as the caller may know.
    Unknown {
        code: &'static str,
        message: &'static str,
    },
}

impl EdgeClicks {
    /// Prepares the endpoint; visits become clicks by the rules of `edge`.
    ///
    /// # Errors
    /// When the producer's settings are refused.
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
            in_flight: Arc::new(Semaphore::new(IN_FLIGHT)),
            counts: Counts {
                accepted: count("accepted"),
                rejected: count("rejected"),
                unknown: count("unknown"),
            },
        })
    }

    /// Says who calls. Every token that is not to be used gets the same answer.
    fn caller(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let refused = || ApiError::unauthorized("A valid edge token is required, as Authorization: Bearer.");
        let token = bearer(headers).ok_or_else(refused)?;
        let links = &self.edge.links;
        match links.token(&Sha256::digest(token).into()) {
            Presented::Valid(caller) => Ok(caller),
            // Who is sent away for good must not be one of whom this edge has merely not heard yet.
            Presented::Unknown if !links.is_caught_up() => Err(starting()),
            Presented::Unknown | Presented::Revoked => Err(refused()),
        }
    }

    /// Sets a body's bytes aside before any of it is read.
    fn room(&self, headers: &HeaderMap) -> Result<OwnedSemaphorePermit, ApiError> {
        let announced = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let bytes = announced.unwrap_or(BODY_LIMIT).clamp(LEAST_BYTES, BODY_LIMIT) as u32;
        Arc::clone(&self.in_flight)
            .try_acquire_many_owned(bytes)
            .map_err(|_| busy("Too many clicks are in flight"))
    }

    /// Takes a request's items.
    async fn take(&self, caller: Caller, body: &[u8]) -> Result<Results, ApiError> {
        let items = items(body)?;
        // An item of a link that is yet to be heard of would be lost as unknown.
        if !self.edge.links.is_caught_up() {
            return Err(starting());
        }
        let now = Utc::now();
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
            .map_err(|error: Unpublished| busy("Kafka does not take clicks").with_source(error))?;
        for result in &results {
            match &result.outcome {
                Outcome::Accepted { .. } => self.counts.accepted.increment(1),
                Outcome::Rejected { .. } => self.counts.rejected.increment(1),
                Outcome::Unknown { .. } => self.counts.unknown.increment(1),
            }
        }
        Ok(Results { results })
    }

    /// Finds a link that the caller may name. Whether it redirects now does not matter: it did when it was visited.
    fn target(&self, caller: Caller, link: &Named) -> Option<Arc<Target>> {
        let links = &self.edge.links;
        let target = match link {
            Named::Slug(slug) => links.find(slug),
            Named::Id(id) => links.find_by_id(*id),
        };
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

    /// Makes the click of a visit as if it had come here.
    fn click(&self, item: &Item, target: &Target, click_id: String) -> Click {
        let slug = match &item.link {
            Named::Slug(slug) => slug,
            Named::Id(_) => target.slug(),
        };
        let visit = Visit {
            slug,
            query: item.query.as_deref(),
            user_agent: item.user_agent.as_bytes(),
            referrer: item.referrer.as_bytes(),
            // An edge sends what was visited; what it was for, and what the visitor asked for, it has to heed itself.
            purpose: b"",
            asks_for_privacy: false,
            address: item.address,
            at: item.occurred_at,
        };
        let click = self.edge.clicks.click(&visit, target, click_id);
        // Nobody can tell whether this is the first try.
        Click { again: true, ..click }
    }
}

/// Builds the endpoint's route.
pub fn route(clicks: &Arc<EdgeClicks>) -> Route {
    let with = |clicks: &Arc<EdgeClicks>| {
        let clicks = Arc::clone(clicks);
        warp::any().map(move || Arc::clone(&clicks))
    };
    let caller = with(clicks).and(warp::header::headers_cloned()).and_then(
        async |clicks: Arc<EdgeClicks>, headers: HeaderMap| {
            clicks.caller(&headers).map_err(warp::reject::custom)
        },
    );
    let room = with(clicks).and(warp::header::headers_cloned()).and_then(
        async |clicks: Arc<EdgeClicks>, headers: HeaderMap| {
            clicks.room(&headers).map_err(warp::reject::custom)
        },
    );
    warp::path!("v1" / "clicks")
        .and(warp::post())
        .and(with(clicks))
        // In this order: a stranger's body is not read, and none is read for which there is no room.
        .and(caller)
        .and(room)
        .and(json_bytes(BODY_LIMIT))
        .and_then(async |clicks: Arc<EdgeClicks>, caller: Caller, room: OwnedSemaphorePermit, body: Bytes| {
            let taken = clicks.take(caller, &body).await;
            drop(room);
            let results = taken.map_err(warp::reject::custom)?;
            Ok::<_, Rejection>(json(StatusCode::ACCEPTED, &results))
        })
        .boxed()
}

/// Reads the items of a body: one object, or an array of 1 to 1,000.
fn items(body: &[u8]) -> Result<Vec<Value>, ApiError> {
    let items = match serde_json::from_slice(body) {
        Ok(Value::Array(items)) => items,
        Ok(item @ Value::Object(_)) => vec![item],
        Ok(_) => return Err(ApiError::bad_request("The body must be a click or an array of clicks.")),
        Err(_) => return Err(ApiError::bad_request("The body is not valid JSON.")),
    };
    if items.is_empty() || items.len() > MAX_ITEMS {
        return Err(ApiError::bad_request(format!("An array must have 1 to {MAX_ITEMS} clicks.")));
    }
    Ok(items)
}

/// Returns the token of a request.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
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
    fn a_body_is_one_click_or_some() {
        assert_eq!(items(b"{}").unwrap().len(), 1);
        assert_eq!(items(b" [{}, 7]").unwrap().len(), 2);
        let many = |count| format!("[{}]", vec!["{}"; count].join(","));
        assert_eq!(items(many(1_000).as_bytes()).unwrap().len(), 1_000);
        for refused in ["", "[]", "7", "null", "\"a\"", "{", "[{}", "[{}] x", &many(1_001)] {
            assert_eq!(items(refused.as_bytes()).unwrap_err().status(), 400, "{refused}");
        }
    }

    #[test]
    fn a_token_stands_behind_bearer() {
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
