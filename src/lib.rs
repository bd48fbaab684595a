//! dripd turns bursts into a steady drip: per-key queues in Redis, each a leaky bucket as a queue, emptied at a constant
//! rate by a timer.
//!
//! Layers, imports pointing down only:
//!
//! | layer | modules | may use |
//! |---|---|---|
//! | words | [`bucket`], [`duration`], [`limiter`], [`policy`] | std and serde; no I/O, no clock |
//! | config | [`config`] | words |
//! | outside | [`store`] (the only place that names a key, a function or the redis crate), [`managed_redis`], [`signals`], [`notify`], [`control`], [`timer`] | words, config |
//! | loops | [`pacer`], [`reaper`], [`reconcile`], [`worker`]; none imports another; [`progress`] is what the pacer tells of itself | everything above |
//! | assembly | [`daemon`], [`cli`] | everything |
//! | bench | `bench`, with the feature of that name: measures the program from outside, as a client of the same Redis | words, keys, own Redis |
//!
//! The main paths: a plain `LPUSH` is [`store::wake`] → [`pacer`] → `Store::drain` → `FCALL`; the clock is [`pacer`] →
//! `Store::drain` → `FCALL`; a worker's slot is [`worker`] → `Store::take` → run → `Store::ack` or `Store::fail`.
//!
//! The glossary is in the README; the words there are the words here.

#[cfg(feature = "bench")]
pub mod bench;
pub mod bucket;
pub mod cli;
pub mod config;
pub mod control;
pub mod daemon;
pub mod duration;
pub mod limiter;
pub mod managed_redis;
pub mod notify;
pub mod pacer;
pub mod policy;
pub mod progress;
pub mod reaper;
pub mod reconcile;
pub mod signals;
pub mod store;
pub mod timer;
pub mod worker;
