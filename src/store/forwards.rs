//! The routes that forward into lists of other systems: what the record in force says of them, and how full the lists are.

use redis::FromRedisValue as _;

use super::library::is_missing_function;
use super::reply::unexpected;
use super::status::RouteStatus;
use super::{Store, StoreError};

/// Of each route: its name, the key of its list, how many jobs that holds, how many buckets wait for it, a key that cannot be used and what
/// that must hold.
type Flat = Vec<(String, String, u64, u64, String, String)>;

impl Store {
    /// The routes that forward. A library that does not know of them counts as none: it is an older one.
    pub(super) async fn forwards(&mut self) -> Result<Vec<RouteStatus>, StoreError> {
        let reply = match self.reading("drip__forwards", &[self.keys().policy()], &[b""]).await {
            Err(StoreError::Refused { message, .. }) if is_missing_function(&message) => return Ok(Vec::new()),
            other => other?,
        };
        let routes = Flat::from_redis_value_ref(&reply).map_err(|_| unexpected("drip__forwards", &reply))?;
        let status = |(route, to, jobs, held, key, wanted): (String, String, u64, u64, String, String)| RouteStatus {
            route,
            to: Some(to),
            wrong: (!key.is_empty()).then(|| format!("the key {key} must hold a {wanted}: rename or delete it")),
            undelivered: jobs,
            pending: 0,
            held,
        };
        Ok(routes.into_iter().map(status).collect())
    }
}
