//! The basic values of dripd: names, rates, durations, policies, limiters. They are parsed, printed and checked here.
//! No I/O, no clock.

pub mod bucket;
pub mod counted;
pub mod duration;
pub mod entry;
pub mod escape;
pub mod expectation;
pub mod forward;
pub mod glob;
pub mod limiter;
pub mod naming;
pub mod node;
pub mod parent;
pub mod partitioning;
pub mod policy;
pub mod quota;
pub mod rate;
pub mod ready_window;
pub mod route;
pub mod source;
pub mod subject;
mod words;

pub(crate) use words::words;
