//! Compresses the content of entries.

use super::codec::append_zstd;
use super::filters::Filters;
use super::layout::{Codec, entry_flags};
use super::lz4;
use super::options::EntryOptions;
use super::seekable::{SeekFrame, append_table};
use crate::hash::xxh64_low;
use crate::registry::{Code, Limits};
use crate::{Error, Result};

/// Entries of so many bytes are never compressed.
const TOO_SMALL: usize = 256;

/// The stored bytes of an entry and its flags; `None` if it is better stored as it is (S-CMP-10).
pub(super) fn encode(data: &[u8], codec: Codec, level: i32, options: &EntryOptions) -> Result<Option<(Vec<u8>, u16)>> {
    let in_frames = options.frame_bytes.is_some() || options.filters.is_some();
    if codec != Codec::Zstd && in_frames {
        return Err(Error::invalid("frames and filters need zstd").with_found(codec.as_str()));
    }
    if codec == Codec::None || data.len() <= TOO_SMALL {
        return Ok(None);
    }
    let most = Limits::default().max_decompressed_bytes;
    if data.len() as u64 > most {
        return Err(Error::new(Code::LimitExceeded, "S-CMP-2", "the entry is too large to be compressed")
            .with_expected(format_args!("at most {most} bytes"))
            .with_found(data.len()));
    }
    let mut flags = codec.flags();
    let mut stored = Vec::new();
    match codec {
        Codec::Lz4 => stored = lz4::compress(data)?,
        _ if !in_frames => append_zstd(&mut stored, data, level, false)?,
        _ => {
            append_frames(&mut stored, data, level, options)?;
            if options.filters.is_some() {
                flags |= entry_flags::FILTERED;
            }
        }
    }
    let worth = (data.len() as u64).saturating_mul(9) / 10;
    Ok(((stored.len() as u64) < worth).then_some((stored, flags)))
}

/// Compresses an entry in frames with a seek table, each filtered on its own.
fn append_frames(out: &mut Vec<u8>, data: &[u8], level: i32, options: &EntryOptions) -> Result<()> {
    let size = match options.frame_bytes {
        Some(size) if size > 0 => size.min(data.len()),
        _ => data.len(),
    };
    let too_long = || Error::invalid("a frame has at most 2**32 - 1 bytes").with_found(size);
    if let Some(filters) = &options.filters {
        Filters::from_json(&filters.to_json())
            .and_then(|_| filters.check_frame(size))
            .and_then(|()| filters.check_frame(data.len().checked_rem(size).unwrap_or_default()))
            .map_err(|e| Error::invalid("the filters do not suit the entry").with_source(e))?;
        filters.append_description(out)?;
    }
    let mut frames = Vec::new();
    for part in data.chunks(size) {
        let filtered = options.filters.map(|filters| filters.apply(part));
        let part = filtered.as_deref().unwrap_or(part);
        let start = out.len();
        append_zstd(out, part, level, true)?;
        let stored = out.len().saturating_sub(start);
        frames.push(SeekFrame {
            compressed_size: u32::try_from(stored).map_err(|_| too_long())?,
            decompressed_size: u32::try_from(part.len()).map_err(|_| too_long())?,
            checksum: Some(xxh64_low(part)),
        });
    }
    append_table(out, &frames)
}
