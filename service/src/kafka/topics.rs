//! Creates topics and updates their settings.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, ConfigResource, ConfigSource, NewPartitions, NewTopic,
    ResourceSpecifier, TopicReplication,
};
use rdkafka::error::KafkaError;
use rdkafka::metadata::MetadataTopic;
use rdkafka::producer::BaseProducer;
use rdkafka::types::RDKafkaErrorCode;
use tokio::time::{Instant, sleep};

use super::context::metadata;
use super::{Context, KafkaConfig};

/// Timeout of one request to the brokers.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The pause before a broker is asked again for a topic that it does not know yet.
const PAUSE: Duration = Duration::from_millis(100);

/// Selects the brokers' `default.replication.factor`.
const BROKER_DEFAULT: i32 = -1;

/// The specification of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicSpec<'a> {
    /// The name without the deployment's prefix.
    pub name: &'a str,
    /// The number of partitions at creation; that of an existing topic is not changed.
    pub partitions: i32,
    /// The topic's settings; other settings are not changed.
    pub config: &'a [(&'a str, &'a str)],
}

/// A topic that exists.
#[derive(Debug, Clone, Copy)]
struct Existing {
    partitions: usize,
    /// The fewest replicas of a partition.
    replicas: usize,
}

/// The outcome for one topic, or the outcome to be expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnsuredTopic {
    /// The full name.
    pub topic: String,
    /// Whether the topic was created.
    pub created: bool,
    /// The settings that were changed, as (name, old value, new value).
    pub altered: Vec<(String, String, String)>,
    /// The actual number of partitions if it differs from the specification. Only an operator adds partitions, because
    /// that moves keys to other partitions.
    pub differing_partitions: Option<usize>,
    /// The actual number of replicas if it is less than [`KafkaConfig`] wants. Only an operator adds replicas, with
    /// Kafka's own tool.
    pub missing_replicas: Option<usize>,
}

