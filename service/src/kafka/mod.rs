//! What every Kafka client of ours has in common.

mod context;
mod settings;
mod topics;
mod watch;

pub use context::Context;
pub use settings::KafkaConfig;
pub(crate) use settings::{BROKERS, property_faults};
pub use topics::{EnsureError, Ensured, TopicSpec, ensure_topics};
pub use watch::watch;
