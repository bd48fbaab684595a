//! An explorer: every sequence of events over small worlds, up to a depth, on a real Redis (explicit-state model checking, G. J. Holzmann, 2003).
//! After each event replies and the whole state are compared with the reference model of `tree_model`, and the audit is asked; a state that was
//! seen before is not gone on from. It goes breadth first, so the first sequence that fails is a shortest one.
//!
//! `world` says what there is and what can happen, `digest` when two states are the same one, `search` goes through them, `rules` breaks the
//! library to see that it is noticed.

mod digest;
mod rules;
mod search;
mod world;

use std::time::Duration;

use search::Search;
use world::WORLDS;

/// An hour by hand (`make explore`), and a minute among the other tests.
fn seconds() -> u64 {
    super::tree_model::number("DRIPD_EXPLORE").unwrap_or(60)
}

#[test]
fn every_sequence_of_events_over_small_worlds_leaves_all_as_the_reference_has_it() {
    let share = Duration::from_secs(seconds()) / WORLDS.len() as u32;
    for world in WORLDS {
        let mut search = Search::new(world, dripd::store::library::source());
        let found = search.run(share);
        println!("{}: {}", world.name, search.figures());
        if let Some(failure) = found {
            panic!("{}: {failure}", world.name);
        }
        assert!(search.transitions > 200, "{}: {}", world.name, search.figures());
    }
}
