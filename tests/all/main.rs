//! Every test that needs a Redis, in one program: one server a run, a prefix a case.
//!
//! `rig` starts the server and speaks to it, `roles` as which users, `cluster` makes one of several; the other files are claims about behaviour, by subject.

mod rig;

mod bench;
mod chaos;
mod cluster;
mod docs;
mod functions;
mod fuzz;
mod layers;
mod program;
mod roles;
