//! Adds ACLs to Kafka. Calls librdkafka's `rd_kafka_CreateAcls` directly, because rdkafka has no binding for it, and
//! Kafka's own tool takes seconds for each.

use std::ffi::{CString, c_char};
use std::ptr;
use std::time::Duration;

use rdkafka::bindings::{
    self, rd_kafka_AclOperation_t as AclOperation, rd_kafka_AclPermissionType_t as Permission,
    rd_kafka_ResourcePatternType_t as Pattern, rd_kafka_ResourceType_t as ResourceType,
};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use schemas::grants::{Acl, Operation, Resource, User};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Kafka's name for the cluster as a resource.
const CLUSTER: &str = "kafka-cluster";

/// Adds ACLs with an administrator's client. Blocks.
///
/// # Panics
/// When Kafka rejects them.
pub(crate) fn add(client: &BaseConsumer, acls: &[Acl]) {
    let bindings: Vec<_> = acls
        .iter()
        .flat_map(|acl| acl.operations.iter().map(move |operation| (acl, *operation)))
        .flat_map(|(acl, operation)| {
            acl.resources.iter().map(move |resource| binding(acl.user, operation, resource))
        })
        .collect();
    create(client, bindings);
}

/// What librdkafka takes of one ACL.
struct Binding {
    resource: ResourceType,
    name: CString,
    principal: CString,
    operation: AclOperation,
}

fn binding(user: User, operation: Operation, resource: &Resource) -> Binding {
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
    Binding {
        resource: kind,
        name: CString::new(name).unwrap(),
        principal: CString::new(format!("User:{}", user.name())).unwrap(),
        operation,
    }
}

#[allow(unsafe_code)]
fn create(client: &BaseConsumer, acls: Vec<Binding>) {
    let client = client.client().native_ptr();
    let mut reason: [c_char; 512] = [0; 512];
    // SAFETY: the client outlives this function; every object is made and destroyed here, in reverse order, and the
    // result is read before its event is destroyed.
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
        assert!(natives.iter().all(|native| !native.is_null()), "librdkafka refuses an ACL");
        bindings::rd_kafka_CreateAcls(client, natives.as_mut_ptr(), natives.len(), ptr::null(), queue);
        let event = bindings::rd_kafka_queue_poll(queue, i32::try_from(TIMEOUT.as_millis()).unwrap());
        assert!(!event.is_null(), "Kafka did not answer within {TIMEOUT:?}");
        let mut count = 0;
        let result = bindings::rd_kafka_event_CreateAcls_result(event);
        let results = bindings::rd_kafka_CreateAcls_result_acls(result, &raw mut count);
        assert_eq!(count, acls.len());
        for (place, acl) in acls.iter().enumerate() {
            let error = bindings::rd_kafka_acl_result_error(*results.add(place));
            assert!(error.is_null(), "Kafka refuses {:?} on {:?}", acl.operation, acl.name);
        }
        bindings::rd_kafka_event_destroy(event);
        for native in natives {
            bindings::rd_kafka_AclBinding_destroy(native);
        }
        bindings::rd_kafka_queue_destroy(queue);
    }
}
