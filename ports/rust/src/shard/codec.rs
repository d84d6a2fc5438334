//! zstd frames: the walk, which decodes nothing, and the decoder behind it (spec/shard.md, section 6).
//!
//! No library checks all that the specification asks for, so the walk does, and hands single frames to libzstd.

use std::cell::Cell;
use std::ops::Range;

use super::parallel::Buffer;
use crate::registry::Code;
use crate::{Error, Result};

pub(crate) const FRAME_MAGIC: u32 = 0xFD2F_B528;
const SKIPPABLE_MAGIC: u32 = 0x184D_2A50;
const SKIPPABLE_MASK: u32 = 0xFFFF_FFF0;
/// The most that one stored byte can become.
pub(crate) const ZSTD_EXPANSION: u64 = 32_768;

/// A little-endian number at an offset.
pub(crate) fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    data.get(at..)?.first_chunk().map(|b| u32::from_le_bytes(*b))
}

/// One data frame in the stored bytes of an entry.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) range: Range<usize>,
    pub(crate) content_size: Option<u64>,
    /// Whether the last four bytes are the checksum of the content.
    pub(crate) has_checksum: bool,
}

/// Finds the data frames one after another (S-CMP-4 to S-CMP-7), and passes over skippable ones.
pub(crate) struct Frames<'a> {
    stored: &'a [u8],
    at: usize,
    max_window: u64,
}

impl<'a> Frames<'a> {
    pub(crate) fn new(stored: &'a [u8], max_window: u64) -> Frames<'a> {
        Frames { stored, at: 0, max_window }
    }

    fn step(&mut self) -> Result<Option<Frame>> {
        while self.at < self.stored.len() {
            let number = u32_at(self.stored, self.at).ok_or_else(|| incomplete("a frame"))?;
            if number == FRAME_MAGIC {
                let frame = walk_frame(self.stored, self.at, self.max_window)?;
                self.at = frame.range.end;
                return Ok(Some(frame));
            }
            if number & SKIPPABLE_MASK != SKIPPABLE_MAGIC {
                return Err(Error::new(Code::BadCompression, "S-CMP-5", "no zstd frame where one must start")
                    .with_found(format_args!("{number:08x} at stored byte {}", self.at)));
            }
            self.at = skippable_end(self.stored, self.at).ok_or_else(|| incomplete("a skippable frame"))?;
        }
        Ok(None)
    }
}

impl Iterator for Frames<'_> {
    type Item = Result<Frame>;

    fn next(&mut self) -> Option<Result<Frame>> {
        self.step().transpose()
    }
}

fn skippable_end(stored: &[u8], at: usize) -> Option<usize> {
    let size = usize::try_from(u32_at(stored, at.checked_add(4)?)?).ok()?;
    let end = at.checked_add(8)?.checked_add(size)?;
    (end <= stored.len()).then_some(end)
}

#[cold]
fn incomplete(what: &str) -> Error {
    Error::new(Code::BadCompression, "S-CMP-4", format!("{what} is incomplete"))
}

/// Reads the bytes of a frame one field after another.
struct Cursor<'a> {
    stored: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(count);
        let found = end.and_then(|end| self.stored.get(self.at..end));
        self.at = end.unwrap_or(usize::MAX);
        found.ok_or_else(|| incomplete("a zstd frame"))
    }

    /// A little-endian number of at most eight bytes.
    fn number(&mut self, width: usize) -> Result<u64> {
        let bytes = self.take(width)?;
        Ok(bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)))
    }
}

/// Reads the data frame that starts at an offset, after its magic number was seen.
pub(crate) fn walk_frame(stored: &[u8], start: usize, max_window: u64) -> Result<Frame> {
    let mut cursor = Cursor { stored, at: start };
    cursor.take(4)?;
    let (content_size, has_checksum) = frame_header(&mut cursor, max_window)?;
    loop {
        let block = cursor.number(3)?;
        let size = usize::try_from(block >> 3).unwrap_or(usize::MAX);
        match block >> 1 & 3 {
            1 => cursor.take(1)?,
            3 => {
                return Err(Error::new(Code::BadCompression, "S-CMP-4", "a zstd block has the reserved type"));
            }
            _ => cursor.take(size)?,
        };
        if block & 1 != 0 {
            break;
        }
    }
    if has_checksum {
        cursor.take(4)?;
    }
    Ok(Frame { range: start..cursor.at, content_size, has_checksum })
}

