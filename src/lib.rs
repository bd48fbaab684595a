//! dripd turns bursts into a steady drip: per-key queues in Redis, each a leaky bucket as a queue, emptied at a constant
//! rate by a timer.
//!
//! A folder is a layer. Imports point down this list only (a test checks it):
//!
//! | folder | job | may import |
//! |---|---|---|
//! | [`cli`] | the commands, a file for each family | everything |
//! | [`daemon`] | what runs together: start list, supervision, reload | everything but `cli` |
//! | [`http`] | the HTTP server: the commands, the dashboard and metrics, in a thread of its own | what is below |
//! | [`operate`] | operators' commands: a request, an outcome and one way to run it, for the command line and HTTP | what is below |
//! | [`loops`], [`worker`] | the loops of a daemon, and the ready-made worker; no loop imports another | what is below |
//! | [`simulate`] | a look ahead: traffic through the real functions on a throw-away Redis | what is below |
//! | [`explain`] | what binds a bucket, in words: used by whoever is asked | store, config, model |
//! | [`system`] | the built-in Redis, signals, systemd, a precise timer, the control socket | store, config, model |
//! | [`store`] | the only place that names a key, a function or the redis crate; the Lua library lives here | config, model |
//! | [`config`] | what the operator wrote, and what it means | model |
//! | [`model`] | names, rates, durations, policies, limiters: parse, print, bounds | std and serde; no I/O, no clock |
//!
//! The main paths: a plain `LPUSH` is [`store::wake`] → [`loops::pacer`] → `Store::drain` → `FCALL`; the clock is
//! [`loops::pacer`] → `Store::drain` → `FCALL`; a worker's slot is [`worker`] → `Store::take` → run → `Store::ack` or
//! `Store::fail`.
//!
//! The glossary is in the README; the words there are the words here.

pub mod cli;
pub mod config;
pub mod daemon;
pub mod explain;
pub mod http;
pub mod loops;
pub mod model;
pub mod operate;
pub mod simulate;
pub mod store;
pub mod system;
pub mod worker;
