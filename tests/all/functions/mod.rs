//! The functions in Redis, called with the clock in hand: a file a subject. `model` compares random sequences with a reference
//! model; the others are tables and the edges of what is promised.

mod bucket;
mod budgets;
mod dead;
mod defaults;
mod drain;
mod explain;
mod gates;
mod globs;
mod heartbeat;
mod jobs;
mod kept;
mod limiters;
mod limiters_model;
mod model;
mod policies;
mod purge;
mod rate;
mod settings;
mod settings_care;
mod settings_judge;
mod settings_model;
mod settings_seen;
mod settings_spread;
mod settings_table;
mod settings_world;
mod shares;
mod sizes;
mod slots;
mod slots_limits;
mod slots_order;
mod slots_random;
mod walk;
mod what_if;