/// Reads the header of a frame: the size of its content, if it is stated, and whether it ends with a checksum.
fn frame_header(cursor: &mut Cursor<'_>, max_window: u64) -> Result<(Option<u64>, bool)> {
    let descriptor = cursor.number(1)?;
    if descriptor & 0x08 != 0 {
        return Err(Error::new(Code::BadCompression, "S-CMP-4", "a reserved bit of a zstd frame header is set"));
    }
    let is_single = descriptor & 0x20 != 0;
    let mut window = 0;
    if !is_single {
        let byte = cursor.number(1)?;
        let base = 1u64 << 10 << (byte >> 3); // the exponent has five bits
        window = base.saturating_add((base >> 3).saturating_mul(byte & 7));
    }
    let dictionary = cursor.number((1 << (descriptor & 3)) >> 1)?;
    if dictionary != 0 {
        return Err(Error::new(Code::BadCompression, "S-CMP-6", "a zstd frame needs a dictionary"));
    }
    let content_size = match (descriptor >> 6, is_single) {
        (0, false) => None,
        (0, true) => Some(cursor.number(1)?),
        (1, _) => Some(cursor.number(2)?.saturating_add(256)),
        (2, _) => Some(cursor.number(4)?),
        _ => Some(cursor.number(8)?),
    };
    if is_single {
        window = content_size.unwrap_or_default();
    }
    if window > max_window {
        return Err(Error::new(Code::LimitExceeded, "S-CMP-7", "a zstd frame needs a window that is too large")
            .with_expected(format_args!("at most {max_window} bytes"))
            .with_found(window));
    }
    Ok((content_size, descriptor & 0x04 != 0))
}

// --- decoding

/// What a thread keeps for decoding and encoding.
#[derive(Default)]
pub(crate) struct Scratch {
    #[cfg(feature = "zstd")]
    decoder: Option<zstd_safe::DCtx<'static>>,
    #[cfg(feature = "zstd")]
    encoder: Option<zstd_safe::CCtx<'static>>,
    /// For a frame of which only a part is wanted.
    pub(crate) frame: Buffer,
    /// For filters.
    pub(crate) filter: Buffer,
}

