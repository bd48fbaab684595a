//! Redis: the only place that names a key, a function or the redis crate.
//!
//! A [`Store`] is a connection to the server at an [`Address`], for the keys of one [`Partition`]; a [`Partitions`] is one for each partition of
//! a system, and asks or tells all of them what concerns all. From the bottom up:
//!
//! | file or folder | job |
//! |---|---|
//! | `keys` | every key by its name, and which partition it belongs to |
//! | `connection` | address, login, TLS, Sentinel, cluster: a server that answers calls, errors, rights |
//! | `client`, `library`, `reply` | a command or a function is called, and its reply decoded |
//! | `wake` | what Redis reports of changed keys |
//! | `partitions` | all partitions, the servers that have them, and a connection that comes back |
//! | `server`, `heartbeat` | what a server is and lacks, and which daemons are alive |
//! | `jobs` | a job's life: push, drain, work, reap |
//! | `control` | what is set: the record, settings, pauses, purges, dead letters |
//! | `view` | what only reads |
//! | `functions` | the Lua library |
//! | `simulation` | a simulated system: the library, and an event loop beside it |
//!
//! A lost connection is never mended by a [`Store`]: whoever owns the loops drops it and connects anew.

#![allow(clippy::missing_errors_doc)] // any call may fail as StoreError says

mod client;
mod connection;
mod control;
pub mod heartbeat;
pub mod jobs;
pub mod keys;
pub mod library;
mod partitions;
mod reply;
pub mod server;
pub mod simulation;
pub mod view;
pub mod wake;

pub use client::Store;
pub use connection::{Address, StoreError, acl, timing};
pub use control::{change, dead, purge, record, replication, settings};
pub use jobs::{note, submit};
pub use keys::{Layout, Partition, partition};
pub use partitions::{Partitions, link, primary};
pub use view::{bucket_page, explain, figures, level_limits, routes, snapshots, status, top, walk, what_if};
