//! Topic ids: a topic that was deleted and recreated has the same name and a new id.
//!
//! Calls librdkafka's `rd_kafka_DescribeTopics` (since 2.3) directly, because rdkafka has no binding for it.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::ptr::NonNull;
use std::time::Duration;

use rdkafka::client::Client;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientContext, bindings};
use uuid::Uuid;

/// Returns the ids of topics by full name; topics that do not exist are omitted. Blocks.
///
/// # Errors
/// When Kafka does not answer within `timeout`, or answers with an error.
pub fn topic_ids<C: ClientContext>(
    client: &Client<C>,
    topics: &[&str],
    timeout: Duration,
) -> KafkaResult<BTreeMap<String, Uuid>> {
    let timeout = c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX);
    let names = topics.iter().map(|name| CString::new(*name)).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    describe(client.native_ptr(), names, timeout)
}

/// A librdkafka object, with the function that frees it on drop.
struct Owned<T>(NonNull<T>, unsafe extern "C" fn(*mut T));

impl<T> Owned<T> {
    fn new(object: *mut T, free: unsafe extern "C" fn(*mut T)) -> KafkaResult<Self> {
        NonNull::new(object).map(|object| Self(object, free)).ok_or(NO_OBJECT)
    }
}

/// librdkafka has returned a null pointer.
const NO_OBJECT: KafkaError = KafkaError::AdminOp(RDKafkaErrorCode::Fail);

impl<T> Drop for Owned<T> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the object comes from the constructor that matches this function, and is freed only here.
        unsafe { (self.1)(self.0.as_ptr()) }
    }
}

#[allow(unsafe_code)]
fn describe(
    client: *mut bindings::rd_kafka_t,
    mut names: Vec<*const c_char>,
    timeout: c_int,
) -> KafkaResult<BTreeMap<String, Uuid>> {
    // SAFETY: `client` and `names` outlive this function. Objects are freed at the end of the scope in reverse order;
    // what is read from the event is copied before.
    unsafe {
        let queue = Owned::new(bindings::rd_kafka_queue_new(client), bindings::rd_kafka_queue_destroy)?;
        let options = Owned::new(
            bindings::rd_kafka_AdminOptions_new(
                client,
                bindings::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS,
            ),
            bindings::rd_kafka_AdminOptions_destroy,
        )?;
        check(bindings::rd_kafka_AdminOptions_set_request_timeout(
            options.0.as_ptr(),
            timeout,
            ptr::null_mut(),
            0,
        ))?;
        let topics = Owned::new(
            bindings::rd_kafka_TopicCollection_of_topic_names(names.as_mut_ptr(), names.len()),
            bindings::rd_kafka_TopicCollection_destroy,
        )?;
        bindings::rd_kafka_DescribeTopics(client, topics.0.as_ptr(), options.0.as_ptr(), queue.0.as_ptr());
        let event = bindings::rd_kafka_queue_poll(queue.0.as_ptr(), timeout);
        let event = Owned::new(event, bindings::rd_kafka_event_destroy)
            .map_err(|_| KafkaError::MetadataFetch(RDKafkaErrorCode::OperationTimedOut))?;
        check(bindings::rd_kafka_event_error(event.0.as_ptr()))?;
        let result = bindings::rd_kafka_event_DescribeTopics_result(event.0.as_ptr());
        if result.is_null() {
            return Err(NO_OBJECT);
        }
        let mut count = 0;
        let found = bindings::rd_kafka_DescribeTopics_result_topics(result, &raw mut count);
        let mut ids = BTreeMap::new();
        for index in 0..count {
            let topic = *found.add(index);
            match bindings::rd_kafka_error_code(bindings::rd_kafka_TopicDescription_error(topic)) {
                RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART => continue,
                code => check(code)?,
            }
            let name = CStr::from_ptr(bindings::rd_kafka_TopicDescription_name(topic));
            let id = bindings::rd_kafka_TopicDescription_topic_id(topic);
            let id = Uuid::from_u64_pair(
                bindings::rd_kafka_Uuid_most_significant_bits(id).cast_unsigned(),
                bindings::rd_kafka_Uuid_least_significant_bits(id).cast_unsigned(),
            );
            ids.insert(name.to_string_lossy().into_owned(), id);
        }
        Ok(ids)
    }
}

fn check(code: RDKafkaRespErr) -> KafkaResult<()> {
    match code {
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(()),
        code => Err(KafkaError::MetadataFetch(code.into())),
    }
}
