//! To come.
use crate::{Error, Result};
pub fn decode_lz4(_: &[u8], _: &mut [u8]) -> Result<()> { Err(Error::invalid("todo")) }
pub fn decode_zstd(_: &[u8], _: &mut [u8], _: u64) -> Result<()> { Err(Error::invalid("todo")) }
pub fn compress_lz4(_: &[u8]) -> Result<Vec<u8>> { Err(Error::invalid("todo")) }
pub fn compress_zstd(_: &[u8], _: i32) -> Result<Vec<u8>> { Err(Error::invalid("todo")) }
