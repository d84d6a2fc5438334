//! The checksums and hashes of the formats.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// The CRC-32C of some bytes.
pub fn crc32c(data: &[u8]) -> u32 {
    crc32c::crc32c(data)
}

/// The CRC-32C of some bytes and those that follow them, from the checksum of the first.
pub fn crc32c_append(checksum: u32, data: &[u8]) -> u32 {
    crc32c::crc32c_append(checksum, data)
}

/// The CRC-32C of two pieces together, from that of each and the size of the second.
pub fn crc32c_combine(first: u32, second: u32, second_size: usize) -> u32 {
    crc32c::crc32c_combine(first, second, second_size)
}

/// The XXH64 of some bytes, with seed 0.
pub fn xxh64(data: &[u8]) -> u64 {
    xxhash_rust::xxh64::xxh64(data, 0)
}

/// The low half of the XXH64: what frames of zstd have as a checksum.
#[allow(clippy::cast_possible_truncation)]
pub fn xxh64_low(data: &[u8]) -> u32 {
    xxh64(data) as u32
}

/// The SHA-256 of some bytes, as 64 lower-case hex digits.
pub fn sha256_hex(data: &[u8]) -> String {
    hex(&Sha256::digest(data))
}

/// A SHA-256 of bytes that come in pieces.
#[derive(Clone, Default)]
pub struct Sha256Hex(Sha256);

impl Sha256Hex {
    /// Adds the next bytes.
    pub fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    /// The digest, as 64 lower-case hex digits.
    pub fn finish(self) -> String {
        hex(&self.0.finalize())
    }
}

/// Lower-case hex digits.
pub fn hex(data: &[u8]) -> String {
    let mut text = String::with_capacity(data.len().saturating_mul(2));
    for byte in data {
        let _ = write!(text, "{byte:02x}"); // writing to a string cannot fail
    }
    text
}

/// The bytes of hex digits of either case; `None` if the text is something else.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |c: u8| char::from(c).to_digit(16);
    let byte = |&[high, low]: &[u8; 2]| u8::try_from(digit(high)? << 4 | digit(low)?).ok();
    rest.is_empty().then(|| pairs.iter().map(byte).collect())?
}

/// Whether a text is a SHA-256 as the formats write it: 64 lower-case hex digits.
pub fn is_sha256_hex(text: &str) -> bool {
    is_hex(text, 64)
}

pub(crate) fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
}
