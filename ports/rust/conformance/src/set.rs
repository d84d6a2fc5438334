//! What the program can do with kind set.

use crate::{Kind, UNSUPPORTED};

pub const KIND: Kind = Kind {
    name: "set",
    ..UNSUPPORTED
};
