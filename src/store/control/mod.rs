//! Calls of operators, and the policy of daemons. `record` puts the policy into force, `change` changes settings at run time, and `settings`
//! lists them; `replication` brings both to every partition. `purge` throws waiting jobs away, and `dead` handles dead letters.

pub mod change;
pub mod dead;
pub mod purge;
pub mod record;
pub mod replication;
pub mod settings;
