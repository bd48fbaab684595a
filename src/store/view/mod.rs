//! Calls that only read. `bucket`, `bucket_page` and `explain` show one bucket, and `what_if` forecasts it; `status`, `figures` and `routes`
//! show everything. `walk` passes every bucket, `top` ranks them as the last walk found them, and `snapshots` shows some as they are now.

pub mod bucket;
pub mod bucket_page;
pub mod explain;
pub mod figures;
pub mod level_limits;
pub mod routes;
pub mod snapshots;
pub mod status;
pub mod top;
pub mod walk;
pub mod what_if;

pub use bucket::BucketStatus;
