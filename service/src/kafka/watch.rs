//! Whether Kafka answers, and has the topics that a process needs.

use std::{sync::Arc, time::Duration};

use rdkafka::{
    error::KafkaError,
    producer::{BaseProducer, Producer as _},
};
use tokio::task::spawn_blocking;

use super::{Context, KafkaConfig};
use crate::{Check, Shutdown, health};

/// How long brokers may take to answer; less than the probe's own limit, so that their error is the one shown.
const TIMEOUT: Duration = Duration::from_secs(3);

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
    // Of all clients a producer is the one without a group and without fetching.
    let client: BaseProducer<Context> =
        config.client_config("probe").create_with_context(Context::default())?;
    let probe = Arc::new((client, topics));
    health::watch(check, shutdown, || {
        let probe = Arc::clone(&probe);
        async move {
            spawn_blocking(move || ask(&probe.0, &probe.1))
                .await
                .unwrap_or_else(|_| Err("the probe panicked".to_owned()))
        }
    })
    .await;
    // Closing waits for librdkafka's threads, which the runtime's must not.
    spawn_blocking(move || drop(probe));
    Ok(())
}

fn ask(client: &BaseProducer<Context>, topics: &[String]) -> Result<(), String> {
    // Serves the log and error queue, which nobody else empties.
    client.poll(Duration::ZERO);
    let metadata = client.client().fetch_metadata(None, TIMEOUT).map_err(|error| error.to_string())?;
    let missing: Vec<&str> = topics
        .iter()
        .filter(|topic| !metadata.topics().iter().any(|found| found.name() == *topic))
        .map(String::as_str)
        .collect();
    if missing.is_empty() {
        Ok(())
    } else {
        Err(format!("missing topics: {}; run api migrate", missing.join(", ")))
    }
}
