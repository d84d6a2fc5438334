//! Single zstd frames, as recording journals hold them: with a content size, a checksum and, maybe, filters.

use super::codec::{self, FRAME_MAGIC, append_zstd, u32_at, with_scratch};
use super::filters::Filters;
use crate::registry::{Code, Limits};
use crate::{Error, Result};

/// Appends data as one frame, after the filters if there are any.
pub(crate) fn append_frame(out: &mut Vec<u8>, data: &[u8], level: i32, filters: Option<&Filters>) -> Result<()> {
    match filters {
        Some(filters) => {
            filters.check_frame(data.len())?;
            append_zstd(out, &filters.apply(data), level, true)
        }
        None => append_zstd(out, data, level, true),
    }
}

/// Checks that the bytes are exactly one frame that has a checksum and declares this size. It decodes nothing.
pub(crate) fn check_frame(stored: &[u8], size: u64) -> Result<()> {
    if u32_at(stored, 0) != Some(FRAME_MAGIC) {
        let problem = "the stored bytes are not a zstd frame";
        return Err(Error::new(Code::BadCompression, "S-CMP-5", problem));
    }
    let frame = codec::walk_frame(stored, 0, Limits::default().max_window_bytes)?;
    if frame.range.end != stored.len() {
        let problem = "the stored bytes are not one zstd frame";
        return Err(Error::new(Code::BadCompression, "S-CMP-4", problem));
    }
    if frame.content_size != Some(size) {
        let problem = "a zstd frame declares another size";
        return Err(Error::new(Code::SizeMismatch, "S-CMP-3", problem)
            .with_expected(format_args!("{size} bytes"))
            .with_found(format_args!("{:?}", frame.content_size)));
    }
    if !frame.has_checksum {
        let problem = "a zstd frame has no checksum";
        return Err(Error::new(Code::BadCompression, "S-SEK-5", problem));
    }
    Ok(())
}

/// Decodes one frame into memory of exactly its size, and undoes the filters.
pub(crate) fn decode_frame_into(stored: &[u8], out: &mut [u8], filters: Option<&Filters>) -> Result<()> {
    check_frame(stored, out.len() as u64)?;
    if let Some(filters) = filters {
        filters.check_frame(out.len())?;
    }
    let frame = codec::walk_frame(stored, 0, Limits::default().max_window_bytes)?;
    with_scratch(|scratch| {
        let count = codec::decode_frame(scratch, stored, &frame, out)?;
        codec::exactly(count, out.len())?;
        match filters {
            Some(filters) => filters.undo(out, &mut scratch.filter),
            None => Ok(()),
        }
    })
}
