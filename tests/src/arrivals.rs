//! Compares the clicks that were answered with the deliveries that arrived at a webhook endpoint.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::{Duration, SystemTime};

use schemas::message::delivery_id;

use crate::load::Log;
use crate::receiver::Request;

/// Maximum deliveries of one endpoint that a dispatcher has claimed, and so the most that are in flight or ended but
/// not written when it is killed: 32 requests and those claimed ahead.
pub const CLAIMED: usize = 8 * 32;

/// A kill or an outage, during which answers may be lost.
#[derive(Debug, Clone, Copy)]
pub struct Interruption {
    /// The time just before it.
    pub began: SystemTime,
    /// When the killed process had ended, or the engine was back.
    pub ended: SystemTime,
}

impl Interruption {
    /// Records the time of `what`.
    pub async fn of(what: impl Future<Output = ()>) -> Self {
        let began = SystemTime::now();
        what.await;
        Self { began, ended: SystemTime::now() }
    }
}

/// Why a delivery was sent again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reasons {
    /// An interruption followed the request, so its outcome may have been lost.
    pub interrupted: usize,
    /// Of these, requests that arrived during an interruption.
    pub meanwhile: usize,
    /// The failure log has the attempt: it failed or timed out.
    pub logged: usize,
    /// The request was not answered, and its sender logged nothing, because it died.
    pub unanswered: usize,
}

/// The requests at a receiver, compared with a log of answered clicks.
#[derive(Debug)]
pub struct Arrivals {
    /// Clicks that were answered.
    pub answered: usize,
    /// Deliveries that arrived at least once.
    pub arrived: usize,
    /// Answered clicks whose delivery has not arrived.
    pub missing: Vec<Box<str>>,
    /// Deliveries of no answered click, such as a second id for the same event.
    pub strangers: Vec<String>,
    /// Requests beyond the first of each delivery.
    pub repeats: usize,
    /// The reasons of most repeats.
    pub reasons: Reasons,
    /// Repeats without a reason: the request before was answered, and nothing prevented writing its outcome.
    pub unexplained: Vec<String>,
    /// Requests with a wrong signature, or with a different body than an earlier request of the same id.
    pub wrong: Vec<String>,
    /// The number of kills and outages.
    pub interruptions: usize,
}

impl Arrivals {
    /// Compares the requests with the clicks. `interruptions` are the kills and outages, `logged` is the number of each
    /// delivery's attempts in the failure log.
    pub fn of(
        log: &Log,
        endpoint: &str,
        secret: &str,
        requests: &[Request],
        interruptions: &[Interruption],
        mut logged: HashMap<String, usize>,
    ) -> Self {
        let mut seen: HashMap<&str, &Request> = HashMap::new();
        let (mut repeats, mut unexplained, mut wrong) = (0, Vec::new(), Vec::new());
        let mut reasons = Reasons::default();
        for request in requests {
            let id = request.delivery();
            if !request.is_signed_with(secret) {
                wrong.push(id.to_owned());
            }
            let Some(before) = seen.insert(id, request) else { continue };
            repeats += 1;
            if before.body != request.body {
                wrong.push(id.to_owned());
            }
            if interruptions.iter().any(|one| one.ended >= before.at && one.began <= request.at) {
                reasons.interrupted += 1;
                let is_meanwhile = |one: &Interruption| one.began < before.at && one.ended >= before.at;
                reasons.meanwhile += usize::from(interruptions.iter().any(is_meanwhile));
            } else if let Some(left @ 1..) = logged.get_mut(id) {
                *left -= 1;
                reasons.logged += 1;
            } else if !before.was_answered() {
                reasons.unanswered += 1;
            } else {
                unexplained.push(unexplained_text(before, request, interruptions));
            }
        }
        let expected: HashMap<String, &str> = log
            .answers
            .iter()
            .map(|answer| (delivery_id(&answer.click_id, endpoint).to_string(), &*answer.click_id))
            .collect();
        let missing = expected.iter().filter(|(id, _)| !seen.contains_key(id.as_str()));
        Self {
            answered: log.answers.len(),
            arrived: seen.len(),
            missing: missing.map(|(_, click)| (*click).into()).collect(),
            strangers: seen
                .keys()
                .filter(|id| !expected.contains_key(**id))
                .map(ToString::to_string)
                .collect(),
            repeats,
            reasons,
            unexplained,
            wrong,
            interruptions: interruptions.len(),
        }
    }

