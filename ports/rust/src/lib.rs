#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::panic
    )
)]

pub mod atomic;
mod error;
pub mod hash;
pub mod json;
mod registry;
pub mod shard;
pub mod shardpack;
pub mod wshard;

pub use error::{Error, Result};
pub use registry::{Code, ContentType, DType, Limits, Role, Warning};
pub use shard::{ShardReader, ShardWriter};
