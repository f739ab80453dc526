//! Live clicks as server-sent events.
//!
//! One thread of each process reads the end of topic `clicks` and passes each click to the listeners of its workspace.
//! The last clicks of a workspace with listeners are kept, so that a stream can resume where it broke. A listener that
//! is too slow is cut off, and resumes in the same way.

pub(crate) mod event;
pub(crate) mod follow;
pub(crate) mod hub;
pub(crate) mod stream;
