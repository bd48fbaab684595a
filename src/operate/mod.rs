//! What operators do and ask, whichever door they come through: the commands and the HTTP door.

pub mod change;
pub mod dead;
pub mod letter;
pub mod limit;
pub mod moment;
pub mod pace;
pub mod settings;
