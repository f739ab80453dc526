//! What was answered to visitors against what arrived at a webhook endpoint.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::SystemTime;

use hyper::body::Bytes;
use schemas::message::delivery_id;

use crate::load::Log;
use crate::receiver::Request;

/// Deliveries of one endpoint that one dispatcher may have claimed: the most that it can have in flight, or ended and
/// not yet written, when it is killed. 32 requests, and what is claimed ahead of them.
pub const CLAIMED: usize = 8 * 32;

/// How the requests at a receiver compare with a log of answered clicks.
#[derive(Debug)]
pub struct Arrivals {
    /// Clicks that were answered.
    pub answered: usize,
    /// Deliveries that arrived at least once.
    pub arrived: usize,
    /// Answered clicks whose delivery has not arrived.
    pub missing: Vec<Box<str>>,
    /// Deliveries that no answered click has: another id for the same event would be one.
    pub strangers: Vec<String>,
    /// Requests beyond the first of each delivery.
    pub repeats: usize,
    /// Repeats whose two requests have no interruption between them.
    pub unexplained: Vec<String>,
    /// Requests whose signature is wrong, or whose body is another one than that of the same id before.
    pub wrong: Vec<String>,
    /// Kills and outages.
    pub interruptions: usize,
}

impl Arrivals {
    /// Compares the requests with the clicks. `interruptions` are the times of kills and outages, in order.
    pub fn of(
        log: &Log,
        endpoint: &str,
        secret: &str,
        requests: &[Request],
        interruptions: &[SystemTime],
    ) -> Self {
        let mut seen: HashMap<&str, (&Bytes, SystemTime)> = HashMap::new();
        let (mut repeats, mut unexplained, mut wrong) = (0, Vec::new(), Vec::new());
        for request in requests {
            let id = request.delivery();
            if !request.is_signed_with(secret) {
                wrong.push(id.to_owned());
            }
            let Some((body, before)) = seen.insert(id, (&request.body, request.at)) else { continue };
            repeats += 1;
            if *body != request.body {
                wrong.push(id.to_owned());
            }
            if !interruptions.iter().any(|time| (before..=request.at).contains(time)) {
                unexplained.push(id.to_owned());
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
            unexplained,
            wrong,
            interruptions: interruptions.len(),
        }
    }

    /// The most repeats that there may be.
    pub const fn bound(&self) -> usize {
        CLAIMED * self.interruptions
    }

    /// Holds that every click arrived, under one id and one body, and that nothing was repeated without a reason or
    /// beyond the bound.
    ///
    /// # Panics
    /// When that is not so.
    pub fn are_complete(&self) {
        assert!(self.answered > 0, "nothing was answered");
        for (what, which) in [
            ("arrived under an id of no click", &self.strangers),
            ("were signed or written wrongly", &self.wrong),
        ] {
            assert!(which.is_empty(), "{self}; {what}, such as {}", which[0]);
        }
        assert!(self.missing.is_empty(), "{self}; such as {}", self.missing[0]);
        assert!(
            self.unexplained.is_empty(),
            "{self}; repeated for no reason, such as {}",
            self.unexplained[0]
        );
        assert!(self.repeats <= self.bound(), "{self}");
    }
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { answered, arrived, repeats, interruptions, .. } = self;
        write!(
            f,
            "{answered} clicks answered, {arrived} deliveries arrived, {} missing, {} of no click, {} wrong; \
             {repeats} repeats over {interruptions} interruptions, of at most {}, {} of them without one in between",
            self.missing.len(),
            self.strangers.len(),
            self.wrong.len(),
            self.bound(),
            self.unexplained.len(),
        )
    }
}

/// The ids of the deliveries that the answered clicks have at an endpoint.
pub fn expected(log: &Log, endpoint: &str) -> HashSet<String> {
    log.answers.iter().map(|answer| delivery_id(&answer.click_id, endpoint).to_string()).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use hyper::{HeaderMap, Method};

    use super::*;
    use crate::load::Answer;

    const ENDPOINT: &str = "whe_1";

    fn log(clicks: &[&str]) -> Log {
        let answer =
            |id: &&str| Answer { click_id: (*id).into(), due: Instant::now(), latency: Duration::ZERO };
        Log { answers: clicks.iter().map(answer).collect(), ..Log::default() }
    }

    /// A request for a click's delivery so many seconds after the beginning. Its signature is wrong.
    fn request(click: &str, second: u64, body: &'static str) -> Request {
        let mut headers = HeaderMap::new();
        let id = delivery_id(click, ENDPOINT).to_string();
        headers.insert("x-service-delivery", id.parse().unwrap());
        Request { at: at(second), method: Method::POST, path: "/".to_owned(), headers, body: body.into() }
    }

    fn at(second: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(second)
    }

    fn compare(requests: &[Request], interruptions: &[u64]) -> Arrivals {
        let interruptions: Vec<SystemTime> = interruptions.iter().map(|second| at(*second)).collect();
        Arrivals::of(&log(&["a", "b"]), ENDPOINT, "secret", requests, &interruptions)
    }

    #[test]
    fn a_missing_delivery_and_one_of_no_click_are_noticed() {
        let arrivals = compare(&[request("a", 1, "x"), request("c", 1, "x")], &[]);
        assert_eq!((arrivals.answered, arrivals.arrived), (2, 2));
        assert_eq!((arrivals.missing.len(), arrivals.strangers.len()), (1, 1));
    }

    #[test]
    fn a_repeat_needs_an_interruption_between_its_requests() {
        let requests =
            [request("a", 1, "x"), request("b", 1, "x"), request("a", 3, "x"), request("b", 5, "x")];
        let arrivals = compare(&requests, &[4]);
        assert_eq!((arrivals.repeats, arrivals.unexplained.len(), arrivals.bound()), (2, 1, CLAIMED));
        assert_eq!(compare(&requests, &[2, 4]).unexplained.len(), 0);
    }

    #[test]
    fn another_body_under_the_same_id_and_a_wrong_signature_are_noticed() {
        let arrivals = compare(&[request("a", 1, "x"), request("a", 3, "y")], &[2]);
        assert_eq!(arrivals.wrong.len(), 3, "two signatures and a body");
    }
}
