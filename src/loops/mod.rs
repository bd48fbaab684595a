//! The loops of a daemon. Each is a `select!` around a step; none imports another.

pub mod changes;
pub mod heartbeat;
pub mod notes;
pub mod pacer;
pub mod progress;
mod ranking;
pub mod reaper;
pub mod reconciler;
pub mod replicator;
pub mod walk;
