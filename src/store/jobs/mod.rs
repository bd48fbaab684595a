//! A job's life, call by call: `push` and `submit` put it in, `drain` lets it out, `work` takes it and finishes it, and `reap` takes it back
//! from a worker that is gone. `queues` looks at queues that no report named, `note` holds notes for the log, and `limit` asks the limiters.

pub mod drain;
pub mod limit;
pub mod note;
pub mod push;
pub mod queues;
pub mod reap;
pub mod submit;
pub mod work;
