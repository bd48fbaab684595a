//! A look ahead: traffic runs through the real functions on a throw-away Redis, at simulated times.
//!
//! | file | job |
//! |---|---|
//! | `recorder` | a trace of live traffic |
//! | `load`, `trace`, `traffic` | what producers send: generated, or read from a trace |
//! | `workers` | who takes it |
//! | `run` | the simulation: traffic in, what happens out |
//! | `measure` | what is measured of groups of buckets and budgets |
//! | `expect` | assertions about these figures |
//! | `report`, `plot` | the figures, for people and programs |

mod expect;
mod load;
mod measure;
mod plot;
mod recorder;
mod report;
mod run;
mod trace;
mod traffic;
mod workers;

pub use expect::{Failed, judge};
pub use load::Load;
pub use measure::SLOTS;
pub use plot::plot;
pub use recorder::Recorder;
pub use report::{Figures, Report};
pub use run::{Plan, SimulationError, Traffic, left_out, simulate};
pub use trace::{BadTrace, Line, Trace};
pub use traffic::{Job, Push};
pub use workers::{NoRoute, Workers, check_routes};
