//! Every test that needs a Redis, in one program: one server a run, a prefix a case.
//!
//! `rig` starts the server and speaks to it; the other files are claims about behaviour, by subject.

mod rig;

mod bench;
mod bucket;
mod built_in_redis;
mod cli;
mod daemon;
mod drain;
mod faults;
mod gates;
mod heartbeat;
mod jobs;
mod layers;
mod library;
mod limit;
mod limiters;
mod limiters_model;
mod model;
mod polling;
mod rate;
mod reload;
mod stop;
mod systemd;
