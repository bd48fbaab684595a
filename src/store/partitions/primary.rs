//! One server, and the partitions that it has: all of them where there is one server, some of them in a cluster. Calls on a server and not
//! on a partition are made on it: what it is and lacks (`server`), its library, and the scan over its keys (`jobs::queues`).

use std::sync::{Arc, Weak};

use super::Partitions;
use crate::store::client::Store;
use crate::store::connection::Access;
use crate::store::keys::Layout;
use crate::store::keys::partition::AUTHORITY;

/// A server and its partitions.
#[derive(Debug, Clone)]
pub struct Primary {
    pub(in crate::store) layout: Arc<Layout>,
    /// A connection to it; which keys are used on it does not matter.
    pub(in crate::store) any: Store,
    /// By number.
    stores: Vec<Store>,
}

impl Partitions {
    /// The servers that can be reached, each with its partitions.
    pub fn primaries(&self) -> Vec<Primary> {
        let all: Vec<Store> = self.each().collect();
        if !self.is_cluster() {
            let layout = Arc::clone(&self.layout);
            return vec![Primary { layout, any: all[usize::from(AUTHORITY)].clone(), stores: all }];
        }
        let primaries = self.topology.connections().into_iter().map(|connection| {
            let connection_id = connection.connection_id();
            let stores = all.iter().filter(|store| store.connection_id() == connection_id).cloned().collect();
            let any = Store::with_access(Access::Connected(connection), self.keys_of(AUTHORITY), Weak::new());
            Primary { layout: Arc::clone(&self.layout), any, stores }
        });
        primaries.collect()
    }
}

impl Primary {
    /// Where it is, as it may be shown.
    pub fn redacted(&self) -> &str {
        self.any.redacted()
    }

    /// Of a cluster: the id of the connection, which no other one has.
    pub fn connection_id(&self) -> u64 {
        self.any.connection_id().unwrap_or_default()
    }

    /// Its partitions, by number.
    pub fn each(&self) -> impl Iterator<Item = Store> {
        self.stores.iter().cloned()
    }

    /// Whether it has the partition that says what holds in all of them.
    pub fn has_authority(&self) -> bool {
        self.stores.iter().any(|store| store.keys().is_authority())
    }

    /// A copy with only those of its partitions whose number is meant.
    pub fn only(&self, is_meant: impl Fn(u8) -> bool) -> Self {
        let stores = self.each().filter(|store| is_meant(store.keys().number())).collect();
        Self { stores, ..self.clone() }
    }

    /// The numbers of its partitions.
    pub fn numbers(&self) -> Vec<u8> {
        self.stores.iter().map(|store| store.keys().number()).collect()
    }
}
