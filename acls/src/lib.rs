//! Gives the programs' users their rights in Kafka.
//!
//! Calls librdkafka's `rd_kafka_CreateAcls` directly: rdkafka has no binding for it, and Kafka's own tool starts a JVM
//! for each line.

use std::ffi::{CStr, CString, NulError, c_char, c_int};
use std::ptr;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::bindings::{
    self, rd_kafka_AclOperation_t as AclOperation, rd_kafka_AclPermissionType_t as Permission,
    rd_kafka_ResourcePatternType_t as Pattern, rd_kafka_ResourceType_t as ResourceType,
};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use schemas::grants::{Acl, Operation, Resource, User};

/// How long Kafka may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Kafka's name for the cluster as a resource.
const CLUSTER: &str = "kafka-cluster";

/// Why rights could not be added.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The client cannot be created.
    #[error("a client of Kafka cannot be created")]
    Client(#[from] KafkaError),
    /// A name has a character that librdkafka cannot take.
    #[error("a name contains a null character")]
    Name(#[from] NulError),
    /// Kafka gave no answer.
    #[error("Kafka has not answered within {TIMEOUT:?}")]
    NoAnswer,
    /// Kafka's reason.
    #[error("Kafka rejects them: {0}")]
    Rejected(String),
    /// The thread panicked.
    #[error("the request panicked")]
    Panicked(#[from] tokio::task::JoinError),
}

/// Adds ACLs with the client of a user who may alter Kafka's cluster; those that exist stay as they are.
///
/// # Errors
/// When Kafka rejects one, or does not answer.
pub async fn add(client: ClientConfig, acls: Vec<Acl>) -> Result<(), Error> {
    let add = move || {
        let bindings = acls
            .iter()
            .flat_map(|acl| acl.operations.iter().map(move |operation| (acl, *operation)))
            .flat_map(|(acl, operation)| {
                acl.resources.iter().map(move |resource| binding(acl.user, operation, resource))
            })
            .collect::<Result<Vec<_>, NulError>>()?;
        create(&client.create()?, &bindings)
    };
    tokio::task::spawn_blocking(add).await?
}

/// What librdkafka takes of one ACL.
struct Binding {
    resource: ResourceType,
    name: CString,
    principal: CString,
    operation: AclOperation,
}

fn binding(user: User, operation: Operation, resource: &Resource) -> Result<Binding, NulError> {
    let (kind, name) = match resource {
        Resource::Topic(name) => (ResourceType::RD_KAFKA_RESOURCE_TOPIC, name.as_str()),
        Resource::Group(name) => (ResourceType::RD_KAFKA_RESOURCE_GROUP, name.as_str()),
        Resource::TransactionalId(name) => (ResourceType::RD_KAFKA_RESOURCE_TRANSACTIONAL_ID, name.as_str()),
        Resource::Cluster => (ResourceType::RD_KAFKA_RESOURCE_BROKER, CLUSTER),
    };
    let operation = match operation {
        Operation::Read => AclOperation::RD_KAFKA_ACL_OPERATION_READ,
        Operation::Write => AclOperation::RD_KAFKA_ACL_OPERATION_WRITE,
        Operation::Create => AclOperation::RD_KAFKA_ACL_OPERATION_CREATE,
        Operation::Describe => AclOperation::RD_KAFKA_ACL_OPERATION_DESCRIBE,
        Operation::DescribeConfigs => AclOperation::RD_KAFKA_ACL_OPERATION_DESCRIBE_CONFIGS,
        Operation::AlterConfigs => AclOperation::RD_KAFKA_ACL_OPERATION_ALTER_CONFIGS,
    };
    Ok(Binding {
        resource: kind,
        name: CString::new(name)?,
        principal: CString::new(format!("User:{}", user.name()))?,
        operation,
    })
}

#[allow(unsafe_code)]
fn create(client: &BaseConsumer, acls: &[Binding]) -> Result<(), Error> {
    let client = client.client().native_ptr();
    let mut reason: [c_char; 512] = [0; 512];
    let timeout = c_int::try_from(TIMEOUT.as_millis()).unwrap_or(c_int::MAX);
    // SAFETY: the client outlives this function; every object is made and destroyed here, in reverse order, and the
    // result is read before its event is destroyed. librdkafka refuses, with a null, only an argument that is missing.
    unsafe {
        let queue = bindings::rd_kafka_queue_new(client);
        let mut natives: Vec<_> = acls
            .iter()
            .map(|acl| {
                bindings::rd_kafka_AclBinding_new(
                    acl.resource,
                    acl.name.as_ptr(),
                    Pattern::RD_KAFKA_RESOURCE_PATTERN_LITERAL,
                    acl.principal.as_ptr(),
                    c"*".as_ptr(),
                    acl.operation,
                    Permission::RD_KAFKA_ACL_PERMISSION_TYPE_ALLOW,
                    reason.as_mut_ptr(),
                    reason.len(),
                )
            })
            .collect();
        bindings::rd_kafka_CreateAcls(client, natives.as_mut_ptr(), natives.len(), ptr::null(), queue);
        let event = bindings::rd_kafka_queue_poll(queue, timeout);
        let added = if event.is_null() {
            Err(Error::NoAnswer)
        } else {
            let mut count = 0;
            let result = bindings::rd_kafka_event_CreateAcls_result(event);
            let results = bindings::rd_kafka_CreateAcls_result_acls(result, &raw mut count);
            let rejected =
                |reason| Err(Error::Rejected(CStr::from_ptr(reason).to_string_lossy().into_owned()));
            let error = (0..count)
                .map(|place| bindings::rd_kafka_acl_result_error(*results.add(place)))
                .find(|error| !error.is_null());
            let added = match error {
                // The broker's own text has its internals.
                Some(error) => rejected(bindings::rd_kafka_err2str(bindings::rd_kafka_error_code(error))),
                None if count == acls.len() => Ok(()),
                None => rejected(bindings::rd_kafka_event_error_string(event)),
            };
            bindings::rd_kafka_event_destroy(event);
            added
        };
        for native in natives {
            bindings::rd_kafka_AclBinding_destroy(native);
        }
        bindings::rd_kafka_queue_destroy(queue);
        added
    }
}
