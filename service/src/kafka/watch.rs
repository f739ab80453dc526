//! The readiness probe of Kafka and of the topics that a process needs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::metadata::MetadataTopic;
use rdkafka::producer::BaseProducer;
use tokio::task::spawn_blocking;

use super::context::metadata;
use super::topics::fewest_replicas;
use super::{Context, KafkaConfig};
use crate::{Check, Shutdown, health};

/// Timeout of a request; below the probe's timeout, so that the check shows Kafka's error.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The broker's interval of checking which logs to flush.
const FLUSH_INTERVAL: &str = "log.flush.scheduler.interval.ms";

/// Maximum [`FLUSH_INTERVAL`] without a warning.
const MAX_FLUSH_INTERVAL_MS: u64 = 10_000;

/// The detail of the check when Kafka has a single replica that it does not flush.
const NOT_FLUSHED: &str = "ok, but a power loss would lose the latest records: topics have one replica, and the broker \
                           does not flush them itself. Set log.flush.scheduler.interval.ms=1000 on the broker";

/// Probes Kafka beside a service, as [`watch`] does. Settings that librdkafka rejects are logged.
pub fn spawn_watch(config: KafkaConfig, topics: Vec<String>, check: Check, shutdown: Shutdown) {
    tokio::spawn(async move {
        if let Err(error) = watch(&config, topics, check, shutdown).await {
            tracing::error!(%error, "cannot probe Kafka: {error}");
        }
    });
}

/// Probes Kafka until a shutdown is requested. Missing `topics` (full names) make the check unready.
///
/// # Errors
/// When librdkafka rejects the settings.
pub async fn watch(
    config: &KafkaConfig,
    topics: Vec<String>,
    check: Check,
    shutdown: Shutdown,
) -> Result<(), KafkaError> {
    let client: BaseProducer<Context> =
        config.client_config("probe").create_with_context(Context::default())?;
    let admin: AdminClient<Context> = config.client_config("probe").create_with_context(Context::default())?;
    let replicas = config.topic_replicas.map_or(0, usize::from);
    let probe = Arc::new((client, topics, admin));
    health::watch(check, shutdown, || {
        let probe = Arc::clone(&probe);
        async move {
            let blocking = Arc::clone(&probe);
            let topics = spawn_blocking(move || check_topics(&blocking.0, &blocking.1, replicas))
                .await
                .unwrap_or_else(|_| Err("the probe panicked".to_owned()))?;
            Ok::<_, String>(match topics {
                Topics { weaknesses, .. } if !weaknesses.is_empty() => {
                    format!("ok, but {}", weaknesses.join("; "))
                }
                Topics { single_replica: Some(broker), .. } if !is_flushed(&probe.2, broker).await => {
                    NOT_FLUSHED.to_owned()
                }
                _ => health::OK.to_owned(),
            })
        }
    })
    .await;
    // Dropping the client blocks until librdkafka's threads have stopped.
    spawn_blocking(move || drop(probe));
    Ok(())
}

/// What is wrong with topics that exist.
struct Topics {
    /// A broker that has the only replica of a partition.
    single_replica: Option<i32>,
    /// Topics that have fewer replicas than configured, and brokers that lack records.
    weaknesses: Vec<String>,
}

/// Checks that the topics exist, each with this many replicas that have all records.
fn check_topics(
    client: &BaseProducer<Context>,
    topics: &[String],
    replicas: usize,
) -> Result<Topics, String> {
    let metadata = metadata(client, TIMEOUT).map_err(|error| error.to_string())?;
    let missing: Vec<&str> = topics
        .iter()
        .filter(|topic| !metadata.topics().iter().any(|found| found.name() == *topic))
        .map(String::as_str)
        .collect();
    if !missing.is_empty() {
        return Err(format!("missing topics: {}; run api migrate", missing.join(", ")));
    }
    let ours: Vec<&MetadataTopic> =
        metadata.topics().iter().filter(|topic| topics.iter().any(|name| name == topic.name())).collect();
    let partitions = || ours.iter().flat_map(|topic| topic.partitions());
    let single_replica = partitions().find_map(|partition| match partition.replicas() {
        [broker] => Some(*broker),
        _ => None,
    });
    let weaker = |topic: &&MetadataTopic| match fewest_replicas(topic) {
        fewer if fewer < replicas => {
            Some(format!("topic {} has {fewer} of {replicas} replicas", topic.name()))
        }
        _ => None,
    };
    let lacking: BTreeSet<i32> = partitions()
        .flat_map(|partition| partition.replicas().iter().filter(|broker| !partition.isr().contains(broker)))
        .copied()
        .collect();
    let lacking = lacking.iter().map(|broker| format!("broker {broker} lacks records"));
    let weaknesses = ours.iter().filter_map(weaker).chain(lacking).collect();
    Ok(Topics { single_replica, weaknesses })
}

/// Returns whether a broker flushes its logs itself; true when its settings cannot be read.
async fn is_flushed(admin: &AdminClient<Context>, broker: i32) -> bool {
    let options = AdminOptions::new().request_timeout(Some(TIMEOUT));
    let interval = async {
        let described = admin.describe_configs([&ResourceSpecifier::Broker(broker)], &options).await?;
        let Some(Ok(found)) = described.into_iter().next() else { return KafkaResult::Ok(None) };
        Ok(found.get(FLUSH_INTERVAL).and_then(|entry| entry.value.clone()))
    };
    match interval.await {
        Ok(interval) => interval.is_none_or(|interval| is_short(&interval)),
        Err(error) => {
            tracing::debug!(broker, %error, "cannot read the settings of broker {broker}: {error}");
            true
        }
    }
}

fn is_short(interval: &str) -> bool {
    interval.parse::<u64>().is_ok_and(|interval| interval <= MAX_FLUSH_INTERVAL_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_brokers_default_interval_is_too_long() {
        assert!(is_short("1000") && !is_short(&i64::MAX.to_string()));
    }
}
