//! What the program can do with kind pack.

use std::path::Path;

use shard_format::json::Object;
use shard_format::{Error, Result};

use crate::{Kind, UNSUPPORTED};

pub const KIND: Kind = Kind {
    name: "pack",
    ..UNSUPPORTED
};

pub fn stream(_file: &Path) -> Result<Object> {
    Err(Error::invalid("this program cannot do that"))
}

pub fn recover(_file: &Path) -> Result<Object> {
    Err(Error::invalid("this program cannot do that"))
}
