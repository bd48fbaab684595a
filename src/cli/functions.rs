//! `dripd functions`: the Lua library, for those who load it by hand.

use super::{Exit, Failure, print};
use crate::store::library;

/// Print the library.
pub(super) fn run() -> Result<Exit, Failure> {
    print(library::source().as_bytes())
}
