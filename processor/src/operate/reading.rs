//! Reads a range of a topic from start to end, independently of its consumers.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::BorrowedMessage;
use rdkafka::{Message as _, Offset, TopicPartitionList};
use service::kafka::{Context, KafkaConfig};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::spawn_blocking;

/// The consumer group of readers. They neither join it nor commit, but librdkafka wants a name, and asks for the
/// group's coordinator.
pub const GROUP: &str = "hopline-reader";

/// How long Kafka may send nothing before reading fails.
const TIMEOUT: Duration = Duration::from_secs(30);

const POLL: Duration = Duration::from_millis(100);

/// Records of one chunk.
const CHUNK: usize = 1_000;

/// Chunks that may wait in the channel.
const CHUNKS: usize = 4;

/// Why a topic could not be read to the end.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Kafka did not answer, or returned an error.
    #[error("cannot read topic {topic}")]
    Kafka {
        /// The full name.
        topic: Arc<str>,
        /// Kafka's reason.
        source: KafkaError,
    },
    /// Kafka sent nothing before the timeout.
    #[error("topic {topic}, partition {partition}: Kafka sent nothing for {} s", TIMEOUT.as_secs())]
    Timeout {
        /// The full name.
        topic: Arc<str>,
        /// The partition.
        partition: i32,
    },
}

/// A range of a partition's offsets.
#[derive(Debug, Clone)]
pub struct Part {
    /// The topic's full name.
    pub topic: Arc<str>,
    /// The partition.
    pub partition: i32,
    /// The offsets. The log must reach their end; it may have lost the first ones.
    pub offsets: Range<u64>,
}

/// Reads a part on a separate thread, and sends the values that `take` returns for the records, in order and in chunks.
///
/// The last item is an error if the part could not be read to its end. Dropping the receiver stops the thread.
pub fn read<T: Send + 'static>(
    kafka: &KafkaConfig,
    part: Part,
    take: impl FnMut(&BorrowedMessage<'_>) -> T + Send + 'static,
) -> Receiver<Result<Vec<T>, ReadError>> {
    let (chunks, receiver) = channel(CHUNKS);
    let mut config = kafka.client_config("processor-reader");
    config
        .set("group.id", kafka.topic(GROUP))
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("isolation.level", "read_committed")
        .set("auto.offset.reset", "earliest")
        .set("queued.max.messages.kbytes", "16384")
        .set("fetch.queue.backoff.ms", "20");
    spawn_blocking(move || {
        let topic = Arc::clone(&part.topic);
        if let Err(error) = config
            .create_with_context(Context::default())
            .map_err(|source| ReadError::Kafka { topic, source })
            .and_then(|consumer| poll(&consumer, &part, take, &chunks))
        {
            // The receiver may be gone.
            let _ = chunks.blocking_send(Err(error));
        }
    });
    receiver
}

fn poll<T>(
    consumer: &BaseConsumer<Context>,
    part: &Part,
    mut take: impl FnMut(&BorrowedMessage<'_>) -> T,
    chunks: &Sender<Result<Vec<T>, ReadError>>,
) -> Result<(), ReadError> {
    let Part { topic, partition, offsets } = part;
    let failed = |source| ReadError::Kafka { topic: Arc::clone(topic), source };
    if offsets.is_empty() {
        return Ok(());
    }
    let mut start = TopicPartitionList::new();
    // Kafka's offsets fit, they are never negative.
    let first = Offset::Offset(i64::try_from(offsets.start).unwrap_or(i64::MAX));
    start.add_partition_offset(topic, *partition, first).map_err(failed)?;
    consumer.assign(&start).map_err(failed)?;

    let mut chunk = Vec::with_capacity(CHUNK);
    let mut last_message = Instant::now();
    loop {
        let ended = match consumer.poll(POLL) {
            Some(Ok(message)) => {
                let offset = u64::try_from(message.offset()).unwrap_or(0);
                if offset < offsets.end {
                    chunk.push(take(&message));
                }
                offset + 1 >= offsets.end
            }
            Some(Err(KafkaError::PartitionEOF(_))) => {
                // The end by the current leader; a new leader may soon have more.
                let (_, high) = consumer.fetch_watermarks(topic, *partition, TIMEOUT).map_err(failed)?;
                let is_whole = u64::try_from(high).unwrap_or(0) >= offsets.end;
                if !is_whole && last_message.elapsed() < TIMEOUT {
                    continue;
                }
                if !is_whole {
                    return Err(ReadError::Timeout { topic: Arc::clone(topic), partition: *partition });
                }
                true
            }
            Some(Err(error @ KafkaError::MessageConsumptionFatal(_))) => return Err(failed(error)),
            // librdkafka retries.
            Some(Err(_)) | None if last_message.elapsed() < TIMEOUT => continue,
            Some(Err(error)) => return Err(failed(error)),
            None => {
                return Err(ReadError::Timeout { topic: Arc::clone(topic), partition: *partition });
            }
        };
        last_message = Instant::now();
        if (ended || chunk.len() >= CHUNK) && !chunk.is_empty() {
            let full = std::mem::replace(&mut chunk, Vec::with_capacity(CHUNK));
            if chunks.blocking_send(Ok(full)).is_err() {
                return Ok(());
            }
        }
        if ended {
            return Ok(());
        }
    }
}
