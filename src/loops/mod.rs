//! The loops of a daemon. Each is a `select!` around a step; none imports another.

pub mod changes;
pub mod copies;
pub mod heartbeat;
pub mod notes;
pub mod pacer;
pub mod progress;
pub mod reaper;
pub mod reconciler;
mod share;
mod turn;
pub mod walk;
