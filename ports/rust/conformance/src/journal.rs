//! What the program can do with kind journal.

use crate::{Kind, UNSUPPORTED};

pub const KIND: Kind = Kind {
    name: "journal",
    ..UNSUPPORTED
};
