//! `GET /live` and `GET /links/{id}/live`

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, StatusCode};
use schemas::id::LinkId;
use service::http::ApiError;
use tokio::sync::mpsc;
use warp::Reply as _;
use warp::reply::Response;

use super::event::Place;
use super::hub::{Next, Subscription};
use crate::app::App;
use crate::resources::links::object;
use crate::web::caller::Caller;
use crate::web::operation::Answer;
use crate::web::request::Head;

/// Interval of comments, so that no proxy closes the stream, and of checks whether the caller may still listen.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// How long a stream waits for the end of the topic before it starts without it.
const FOLLOWING: Duration = Duration::from_secs(3);

/// The beginning of a stream: a comment, so that browsers and proxies see an answer at once, and the reconnection time.
const BEGINNING: &str = ": clicks as they happen\nretry: 2000\n\n";

/// Sent when clicks may be missing: the totals should be read again.
const GAP: &str = "event: gap\ndata: {}\n\n";

/// A comment.
const COMMENT: &str = ":\n\n";

/// A stream of events.
pub(crate) struct Stream(mpsc::Receiver<Bytes>);

impl Answer for Stream {
    fn respond(self, _: StatusCode) -> Response {
        let Self(mut chunks) = self;
        let chunks = stream::poll_fn(move |context| {
            chunks.poll_recv(context).map(|chunk| chunk.map(Ok::<Bytes, Infallible>))
        });
        let mut response = warp::reply::stream(chunks).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        // Neither stored nor compressed: a compressor would delay events.
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-store, no-transform"));
        // nginx buffers answers otherwise.
        headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
        response
    }
}

/// Streams the clicks of a link, or of the workspace, of every class.
///
/// With `Last-Event-ID` the stream starts with the clicks since then, as far as they are kept.
pub(crate) async fn live(
    caller: Caller,
    link: Option<LinkId>,
    Head { headers, .. }: Head,
    app: App,
) -> Result<Stream, ApiError> {
    let link = match link {
        Some(id) => Some(object::require(&app, caller.workspace, id).await?.id),
        None => None,
    };
    let from =
        headers.get("last-event-id").and_then(|id| id.to_str().ok()).and_then(|id| id.parse::<Place>().ok());
    // Without Kafka the stream starts anyway; clicks come when Kafka is back.
    let _ = tokio::time::timeout(FOLLOWING, app.live.wait_until_following()).await;
    let subscription = app.live.listen(caller.account, caller.workspace, link, from)?;
    let (sender, chunks) = mpsc::channel(1);
    tokio::spawn(async move {
        tokio::select! {
            () = send_events(subscription, &caller, &app, &sender) => {}
            // A long stream would delay the shutdown.
            () = app.shutdown.wait() => {}
            () = sender.closed() => {}
        }
    });
    Ok(Stream(chunks))
}

/// Sends events until the listener leaves or may no longer listen.
async fn send_events(
    mut subscription: Subscription,
    caller: &Caller,
    app: &App,
    sender: &mpsc::Sender<Bytes>,
) {
    let mut ticks = tokio::time::interval(KEEP_ALIVE);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // The first tick is immediate.
    ticks.tick().await;
    let mut bytes = Bytes::from_static(BEGINNING.as_bytes());
    while sender.send(bytes).await.is_ok() {
        bytes = tokio::select! {
            // First, because a listener that is behind always has a next click.
            biased;
            _ = ticks.tick() => {
                // While Postgres is away, listeners stay.
                if !caller.is_valid(app).await.unwrap_or(true) {
                    return;
                }
                Bytes::from_static(COMMENT.as_bytes())
            }
            next = subscription.next() => match next {
                Next::Click(event) => event.bytes(caller.is_viewer()),
                Next::Gap => Bytes::from_static(GAP.as_bytes()),
            },
        };
    }
}