    /// The maximum number of repeats.
    pub const fn bound(&self) -> usize {
        CLAIMED * self.interruptions
    }

    /// Asserts that every click arrived, under one id and one body, and that no delivery was repeated without a reason
    /// or beyond the bound.
    ///
    /// # Panics
    /// When the assertion fails.
    pub fn are_complete(&self) {
        assert!(self.answered > 0, "nothing was answered");
        for (what, which) in [
            ("deliveries of no click", &self.strangers),
            ("requests with a wrong signature or body", &self.wrong),
        ] {
            assert!(which.is_empty(), "{self}; {what}, such as {}", which[0]);
        }
        assert!(self.missing.is_empty(), "{self}; such as {}", self.missing[0]);
        assert!(
            self.unexplained.is_empty(),
            "{self}; repeated without a reason, such as {}",
            self.unexplained[0]
        );
        // A failed attempt is retried within five attempts, with or without an interruption.
        assert!(self.repeats - self.reasons.logged <= self.bound(), "{self}");
    }
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { answered, arrived, repeats, reasons, interruptions, .. } = self;
        let Reasons { interrupted, meanwhile, unanswered, logged } = reasons;
        write!(
            f,
            "{answered} clicks answered, {arrived} deliveries arrived, {} missing, {} of no click, {} wrong; \
             {repeats} repeats over {interruptions} interruptions, of at most {}: {interrupted} of requests before the \
             end of one ({meanwhile} after its beginning), {unanswered} of requests without an answer, {logged} after \
             a failed attempt, {} without a reason",
            self.missing.len(),
            self.strangers.len(),
            self.wrong.len(),
            self.bound(),
            self.unexplained.len(),
        )
    }
}

/// Details for finding the reason of a repeat.
fn unexplained_text(before: &Request, request: &Request, interruptions: &[Interruption]) -> String {
    let last = interruptions.iter().rev().find(|one| one.ended <= before.at);
    let last = last.map_or_else(
        || "none before".to_owned(),
        |one| format!("{:.0?} after one", gap(one.ended, before.at)),
    );
    format!("{}: {last}, again after {:.0?}", request.delivery(), gap(before.at, request.at))
}

fn gap(from: SystemTime, to: SystemTime) -> Duration {
    to.duration_since(from).unwrap_or_default()
}

