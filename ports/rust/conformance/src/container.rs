//! What the program can do with kind container.

use crate::{Kind, UNSUPPORTED};

pub const KIND: Kind = Kind {
    name: "container",
    ..UNSUPPORTED
};
