//! Every test that needs a Redis, in one program: one server a run, a prefix a case.
//!
//! `rig` starts the server and speaks to it, `roles` as which users, `twin` says the same to a second server, `cluster` makes one of several,
//! `shell`, `door` and `authority` are what the program is tried with from outside; the other files are claims about behaviour, by subject. What
//! needs a program that not every machine has is in `tests/tools`, which shares these.

mod rig;

mod authority;
mod bench;
mod chaos;
mod cluster;
mod docs;
mod door;
mod functions;
mod fuzz;
mod layers;
mod library;
mod mutants;
mod notices;
mod program;
mod roles;
mod shell;
mod twin;
