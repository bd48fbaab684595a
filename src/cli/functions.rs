//! `dripd functions`: the Lua library, for those who load it by hand.

use std::io::Write as _;

use super::{Exit, Failure};
use crate::store::library;

/// Print the library.
pub(super) fn run() -> Result<Exit, Failure> {
    std::io::stdout().write_all(library::SOURCE.as_bytes())?;
    Ok(Exit::Done)
}
