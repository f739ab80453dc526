//! Settings, topics, probes and dead letters of Kafka clients.

mod context;
mod dead_letters;
mod settings;
mod topic_ids;
mod topics;
mod watch;

pub use context::Context;
pub use dead_letters::DeadLetters;
pub use settings::KafkaConfig;
pub use topic_ids::topic_ids;
pub use topics::{EnsureError, EnsuredTopic, TopicSpec, add_partitions, ensure_topics, plan_topics};
pub use watch::{spawn_watch, watch};
