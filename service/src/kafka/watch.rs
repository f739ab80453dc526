//! Whether Kafka answers, and has the topics that a process needs.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::metadata::Metadata;
use tokio::task::spawn_blocking;

use super::{Context, KafkaConfig};
use crate::{Check, Shutdown, health};

/// How long brokers may take to answer; less than the probe's own limit, so that their error is the one shown.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The broker's setting of how often it looks which logs are to be flushed, and the longest that protects from a loss
/// worth naming.
const FLUSH_INTERVAL: &str = "log.flush.scheduler.interval.ms";
const LONGEST_FLUSH_INTERVAL_MS: u64 = 10_000;

/// What a power cut costs where Kafka has one copy and does not flush it.
const NOT_FLUSHED: &str = "ok, but a power cut loses what Kafka took last: its topics have one replica, and the broker \
                           leaves flushing to the system. Set log.flush.scheduler.interval.ms=1000 there";

type Client = AdminClient<Context>;

/// Probes Kafka until a stop is requested; a missing one of `topics` (full names) is unready too.
///
/// # Errors
/// When no client can be made of the settings.
pub async fn watch(
    config: &KafkaConfig,
    topics: Vec<String>,
    check: Check,
    shutdown: Shutdown,
) -> Result<(), KafkaError> {
    let client: Client = config.client_config("probe").create_with_context(Context::default())?;
    let probe = Arc::new((client, topics));
    health::watch(check, shutdown, || {
        let probe = Arc::clone(&probe);
        async move {
            let asking = Arc::clone(&probe);
            let single = spawn_blocking(move || ask(&asking.0, &asking.1))
                .await
                .unwrap_or_else(|_| Err("the probe panicked".to_owned()))?;
            Ok::<_, String>(match single {
                Some(broker) if !is_flushed(&probe.0, broker).await => NOT_FLUSHED,
                _ => health::OK,
            })
        }
    })
    .await;
    // Closing waits for librdkafka's threads, which the runtime's must not.
    spawn_blocking(move || drop(probe));
    Ok(())
}

/// Returns the broker that has the only replica of one of the topics, if one has.
fn ask(client: &Client, topics: &[String]) -> Result<Option<i32>, String> {
    let metadata = client.inner().fetch_metadata(None, TIMEOUT).map_err(|error| error.to_string())?;
    let missing: Vec<&str> = topics
        .iter()
        .filter(|topic| !metadata.topics().iter().any(|found| found.name() == *topic))
        .map(String::as_str)
        .collect();
    if missing.is_empty() {
        Ok(only_broker(&metadata, topics))
    } else {
        Err(format!("missing topics: {}; run api migrate", missing.join(", ")))
    }
}

fn only_broker(metadata: &Metadata, topics: &[String]) -> Option<i32> {
    let ours = metadata.topics().iter().filter(|topic| topics.iter().any(|name| name == topic.name()));
    ours.flat_map(|topic| topic.partitions()).find_map(|partition| match partition.replicas() {
        [broker] => Some(*broker),
        _ => None,
    })
}

/// Returns whether a broker flushes by itself; one that does not tell gets no warning.
async fn is_flushed(client: &Client, broker: i32) -> bool {
    let options = AdminOptions::new().request_timeout(Some(TIMEOUT));
    let interval = async {
        let described = client.describe_configs([&ResourceSpecifier::Broker(broker)], &options).await?;
        let Some(Ok(found)) = described.into_iter().next() else { return KafkaResult::Ok(None) };
        Ok(found.get(FLUSH_INTERVAL).and_then(|entry| entry.value.clone()))
    };
    match interval.await {
        Ok(interval) => interval.is_none_or(|interval| is_often(&interval)),
        Err(error) => {
            tracing::debug!(%error, "cannot ask a broker for its settings: {error}");
            true
        }
    }
}

fn is_often(interval: &str) -> bool {
    interval.parse::<u64>().is_ok_and(|interval| interval <= LONGEST_FLUSH_INTERVAL_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_of_a_broker_is_never() {
        assert!(is_often("1000") && !is_often(&i64::MAX.to_string()));
    }
}
