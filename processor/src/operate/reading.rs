//! Reading a part of a topic from its start to its end, beside whoever consumes it.

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

/// How long Kafka may be silent before reading is given up.
const PATIENCE: Duration = Duration::from_secs(30);

const POLL: Duration = Duration::from_millis(100);

/// Records that are handed over at a time.
const CHUNK: usize = 1_000;

/// Chunks that may wait for whoever takes them.
const CHUNKS: usize = 4;

/// Why a topic could not be read to the end.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Kafka did not answer, or said no.
    #[error("cannot read topic {topic}: {source}")]
    Kafka {
        /// The full name.
        topic: Arc<str>,
        /// Kafka's reason.
        source: KafkaError,
    },
    /// Nothing came for a while.
    #[error("topic {topic}, partition {partition}: nothing came from Kafka for {} s", PATIENCE.as_secs())]
    Silence {
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
    /// Which offsets. The log must reach to the end of them; it may have lost the first ones.
    pub offsets: Range<u64>,
}

/// Reads a part on a thread of its own, and gives in order what `take` makes of the records, some at a time.
///
/// The last item is an error if the part could not be read to its end. Dropping the receiver ends the reading.
pub fn read<T: Send + 'static>(
    kafka: &KafkaConfig,
    part: Part,
    take: impl FnMut(&BorrowedMessage<'_>) -> T + Send + 'static,
) -> Receiver<Result<Vec<T>, ReadError>> {
    let (chunks, receiver) = channel(CHUNKS);
    let mut config = kafka.client_config("processor-reader");
    config
        // Nothing is committed and no group is joined, but librdkafka wants a name.
        .set("group.id", "hopline-reader")
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
            // Nobody may listen any more.
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
    let mut heard = Instant::now();
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
                // The end of what its leader shows at the moment; a new leader may be about to show more.
                let (_, high) = consumer.fetch_watermarks(topic, *partition, PATIENCE).map_err(failed)?;
                let is_whole = u64::try_from(high).unwrap_or(0) >= offsets.end;
                if !is_whole && heard.elapsed() < PATIENCE {
                    continue;
                }
                if !is_whole {
                    return Err(ReadError::Silence { topic: Arc::clone(topic), partition: *partition });
                }
                true
            }
            Some(Err(error @ KafkaError::MessageConsumptionFatal(_))) => return Err(failed(error)),
            // librdkafka tries again by itself.
            Some(Err(_)) | None if heard.elapsed() < PATIENCE => continue,
            Some(Err(error)) => return Err(failed(error)),
            None => {
                return Err(ReadError::Silence { topic: Arc::clone(topic), partition: *partition });
            }
        };
        heard = Instant::now();
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
