//! What is made of bytes that nobody meant well: texts, requests, answers of a Redis that is none, arguments of functions. cargo-fuzz needs a
//! nightly toolchain; these are random bytes and damaged good ones from proptest, which shrinks what it finds. What was found stands with the
//! tests of its subject.
//!
//! `$PROPTEST_CASES` says how many of each are tried; without it so few that all of it takes some seconds.

use proptest::prelude::*;

mod door;
mod functions;
mod hostile;
mod text;

/// How many cases, unless the environment says another number.
fn cases(usual: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(usual);
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) }
}

/// One thing that happens to bytes.
#[derive(Debug, Clone)]
enum Damage {
    Flip(usize, u8),
    Cut(usize, usize),
    Insert(usize, Vec<u8>),
    Again(usize, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        (any::<usize>(), any::<u8>()).prop_map(|(at, with)| Damage::Flip(at, with)),
        (any::<usize>(), 1..40_usize).prop_map(|(at, len)| Damage::Cut(at, len)),
        (any::<usize>(), prop::collection::vec(any::<u8>(), 1..20)).prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        (any::<usize>(), 1..40_usize).prop_map(|(at, len)| Damage::Again(at, len)),
    ]
}

/// Bytes to which some things have happened.
fn damaged(mut bytes: Vec<u8>, damages: &[Damage]) -> Vec<u8> {
    for damage in damages {
        let place = |at: usize| at % (bytes.len() + 1);
        let piece = |at: usize, len: usize| place(at)..(place(at) + len).min(bytes.len());
        match damage {
            Damage::Flip(at, with) => {
                let at = place(*at);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = *with;
                }
            }
            Damage::Cut(at, len) => drop(bytes.drain(piece(*at, *len))),
            Damage::Insert(at, more) => drop(bytes.splice(place(*at)..place(*at), more.iter().copied())),
            Damage::Again(at, len) => {
                let piece = piece(*at, *len);
                let copy = bytes[piece.clone()].to_vec();
                bytes.splice(piece.end..piece.end, copy);
            }
        }
    }
    bytes
}

/// Any bytes, or one of these texts with some damage.
fn bytes_like(good: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let like = (prop::sample::select(good), prop::collection::vec(damage(), 0..4))
        .prop_map(|(text, damages)| damaged(text.as_bytes().to_vec(), &damages));
    prop_oneof![1 => prop::collection::vec(any::<u8>(), 0..60), 4 => like]
}

fn text_like(good: &'static [&'static str]) -> impl Strategy<Value = String> {
    bytes_like(good).prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}