/// The ids of the answered clicks' deliveries to an endpoint.
pub fn expected(log: &Log, endpoint: &str) -> HashSet<String> {
    log.answers.iter().map(|answer| delivery_id(&answer.click_id, endpoint).to_string()).collect()
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::time::Instant;

    use hyper::{HeaderMap, Method};

    use super::*;
    use crate::load::Answer;
    use crate::receiver::{End, first_of_each, only_failures_are_repeated};

    const ENDPOINT: &str = "whe_1";

    fn log(clicks: &[&str]) -> Log {
        let answer =
            |id: &&str| Answer { click_id: (*id).into(), due: Instant::now(), latency: Duration::ZERO };
        Log { answers: clicks.iter().map(answer).collect(), ..Log::default() }
    }

    /// A request for a click's delivery, this many seconds after the start. Its signature is wrong.
    fn request(click: &str, second: u64, body: &'static str) -> Request {
        let mut headers = HeaderMap::new();
        let id = delivery_id(click, ENDPOINT).to_string();
        headers.insert("x-service-delivery", id.parse().unwrap());
        Request {
            at: at(second),
            method: Method::POST,
            path: "/".to_owned(),
            headers,
            body: body.into(),
            end: Arc::new(End { at: at(second), answered: true }.into()),
        }
    }

    fn at(second: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(second)
    }

    fn compare(requests: &[Request], interruptions: &[(u64, u64)]) -> Arrivals {
        compare_with(requests, interruptions, HashMap::new())
    }

    fn compare_with(
        requests: &[Request],
        interruptions: &[(u64, u64)],
        logged: HashMap<String, usize>,
    ) -> Arrivals {
        let interruption =
            |(began, ended): &(u64, u64)| Interruption { began: at(*began), ended: at(*ended) };
        let interruptions: Vec<Interruption> = interruptions.iter().map(interruption).collect();
        Arrivals::of(&log(&["a", "b"]), ENDPOINT, "secret", requests, &interruptions, logged)
    }

    #[test]
    fn missing_and_unexpected_deliveries_are_detected() {
        let arrivals = compare(&[request("a", 1, "x"), request("c", 1, "x")], &[]);
        assert_eq!((arrivals.answered, arrivals.arrived), (2, 2));
        assert_eq!((arrivals.missing.len(), arrivals.strangers.len()), (1, 1));
    }

    #[test]
    fn only_interruptions_that_end_later_explain_repeats() {
        let requests =
            [request("a", 2, "x"), request("b", 2, "x"), request("a", 4, "x"), request("b", 6, "x")];
        let arrivals = compare(&requests, &[(5, 5)]);
        assert_eq!((arrivals.repeats, arrivals.unexplained.len(), arrivals.bound()), (2, 1, CLAIMED));
        assert_eq!(compare(&requests, &[(0, 1)]).unexplained.len(), 2, "it ended before the request");
        // A process may send a last request while it is killed.
        let reasons = compare(&requests, &[(1, 3)]).reasons;
        assert_eq!(reasons, Reasons { interrupted: 2, meanwhile: 2, ..Reasons::default() });
    }

    #[test]
    fn unanswered_and_failed_requests_explain_repeats() {
        let left = Arc::new(End { at: at(3), answered: false }.into());
        let first = Request { end: left, ..request("a", 2, "x") };
        let arrivals = compare(&[first, request("a", 4, "x")], &[]);
        assert_eq!(arrivals.reasons, Reasons { unanswered: 1, ..Reasons::default() });

        let requests = [request("a", 2, "x"), request("a", 4, "x"), request("a", 6, "x")];
        let logged = HashMap::from([(requests[0].delivery().to_owned(), 1)]);
        let arrivals = compare_with(&requests, &[], logged);
        assert_eq!(arrivals.reasons, Reasons { logged: 1, ..Reasons::default() });
        assert_eq!(arrivals.unexplained.len(), 1, "one failure is a reason for one more attempt");
    }

    #[test]
    fn only_a_failed_attempt_allows_a_repeat() {
        let requests = [request("a", 2, "x"), request("b", 3, "x"), request("a", 4, "x")];
        let failed = |click: usize| HashMap::from([(requests[click].delivery().to_owned(), 1)]);
        only_failures_are_repeated(&requests, &failed(0));
        let anothers = AssertUnwindSafe(|| only_failures_are_repeated(&requests, &failed(1)));
        assert!(catch_unwind(anothers).is_err(), "a failed attempt of another delivery is no reason");
        assert_eq!(
            first_of_each(&requests).iter().map(|request| request.at).collect::<Vec<_>>(),
            [at(2), at(3)]
        );
    }

    #[test]
    fn changed_bodies_and_wrong_signatures_are_detected() {
        let arrivals = compare(&[request("a", 1, "x"), request("a", 3, "y")], &[(2, 2)]);
        assert_eq!(arrivals.wrong.len(), 3, "two signatures and a body");
    }
}
