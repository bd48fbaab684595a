//! Every test that needs a Redis, in one program: one server a run, a prefix a case.
//!
//! `rig` starts the server and speaks to it; the other files are claims about behaviour, by subject.

mod rig;

mod bench;
mod bucket;
mod built_in_redis;
mod daemon;
mod defaults;
mod drain;
mod faults;
mod gates;
mod globs;
mod heartbeat;
mod jobs;
mod kept;
mod layers;
mod library;
mod limiters;
mod limiters_model;
mod link;
mod model;
mod policies;
mod polling;
mod program;
mod rate;
mod reload;
mod sizes;
mod stop;
mod systemd;
