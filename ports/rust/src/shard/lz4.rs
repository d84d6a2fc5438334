//! Raw blocks of lz4.

use super::codec::{exactly, u32_at};
use crate::registry::Code;
use crate::{Error, Result};

/// The content has at most 255 times the stored bytes, and 64.
pub(crate) const EXPANSION: u64 = 255;
pub(crate) const SLACK: u64 = 64;
const LAST_LITERALS: usize = 5;
const SHORTEST_MATCH: usize = 4;

/// Why a block cannot be decoded.
enum Fault {
    Damaged,
    TooLong,
    BadEnd,
}

/// Decodes one raw block into memory of exactly the size of the entry (S-CMP-3, S-CMP-4, S-CMP-9).
pub(crate) fn decode(stored: &[u8], out: &mut [u8]) -> Result<()> {
    let size = out.len();
    match decode_block(stored, out) {
        Ok(done) => exactly(done, size),
        Err(Fault::TooLong) => Err(Error::new(Code::SizeMismatch, "S-CMP-3", "the lz4 block holds more than its size")
            .with_expected(format_args!("{size} bytes"))),
        Err(Fault::BadEnd) => {
            Err(Error::new(Code::BadCompression, "S-CMP-9", "the lz4 block does not end with five literals"))
        }
        Err(Fault::Damaged) if u32_at(stored, 0).map(u64::from) == Some(size as u64) => {
            Err(Error::new(Code::BadCompression, "S-CMP-9", "the lz4 block has its size in front"))
        }
        Err(Fault::Damaged) => {
            Err(Error::new(Code::BadCompression, "S-CMP-4", "the lz4 block is damaged or incomplete"))
        }
    }
}

/// Decodes a block, and returns how many bytes came out.
fn decode_block(stored: &[u8], out: &mut [u8]) -> Result<usize, Fault> {
    let (mut rest, mut done, mut match_end) = (stored, 0usize, 0usize);
    loop {
        let token = usize::from(take_byte(&mut rest)?);
        let literals = length(&mut rest, token >> 4)?;
        let (piece, after) = rest.split_at_checked(literals).ok_or(Fault::Damaged)?;
        let end = done.checked_add(literals).ok_or(Fault::TooLong)?;
        out.get_mut(done..end).ok_or(Fault::TooLong)?.copy_from_slice(piece);
        (rest, done) = (after, end);
        if rest.is_empty() {
            // The length of a match that does not follow means nothing; liblz4 ignores it, too.
            let has_end = match_end == 0 || done.saturating_sub(match_end) >= LAST_LITERALS;
            return if has_end { Ok(done) } else { Err(Fault::BadEnd) };
        }
        let distance = u16::from_le_bytes([take_byte(&mut rest)?, take_byte(&mut rest)?]);
        let distance = usize::from(distance);
        let matched = length(&mut rest, token & 15)?.saturating_add(SHORTEST_MATCH);
        let start = match done.checked_sub(distance) {
            Some(start) if distance > 0 => start,
            _ => return Err(Fault::Damaged),
        };
        match_end = done.checked_add(matched).ok_or(Fault::TooLong)?;
        if match_end > out.len() {
            return Err(Fault::TooLong);
        }
        // Source and target may overlap: what is copied doubles what can be copied next.
        while done < match_end {
            let count = done.saturating_sub(start).min(match_end.saturating_sub(done));
            out.copy_within(start..start.saturating_add(count), done);
            done = done.saturating_add(count);
        }
    }
}

fn take_byte(rest: &mut &[u8]) -> Result<u8, Fault> {
    let (&byte, after) = rest.split_first().ok_or(Fault::Damaged)?;
    *rest = after;
    Ok(byte)
}

/// A length: four bits of the token, and more bytes if they are all set.
fn length(rest: &mut &[u8], nibble: usize) -> Result<usize, Fault> {
    let mut total = nibble;
    if nibble == 15 {
        loop {
            let byte = take_byte(rest)?;
            total = total.saturating_add(usize::from(byte));
            if byte != 255 {
                break;
            }
        }
    }
    Ok(total)
}

/// Makes one raw block.
#[cfg(feature = "lz4")]
pub(crate) fn compress(data: &[u8]) -> Result<Vec<u8>> {
    Ok(lz4_flex::block::compress(data))
}

#[cfg(not(feature = "lz4"))]
pub(crate) fn compress(_: &[u8]) -> Result<Vec<u8>> {
    Err(Error::new(Code::MissingExtra, "", "this build cannot write lz4").with_expected("the feature lz4"))
}
