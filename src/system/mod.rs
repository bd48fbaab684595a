//! The machine around the daemon: the built-in Redis, signals, systemd, a precise timer, the control socket, processes.

pub mod built_in_redis;
pub mod control;
pub mod processes;
pub mod scratch_redis;
pub mod signals;
pub mod systemd;
pub mod timer;
pub mod unix_socket;
