//! The open load: each request is sent when it is due, by a clock that does not wait for answers.
//!
//! A closed load asks a server that hangs for nothing meanwhile, and so sees one slow answer where visitors would
//! have seen many (coordinated omission). Here a request's latency begins when it was due.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow};
use nix::sys::prctl::set_timerslack;

use crate::{
    load::{Load, Reader},
    statistics,
};

/// How late the kernel may wake a sleeping connection, in nanoseconds; 50,000 by default.
const TIMER_SLACK: u64 = 1;

/// What came back.
pub(crate) struct Latencies {
    /// From when a request was due to its answer, in microseconds; ascending.
    from_due: Vec<u32>,
    /// How late requests were sent whose connection was free, in microseconds; ascending. The load's own doing.
    lateness: Vec<u32>,
}

impl Latencies {
    /// How many requests were answered, which is all of them.
    pub(crate) fn count(&self) -> usize {
        self.from_due.len()
    }

    /// The latency that so many in a thousand of the requests did not exceed, in microseconds.
    pub(crate) fn latency(&self, permille: usize) -> u32 {
        statistics::permille(&self.from_due, permille)
    }

    /// The lateness that so many in a thousand of the requests did not exceed, in microseconds.
    pub(crate) fn lateness(&self, permille: usize) -> u32 {
        statistics::permille(&self.lateness, permille)
    }
}

/// Sends `rate` requests a second over all connections for as long as `duration`, and waits for every answer.
///
/// # Errors
/// When one request is not answered, or with anything but a 302.
pub(crate) async fn run(
    load: &Load,
    server: SocketAddr,
    rate: f64,
    duration: Duration,
) -> anyhow::Result<Latencies> {
    let interval = Duration::from_secs_f64(load.connections as f64 / rate);
    let began = Instant::now();
    let mut connections = Vec::new();
    for place in 0..load.connections {
        let requests = Arc::clone(&load.requests);
        // Spread over the requests and over the time between two of one connection.
        let first = place * requests.len() / load.connections;
        let begin = began + interval.mul_f64(place as f64 / load.connections as f64);
        let until = began + duration;
        // A thread for each: a runtime's timers are as coarse as the latencies that are to be measured.
        let run = move || connection(server, requests.iter().cycle().skip(first), begin, interval, until);
        connections.push(thread::Builder::new().name("paced".to_owned()).spawn(run)?);
    }
    let joined = tokio::task::spawn_blocking(move || {
        let ended = connections
            .into_iter()
            .map(|connection| connection.join().map_err(|_| anyhow!("a connection panicked"))?);
        ended.collect::<anyhow::Result<Vec<_>>>()
    });
    let (mut from_due, mut lateness) = (Vec::new(), Vec::new());
    for (mut latencies, mut late) in joined.await.context("waiting for the load failed")?? {
        from_due.append(&mut latencies);
        lateness.append(&mut late);
    }
    from_due.sort_unstable();
    lateness.sort_unstable();
    Ok(Latencies { from_due, lateness })
}

/// Sends requests as they fall due; returns the latencies and the lateness in microseconds.
fn connection<'a>(
    server: SocketAddr,
    requests: impl Iterator<Item = &'a Vec<u8>>,
    begin: Instant,
    interval: Duration,
    until: Instant,
) -> anyhow::Result<(Vec<u32>, Vec<u32>)> {
    set_timerslack(TIMER_SLACK).context("cannot ask for exact timers")?;
    let mut stream = TcpStream::connect(server).with_context(|| format!("cannot connect to {server}"))?;
    stream.set_nodelay(true)?;
    let mut reader = Reader::default();
    let (mut latencies, mut lateness) = (Vec::new(), Vec::new());
    let mut due = begin;
    for request in requests {
        if due >= until {
            break;
        }
        if let Some(early) = due.checked_duration_since(Instant::now()) {
            thread::sleep(early);
            lateness.push(micros(due.elapsed()));
        }
        stream.write_all(request).context("a request could not be sent")?;
        while !reader.is_redirect()? {
            let read = stream.read(reader.room()).context("an answer did not come")?;
            reader.read(read)?;
        }
        latencies.push(micros(due.elapsed()));
        due += interval;
    }
    Ok((latencies, lateness))
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Answers requests on one connection, the third after a pause.
    fn server(pause: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            let mut count = 0;
            while stream.read(&mut request).unwrap_or_default() > 0 {
                count += 1;
                if count == 3 {
                    thread::sleep(pause);
                }
                if stream.write_all(b"HTTP/1.1 302 Found\r\ncontent-length: 0\r\n\r\n").is_err() {
                    return;
                }
            }
        });
        address
    }

    #[tokio::test]
    async fn one_pause_of_the_server_delays_every_request_that_falls_due_in_it() {
        let load = Load::new(1, &["spring".to_owned()]);
        // 100 in a second, of which the pause covers half.
        let pause = Duration::from_millis(500);
        let latencies = run(&load, server(pause), 100.0, Duration::from_secs(1)).await.unwrap();
        assert!((99..=101).contains(&latencies.count()), "{}", latencies.count());
        // A closed load would have seen a single slow one.
        assert!(latencies.latency(800) > 100_000, "{}", latencies.latency(800));
        assert!(latencies.latency(1000) >= 500_000);
        assert!(latencies.lateness(500) <= latencies.lateness(1000));
    }
}
