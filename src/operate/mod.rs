//! The operators' commands. Each has a request, an outcome and one way to run it, shared by the command line and HTTP.
//!
//! A front end reads a request from its own input, runs it in the name of a user, and prints or serializes the outcome.

pub mod bounds;
pub mod change;
pub mod changed;
pub mod dead;
pub mod dead_filter;
pub mod explain;
pub mod letter;
pub mod limit;
pub mod moment;
pub mod node_request;
pub mod pace;
pub mod pause;
pub mod purge;
pub mod set;
pub mod settings;
pub mod slow;
pub mod target;
pub mod told;
pub mod what_if;
