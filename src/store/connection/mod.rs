//! Connections: from what the configuration names to a server that answers calls.
//!
//! `address` says where a server is, or who knows it, and `login` who logs in there; `peer` opens a stream and logs in, with `tls` on it.
//! `sentinel` and `cluster` find the servers that others name. `connect` puts these together to a connection, and `topology` keeps one to
//! each primary of a cluster; `migrations` notes which partitions were on the move. `error` sorts what goes wrong, and `acl` lists the
//! rights that each role needs.

pub mod acl;
mod address;
mod cluster;
mod connect;
mod error;
mod login;
mod migrations;
mod peer;
mod sentinel;
mod text;
pub mod timing;
mod tls;
mod topology;

pub use address::Address;
pub(super) use address::At;
pub(super) use cluster::owner_as_told_by;
pub(super) use connect::{LOST, connect, version_in};
pub use error::StoreError;
pub(super) use error::{is_forbidden, names_no_key};
pub(super) use migrations::Migrations;
pub(super) use peer::OnPush;
pub(super) use text::Text;
pub(super) use topology::{ANSWER_WITHIN, Access, Topology, open, slot_of};