thread_local! {
    static KEPT: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// Lends the scratch that this thread keeps. A call inside a call gets one of its own.
pub(crate) fn with_scratch<T>(work: impl FnOnce(&mut Scratch) -> T) -> T {
    let mut scratch = KEPT.take().unwrap_or_default();
    let result = work(&mut scratch);
    if scratch.frame.is_small() && scratch.filter.is_small() {
        KEPT.set(Some(scratch));
    }
    result
}

/// Decodes a frame that was walked to the start of some memory, and returns how many bytes came out (S-CMP-3, S-CMP-4).
#[cfg(feature = "zstd")]
pub(crate) fn decode_frame(scratch: &mut Scratch, stored: &[u8], frame: &Frame, out: &mut [u8]) -> Result<usize> {
    let room = out.len();
    decode_frame_to(scratch, stored, frame, out, room)
}

#[cfg(feature = "zstd")]
fn decode_frame_to<W: zstd_safe::WriteBuf + ?Sized>(
    scratch: &mut Scratch,
    stored: &[u8],
    frame: &Frame,
    out: &mut W,
    room: usize,
) -> Result<usize> {
    const CHECKSUM_WRONG: usize = 22; // numbers of libzstd that are stable
    const TARGET_TOO_SMALL: usize = 70;
    if let Some(declared) = frame.content_size
        && declared > room as u64
    {
        return Err(too_long(room).with_found(format_args!("{declared} bytes declared")));
    }
    let bytes = stored.get(frame.range.clone()).unwrap_or_default();
    let decoder = scratch.decoder.get_or_insert_with(zstd_safe::DCtx::create);
    let count = match decoder.decompress(out, bytes) {
        Ok(count) => count,
        Err(code) => {
            return Err(match code.wrapping_neg() {
                TARGET_TOO_SMALL => too_long(room),
                CHECKSUM_WRONG => {
                    Error::new(Code::ChecksumMismatch, "S-CMP-4", "the checksum of a zstd frame does not fit")
                }
                _ => Error::new(Code::BadCompression, "S-CMP-4", "zstd cannot decode it")
                    .with_source(zstd_safe::get_error_name(code)),
            });
        }
    };
    match frame.content_size {
        Some(declared) if declared != count as u64 => {
            Err(Error::new(Code::SizeMismatch, "S-CMP-3", "a zstd frame is shorter than it declares")
                .with_expected(format_args!("{declared} bytes"))
                .with_found(count))
        }
        _ => Ok(count),
    }
}

#[cfg(feature = "zstd")]
#[cold]
fn too_long(room: usize) -> Error {
    Error::new(Code::SizeMismatch, "S-CMP-3", "the entry decodes to more than its size")
        .with_expected(format_args!("at most {room} bytes"))
}

/// Decodes all frames into memory of exactly the size of the entry.
pub(crate) fn decode_zstd(stored: &[u8], out: &mut [u8], max_window: u64) -> Result<()> {
    let (mut done, size) = (0usize, out.len());
    with_scratch(|scratch| {
        for frame in Frames::new(stored, max_window) {
            let rest = out.get_mut(done..).unwrap_or_default();
            let count = decode_frame(scratch, stored, &frame?, rest)?;
            done = done.saturating_add(count);
        }
        Ok(())
    })?;
    finished(stored, done, size)
}

/// Decodes all frames into new memory of exactly the size of the entry.
#[cfg(feature = "zstd")]
pub(crate) fn decode_zstd_to_vec(stored: &[u8], size: usize, max_window: u64) -> Result<Vec<u8>> {
    let mut out = super::reader::reserve(size)?;
    with_scratch(|scratch| {
        for frame in Frames::new(stored, max_window) {
            let done = out.len();
            let room = size.saturating_sub(done);
            // Vectors may have more room than was asked for; the declared size is compared before.
            let mut rest = std::io::Cursor::new(&mut out);
            rest.set_position(done as u64);
            decode_frame_to(scratch, stored, &frame?, &mut rest, room)?;
        }
        Ok(())
    })?;
    finished(stored, out.len(), size)?;
    Ok(out)
}

/// Checks that there was a frame, and that all content came out.
fn finished(stored: &[u8], done: usize, size: usize) -> Result<()> {
    if done == 0 && Frames::new(stored, u64::MAX).next().is_none() {
        return Err(Error::new(Code::BadCompression, "S-CMP-4", "the entry has no zstd frame"));
    }
    exactly(done, size)
}

/// Checks that an entry decodes to its size (S-CMP-3).
pub(crate) fn exactly(found: usize, expected: usize) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::new(Code::SizeMismatch, "S-CMP-3", "the entry decodes to another size")
        .with_expected(format_args!("{expected} bytes"))
        .with_found(found))
}

// --- encoding

/// Appends data as one frame with its content size.
#[cfg(feature = "zstd")]
pub(crate) fn append_zstd(out: &mut Vec<u8>, data: &[u8], level: i32, checksum: bool) -> Result<()> {
    use zstd_safe::CParameter;
    let start = out.len();
    out.reserve(zstd_safe::compress_bound(data.len()));
    with_scratch(|scratch| {
        let encoder = scratch.encoder.get_or_insert_with(zstd_safe::CCtx::create);
        encoder.set_parameter(CParameter::CompressionLevel(level))?;
        encoder.set_parameter(CParameter::ChecksumFlag(checksum))?;
        let mut rest = std::io::Cursor::new(out);
        rest.set_position(start as u64);
        encoder.compress2(&mut rest, data)
    })
    .map_err(|code| Error::invalid("zstd cannot compress it").with_source(zstd_safe::get_error_name(code)))?;
    Ok(())
}

// --- builds without zstd

#[cfg(not(feature = "zstd"))]
mod without {
    use super::*;

    fn missing<T>() -> Result<T> {
        Err(Error::new(Code::MissingExtra, "", "this build has no zstd").with_expected("the feature zstd"))
    }

    pub(crate) fn decode_frame(_: &mut Scratch, _: &[u8], _: &Frame, _: &mut [u8]) -> Result<usize> {
        missing()
    }

    pub(crate) fn decode_zstd_to_vec(_: &[u8], _: usize, _: u64) -> Result<Vec<u8>> {
        missing()
    }

    pub(crate) fn append_zstd(_: &mut Vec<u8>, _: &[u8], _: i32, _: bool) -> Result<()> {
        missing()
    }
}

#[cfg(not(feature = "zstd"))]
pub(crate) use without::{append_zstd, decode_frame, decode_zstd_to_vec};
