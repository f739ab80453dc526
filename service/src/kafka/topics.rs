//! Topics as they should be.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, ConfigResource, ConfigSource, NewTopic, ResourceSpecifier,
    TopicReplication,
};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;

use super::{Context, KafkaConfig};

/// How long the brokers may take for one step.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Leaves the number of replicas to the brokers' `default.replication.factor`.
const BROKER_DEFAULT: i32 = -1;

/// A topic as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicSpec<'a> {
    /// The name without the deployment's prefix.
    pub name: &'a str,
    /// The number of partitions at creation; an existing topic keeps its own.
    pub partitions: i32,
    /// The topic's settings; others are left as they are.
    pub config: &'a [(&'a str, &'a str)],
}

/// What was done for one topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ensured {
    /// The full name.
    pub topic: String,
    /// Whether it was made; else it existed.
    pub created: bool,
    /// The settings that were changed, as (name, former value, new value).
    pub altered: Vec<(String, String, String)>,
    /// The number of partitions, if it is not the specified one. More partitions are the operator's decision:
    /// they send keys elsewhere.
    pub differing_partitions: Option<usize>,
}

/// Why a topic is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum EnsureError {
    /// Kafka could not be asked.
    #[error("cannot ask Kafka")]
    Kafka(#[from] KafkaError),
    /// Kafka refused one topic.
    #[error("Kafka refused the topic {topic}")]
    Refused {
        /// The full name.
        topic: String,
        /// Kafka's reason.
        source: RDKafkaErrorCode,
    },
    /// The thread that asks has panicked.
    #[error("the probe of Kafka panicked")]
    Panicked(#[from] tokio::task::JoinError),
}

/// Makes the topics that are missing and gives existing ones the specified settings; safe to repeat.
///
/// # Errors
/// When Kafka does not answer or refuses; topics before the refused one are done.
pub async fn ensure_topics(
    config: &KafkaConfig,
    specs: &[TopicSpec<'_>],
) -> Result<Vec<Ensured>, EnsureError> {
    let admin: AdminClient<Context> =
        config.client_config("migrate").create_with_context(Context::default())?;
    let admin = std::sync::Arc::new(admin);
    let asking = std::sync::Arc::clone(&admin);
    let existing: BTreeMap<String, usize> = tokio::task::spawn_blocking(move || {
        let metadata = asking.inner().fetch_metadata(None, TIMEOUT)?;
        let counts =
            metadata.topics().iter().map(|topic| (topic.name().to_owned(), topic.partitions().len()));
        Ok::<_, KafkaError>(counts.collect())
    })
    .await??;

    let mut done = Vec::with_capacity(specs.len());
    for spec in specs {
        let topic = config.topic(spec.name);
        let created = !existing.contains_key(&topic) && create(&admin, &topic, spec).await?;
        let altered = if created { Vec::new() } else { alter(&admin, &topic, spec).await? };
        let differing_partitions =
            existing.get(&topic).copied().filter(|count| usize::try_from(spec.partitions) != Ok(*count));
        done.push(Ensured { topic, created, altered, differing_partitions });
    }
    Ok(done)
}

/// Makes a topic; returns false when somebody else made it meanwhile.
async fn create(
    admin: &AdminClient<Context>,
    topic: &str,
    spec: &TopicSpec<'_>,
) -> Result<bool, EnsureError> {
    let mut new = NewTopic::new(topic, spec.partitions, TopicReplication::Fixed(BROKER_DEFAULT));
    for (name, value) in spec.config {
        new = new.set(name, value);
    }
    for outcome in admin.create_topics([&new], &options()).await? {
        match outcome {
            Ok(_) => {}
            Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => return Ok(false),
            Err((topic, source)) => return Err(EnsureError::Refused { topic, source }),
        }
    }
    Ok(true)
}

/// Gives a topic the specified settings; returns those that were different.
async fn alter(
    admin: &AdminClient<Context>,
    topic: &str,
    spec: &TopicSpec<'_>,
) -> Result<Vec<(String, String, String)>, EnsureError> {
    let refused = |source| EnsureError::Refused { topic: topic.to_owned(), source };
    let resource = ResourceSpecifier::Topic(topic);
    let mut altered = Vec::new();
    for described in admin.describe_configs([&resource], &options()).await? {
        let found = described.map_err(refused)?;
        let differences = differences(&found, spec);
        if differences.is_empty() {
            continue;
        }
        // This request resets every setting that it does not name, so it names the topic's own ones too.
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
            outcome.map_err(|(_, source)| refused(source))?;
        }
        altered.extend(differences);
    }
    Ok(altered)
}

/// Returns the settings that are not as specified, as (name, found, specified).
fn differences(found: &ConfigResource, spec: &TopicSpec<'_>) -> Vec<(String, String, String)> {
    spec.config
        .iter()
        .filter_map(|(name, wanted)| {
            let value = found.get(name).and_then(|entry| entry.value.as_deref()).unwrap_or_default();
            (value != *wanted).then(|| ((*name).to_owned(), value.to_owned(), (*wanted).to_owned()))
        })
        .collect()
}

fn options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(TIMEOUT)).operation_timeout(Some(TIMEOUT))
}
