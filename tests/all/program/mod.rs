//! The built binary from outside: what its commands say, their exit codes, and what they leave in Redis.

use std::time::Duration;

pub use crate::shell::{Running, Shell, Stopped, Work, at_a_terminal, proc, said, signal};

mod acl;
mod acl_refused;
mod built_in_redis;
mod check;
mod cluster;
mod daemon;
mod dead;
mod demo;
mod events;
mod explain;
mod faults;
mod healthcheck;
mod help;
mod hostile_text;
pub mod http;
mod http_connections;
mod http_memory;
mod http_operate;
mod http_push;
mod http_redis;
mod http_schema;
mod http_sockets;
mod http_some_buckets;
mod http_who;
pub mod library;
mod lifetimes;
mod limit;
mod link;
mod log;
mod metrics;
mod names;
mod operate;
mod partitions;
mod polling;
mod purge;
mod push;
mod push_file;
mod reach;
mod ready_window;
mod refusals;
mod reload;
mod simulate;
mod slots;
mod slow;
mod standby;
mod status;
mod stop;
mod submit;
mod terminal;
mod told;
mod top;
mod top_screen;
mod tree;
mod trust;
mod waking;
mod work;
mod work_http;
mod work_spans;
mod writes_refused;

/// Within which a worker stops: five seconds are promised, the rest is for a machine that is busy.
const STOPS_WITHIN: Duration = Duration::from_secs(10);
