//! Live clicks as server-sent events.
//!
//! One thread of each process reads the end of topic `clicks` and passes each click to the listeners of its workspace.
//! The last clicks of a workspace with listeners are kept: a stream reads them at its own pace, and can resume where it
//! broke. One that is further behind gets event `gap`.

pub(crate) mod event;
pub(crate) mod follow;
pub(crate) mod hub;
pub(crate) mod stream;
