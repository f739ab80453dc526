//! What every Kafka client of ours has in common.

mod context;
mod dead_letters;
mod settings;
mod topic_ids;
mod topics;
mod watch;

pub use context::Context;
pub use dead_letters::DeadLetters;
pub use settings::KafkaConfig;
pub(crate) use settings::{BROKERS, property_faults};
pub use topic_ids::topic_ids;
pub use topics::{EnsureError, Ensured, TopicSpec, ensure_topics};
pub use watch::watch;
