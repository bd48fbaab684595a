//! `what-if`: what a change or a push would do to the jobs that wait.

use crate::config::settings::Setting;
use crate::explain::WhatIfSaid;
use crate::model::bucket::BucketName;
use crate::store::change::Change;
use crate::store::{Partitions, StoreError};

/// The most jobs of a push that can be forecast.
pub const PUSH_MOST: u64 = 10_000_000;

/// Forecast a change or a push. Nothing is changed.
#[derive(Debug, Clone)]
pub struct WhatIfRequest {
    /// The bucket.
    pub bucket: BucketName,
    /// Keys that would be set.
    pub values: Vec<Setting>,
    /// How many jobs would be pushed, at most [`PUSH_MOST`].
    pub push: u64,
}

impl WhatIfRequest {
    /// Compute the forecast.
    ///
    /// # Errors
    ///
    /// A call to Redis fails.
    pub async fn run(&self, store: &Partitions) -> Result<WhatIfSaid, StoreError> {
        let set = super::set::stored(&self.values);
        let change = Change { what: "set", pattern: self.bucket.to_string(), set, ..Change::default() };
        let forecast = store.of(&self.bucket).what_if(&self.bucket, &change, self.push).await?;
        Ok(WhatIfSaid::of(self.bucket.as_str(), self.push, forecast))
    }
}
