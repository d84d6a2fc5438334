//! What the program can do with kind episode.

use crate::{Kind, UNSUPPORTED};

pub const KIND: Kind = Kind {
    name: "episode",
    ..UNSUPPORTED
};