/// Why topics could not be created or updated.
#[derive(Debug, thiserror::Error)]
pub enum EnsureError {
    /// A request to Kafka failed.
    #[error("a request to Kafka failed")]
    Kafka(#[from] KafkaError),
    /// Kafka rejected a topic or its settings.
    #[error("Kafka rejected topic {topic}")]
    Rejected {
        /// The full name.
        topic: String,
        /// Kafka's reason.
        source: RDKafkaErrorCode,
    },
    /// A topic exists, but the brokers do not describe it.
    #[error("topic {topic} exists, but Kafka's brokers do not describe it")]
    Undescribed {
        /// The full name.
        topic: String,
    },
    /// The thread that fetches metadata panicked.
    #[error("the request for Kafka's metadata panicked")]
    Panicked(#[from] tokio::task::JoinError),
}

/// Creates missing topics and updates the settings of existing ones; idempotent.
///
/// # Errors
/// When Kafka does not answer, or rejects a topic; the topics before it stay changed.
pub async fn ensure_topics(
    config: &KafkaConfig,
    specs: &[TopicSpec<'_>],
) -> Result<Vec<EnsuredTopic>, EnsureError> {
    ensure(config, specs, true).await
}

/// Returns what [`ensure_topics`] would do, and changes nothing.
///
/// # Errors
/// When Kafka does not answer.
pub async fn plan_topics(
    config: &KafkaConfig,
    specs: &[TopicSpec<'_>],
) -> Result<Vec<EnsuredTopic>, EnsureError> {
    ensure(config, specs, false).await
}

async fn ensure(
    config: &KafkaConfig,
    specs: &[TopicSpec<'_>],
    applies: bool,
) -> Result<Vec<EnsuredTopic>, EnsureError> {
    let admin: AdminClient<Context> =
        config.client_config("migrate").create_with_context(Context::default())?;
    let client: BaseProducer<Context> =
        config.client_config("migrate").create_with_context(Context::default())?;
    let client = Arc::new(client);
    let mut known = known_topics(&client).await?;
    let wanted = config.topic_replicas.map(usize::from);
    let in_sync = wanted.map(in_sync);

    let mut ensured = Vec::with_capacity(specs.len());
    for spec in specs {
        let topic = config.topic(spec.name);
        let mut settings = spec.config.to_vec();
        settings.extend(in_sync.as_deref().map(|count| (IN_SYNC, count)));
        let is_new = !known.contains_key(&topic);
        let with_replicas = TopicSpec { config: &settings, ..*spec };
        let created = is_new && (!applies || create(&admin, &topic, &with_replicas, wanted).await?);
        if is_new && !created {
            // It was created by another process, or just before, and the asked broker does not know it yet.
            known = with_topic(&client, &topic).await?;
        }
        let found = known.get(&topic).copied();
        let replicas = found.map(|found| found.replicas);
        let missing_replicas = replicas.filter(|replicas| wanted.is_some_and(|wanted| *replicas < wanted));
        // With fewer replicas, Kafka would take no more records.
        let possible = if missing_replicas.is_some() { *spec } else { with_replicas };
        let altered = if created { Vec::new() } else { alter(&admin, &topic, &possible, applies).await? };
        let partitions = found.map(|found| found.partitions);
        let differing_partitions = partitions.filter(|count| usize::try_from(spec.partitions) != Ok(*count));
        ensured.push(EnsuredTopic { topic, created, altered, differing_partitions, missing_replicas });
    }
    Ok(ensured)
}

/// Reads the topics that exist, by their names.
async fn known_topics(
    client: &Arc<BaseProducer<Context>>,
) -> Result<BTreeMap<String, Existing>, EnsureError> {
    let client = Arc::clone(client);
    let topics = tokio::task::spawn_blocking(move || {
        let metadata = metadata(&client, TIMEOUT)?;
        let existing = |topic: &MetadataTopic| Existing {
            partitions: topic.partitions().len(),
            replicas: fewest_replicas(topic),
        };
        let topics = metadata.topics().iter().map(|topic| (topic.name().to_owned(), existing(topic)));
        Ok::<_, KafkaError>(topics.collect())
    });
    Ok(topics.await??)
}

/// Reads the topics once one that exists is among them.
async fn with_topic(
    client: &Arc<BaseProducer<Context>>,
    topic: &str,
) -> Result<BTreeMap<String, Existing>, EnsureError> {
    let until = Instant::now() + TIMEOUT;
    loop {
        let known = known_topics(client).await?;
        if known.contains_key(topic) {
            return Ok(known);
        }
        if Instant::now() > until {
            return Err(EnsureError::Undescribed { topic: topic.to_owned() });
        }
        sleep(PAUSE).await;
    }
}

/// Increases the partitions of a topic, by its name without prefix.
///
/// # Errors
/// When Kafka rejects the change: the topic has as many already, or more.
pub async fn add_partitions(config: &KafkaConfig, name: &str, partitions: u16) -> Result<(), EnsureError> {
    let admin: AdminClient<Context> =
        config.client_config("migrate").create_with_context(Context::default())?;
    let topic = config.topic(name);
    let more = NewPartitions::new(&topic, usize::from(partitions));
    for outcome in admin.create_partitions([&more], &options()).await? {
        outcome.map_err(|(topic, source)| EnsureError::Rejected { topic, source })?;
    }
    Ok(())
}

/// The setting for how many replicas must have a record before it is acknowledged.
const IN_SYNC: &str = "min.insync.replicas";

/// Returns how many of a topic's replicas must have a record before it is acknowledged: one may be away.
fn in_sync(replicas: usize) -> String {
    replicas.saturating_sub(1).max(1).to_string()
}

/// Returns the fewest replicas of a partition.
pub(super) fn fewest_replicas(topic: &MetadataTopic) -> usize {
    topic.partitions().iter().map(|partition| partition.replicas().len()).min().unwrap_or_default()
}

/// Creates a topic; returns false when it was created concurrently.
async fn create(
    admin: &AdminClient<Context>,
    topic: &str,
    spec: &TopicSpec<'_>,
    replicas: Option<usize>,
) -> Result<bool, EnsureError> {
    let replicas = replicas.and_then(|replicas| i32::try_from(replicas).ok()).unwrap_or(BROKER_DEFAULT);
    let mut new = NewTopic::new(topic, spec.partitions, TopicReplication::Fixed(replicas));
    for (name, value) in spec.config {
        new = new.set(name, value);
    }
    for outcome in admin.create_topics([&new], &options()).await? {
        match outcome {
            Ok(_) => {}
            Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => return Ok(false),
            Err((topic, source)) => return Err(EnsureError::Rejected { topic, source }),
        }
    }
    Ok(true)
}

/// Applies the specified settings to a topic, or only compares them; returns those that were different.
async fn alter(
    admin: &AdminClient<Context>,
    topic: &str,
    spec: &TopicSpec<'_>,
    applies: bool,
) -> Result<Vec<(String, String, String)>, EnsureError> {
    let rejected = |source| EnsureError::Rejected { topic: topic.to_owned(), source };
    let resource = ResourceSpecifier::Topic(topic);
    let mut altered = Vec::new();
    for described in admin.describe_configs([&resource], &options()).await? {
        let found = described.map_err(rejected)?;
        let differences = differences(&found, spec);
        if differences.is_empty() || !applies {
            altered.extend(differences);
            continue;
        }
        // AlterConfigs resets every setting that it does not name, so repeat the topic's existing ones.
        let mut alter = AlterConfig::new(ResourceSpecifier::Topic(topic));
        for entry in &found.entries {
            if let (ConfigSource::DynamicTopic, Some(value)) = (&entry.source, &entry.value) {
                alter = alter.set(&entry.name, value);
            }
        }
        for (name, value) in spec.config {
            alter = alter.set(name, value);
        }
        for outcome in admin.alter_configs([&alter], &options()).await? {
            outcome.map_err(|(_, source)| rejected(source))?;
        }
        altered.extend(differences);
    }
    Ok(altered)
}

/// Returns the settings that differ from the specification, as (name, actual, specified).
fn differences(actual: &ConfigResource, spec: &TopicSpec<'_>) -> Vec<(String, String, String)> {
    spec.config
        .iter()
        .filter_map(|(name, specified)| {
            let value = actual.get(name).and_then(|entry| entry.value.as_deref()).unwrap_or_default();
            (value != *specified).then(|| ((*name).to_owned(), value.to_owned(), (*specified).to_owned()))
        })
        .collect()
}

fn options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(TIMEOUT)).operation_timeout(Some(TIMEOUT))
}
