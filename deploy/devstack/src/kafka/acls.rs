//! Adds ACLs to Kafka. Calls librdkafka's `rd_kafka_CreateAcls` directly, because rdkafka has no binding for it, and
//! Kafka's own tool takes seconds for each.

use std::ffi::{CStr, CString, NulError, c_char};
use std::ptr;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::bindings::{
    self, rd_kafka_AclOperation_t as AclOperation, rd_kafka_AclPermissionType_t as Permission,
    rd_kafka_ResourcePatternType_t as Pattern, rd_kafka_ResourceType_t as ResourceType,
};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use schemas::grants::{Acl, Operation, Resource, User};

use crate::{Cause, Error};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Kafka's name for the cluster as a resource.
const CLUSTER: &str = "kafka-cluster";

/// Adds ACLs with an administrator's client.
///
/// # Errors
/// When Kafka rejects one.
pub async fn add_acls(client: ClientConfig, acls: Vec<Acl>) -> Result<(), Error> {
    let add = move || -> Result<(), Cause> {
        let bindings = acls
            .iter()
            .flat_map(|acl| acl.operations.iter().map(move |operation| (acl, *operation)))
            .flat_map(|(acl, operation)| {
                acl.resources.iter().map(move |resource| binding(acl.user, operation, resource))
            })
            .collect::<Result<Vec<_>, _>>()?;
        create(&client.create()?, &bindings)
    };
    let added = tokio::task::spawn_blocking(add).await.unwrap_or_else(|error| Err(error.into()));
    added.map_err(|error| Error::Invalid(format!("Kafka's rights cannot be added: {error}")))
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
fn create(client: &BaseConsumer, acls: &[Binding]) -> Result<(), Cause> {
    let client = client.client().native_ptr();
    let mut reason: [c_char; 512] = [0; 512];
    let timeout = i32::try_from(TIMEOUT.as_millis())?;
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
            Err(format!("no answer within {TIMEOUT:?}").into())
        } else {
            let mut count = 0;
            let result = bindings::rd_kafka_event_CreateAcls_result(event);
            let results = bindings::rd_kafka_CreateAcls_result_acls(result, &raw mut count);
            let error = (0..count)
                .map(|place| bindings::rd_kafka_acl_result_error(*results.add(place)))
                .find(|error| !error.is_null())
                .map(|error| CStr::from_ptr(bindings::rd_kafka_error_string(error)).to_string_lossy());
            let added = match error {
                Some(error) => Err(error.into_owned().into()),
                None if count == acls.len() => Ok(()),
                None => Err(CStr::from_ptr(bindings::rd_kafka_event_error_string(event))
                    .to_string_lossy()
                    .into_owned()
                    .into()),
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
