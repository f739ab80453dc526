//! Clicks as they happen, to whoever listens, as server-sent events.
//!
//! One thread of each process reads the end of topic `clicks` and gives each click to those who listen to its
//! workspace. A bounded number of the last clicks of a workspace that is listened to is kept, so that a stream that
//! broke goes on where it broke. A listener that is too slow is cut off, and goes on from there in the same way.

pub(crate) mod event;
pub(crate) mod follow;
pub(crate) mod hub;
pub(crate) mod stream;
