//! Seekable entries: independent zstd frames, and a table that says where each of them is (S-SEK-1 to S-SEK-6).

use std::ops::Range;

use super::codec::{self, FRAME_MAGIC, Scratch, u32_at};
use crate::hash::xxh64_low;
use crate::registry::Code;
use crate::{Error, Result};

const SEEK_MAGIC: u32 = 0x8F92_EAB1;
const TABLE_FRAME_MAGIC: u32 = 0x184D_2A5E;
const FOOTER_SIZE: usize = 9;
const HEAD_SIZE: usize = 8;

/// One frame of a seekable entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeekFrame {
    /// Stored bytes.
    pub compressed_size: u32,
    /// Bytes of content.
    pub decompressed_size: u32,
    /// The low half of the XXH64 of the content, if the table has it.
    pub checksum: Option<u32>,
}

/// Says where each frame of an entry is.
#[derive(Debug)]
pub(crate) struct SeekTable {
    pub(crate) frames: Vec<SeekFrame>,
    /// Where each frame starts and the last one ends, in the stored bytes and in the content.
    starts: Vec<(u64, u64)>,
}

#[cold]
fn bad(rule: &'static str, problem: &'static str) -> Error {
    Error::new(Code::BadSeekTable, rule, problem)
}

/// The last bytes of an entry, as far as a table needs them.
struct Footer {
    count: usize,
    descriptor: u8,
    /// Bytes of one row.
    width: usize,
}

impl Footer {
    fn parse(tail: &[u8]) -> Option<Footer> {
        let footer = tail.last_chunk::<FOOTER_SIZE>()?;
        if u32_at(footer, 5) != Some(SEEK_MAGIC) {
            return None;
        }
        let descriptor = footer[4];
        Some(Footer {
            count: usize::try_from(u32_at(footer, 0)?).ok()?,
            descriptor,
            width: if descriptor & 0x80 == 0 { 8 } else { 12 },
        })
    }

    fn table_size(&self) -> Option<usize> {
        let rows = self.width.checked_mul(self.count)?;
        rows.checked_add(HEAD_SIZE)?.checked_add(FOOTER_SIZE)
    }
}

/// The size of the skippable frame that holds the table, from the last bytes of an entry; `None` if there is none.
pub(crate) fn table_size(tail: &[u8], disk_size: u64) -> Option<usize> {
    let size = Footer::parse(tail)?.table_size()?;
    (size as u64 <= disk_size).then_some(size)
}

impl SeekTable {
    /// Reads the table at the end of the last bytes of an entry; `None` if the entry is not seekable. `leading` is the
    /// size of the frame that describes filters.
    pub(crate) fn parse(tail: &[u8], disk_size: u64, orig_size: u64, leading: usize) -> Result<Option<SeekTable>> {
        let Some(size) = table_size(tail, disk_size) else {
            return Ok(None);
        };
        let (Some(footer), Some(start)) = (Footer::parse(tail), tail.len().checked_sub(size)) else {
            return Ok(None);
        };
        let table = tail.get(start..).unwrap_or_default();
        let stated = u32_at(table, 4).map(|stated| stated as usize);
        if u32_at(table, 0) != Some(TABLE_FRAME_MAGIC) || stated != size.checked_sub(HEAD_SIZE) {
            return Ok(None);
        }
        if footer.descriptor & 0x7C != 0 {
            return Err(bad("S-SEK-1", "reserved bits of the seek table are set")
                .with_found(format_args!("{:#04x}", footer.descriptor)));
        }
        let rows = table.get(HEAD_SIZE..).unwrap_or_default();
        let rows = rows.chunks_exact(footer.width).take(footer.count);
        let mut found = SeekTable {
            frames: Vec::with_capacity(rows.len()),
            starts: Vec::with_capacity(rows.len().saturating_add(1)),
        };
        let (mut stored, mut content) = (leading as u64, 0u64);
        found.starts.push((stored, content));
        for row in rows {
            let frame = SeekFrame {
                compressed_size: u32_at(row, 0).unwrap_or_default(),
                decompressed_size: u32_at(row, 4).unwrap_or_default(),
                checksum: u32_at(row, 8),
            };
            stored = stored.saturating_add(frame.compressed_size.into());
            content = content.saturating_add(frame.decompressed_size.into());
            found.frames.push(frame);
            found.starts.push((stored, content));
        }
        let all = stored.saturating_add(size as u64);
        if all != disk_size || content != orig_size {
            let rule = if leading > 0 { "S-FLT-6" } else { "S-SEK-2" };
            return Err(bad(rule, "the seek table does not add up to the sizes of the entry")
                .with_expected(format_args!("{disk_size} stored and {orig_size} decoded bytes"))
                .with_found(format_args!("{all} and {content}")));
        }
        Ok(Some(found))
    }

    fn start(&self, frame: usize) -> (u64, u64) {
        self.starts.get(frame).copied().unwrap_or_default()
    }

    /// Where some frames are in the stored bytes of the entry.
    pub(crate) fn stored(&self, frames: &Range<usize>) -> Range<u64> {
        self.start(frames.start).0..self.start(frames.end).0
    }

    /// Where the content of some frames is in the entry.
    pub(crate) fn content(&self, frames: &Range<usize>) -> Range<u64> {
        self.start(frames.start).1..self.start(frames.end).1
    }

    /// The frames that hold a part of the content, which is not empty.
    pub(crate) fn covering(&self, window: &Range<u64>) -> Range<usize> {
        let first = self.starts.partition_point(|start| start.1 <= window.start);
        let end = self.starts.partition_point(|start| start.1 < window.end);
        first.saturating_sub(1)..end
    }

    /// Decodes one frame into memory of its size, and checks it (S-SEK-3, S-SEK-4).
    pub(crate) fn decode(
        &self,
        number: usize,
        stored: &[u8],
        out: &mut [u8],
        scratch: &mut Scratch,
        max_window: u64,
    ) -> Result<()> {
        let sizes_differ = |problem, expected: usize, found: u64| {
            Err(bad("S-SEK-3", problem).with_expected(format_args!("{expected} bytes")).with_found(found))
        };
        if u32_at(stored, 0) != Some(FRAME_MAGIC) {
            return Err(bad("S-SEK-3", "no zstd frame where the seek table says"));
        }
        let frame = codec::walk_frame(stored, 0, max_window)?;
        if frame.range.end != stored.len() {
            let problem = "a frame is not as long as the seek table says";
            return sizes_differ(problem, stored.len(), frame.range.end as u64);
        }
        if let Some(declared) = frame.content_size
            && declared != out.len() as u64
        {
            let problem = "a frame declares another size than the seek table";
            return sizes_differ(problem, out.len(), declared);
        }
        let mismatch = |problem| Error::new(Code::ChecksumMismatch, "S-SEK-4", problem);
        let count = codec::decode_frame(scratch, stored, &frame, out).map_err(|e| {
            if e.code() == Code::ChecksumMismatch {
                return mismatch("a frame does not fit its own checksum");
            }
            e
        })?;
        if count != out.len() {
            let problem = "a frame decodes to another size than the seek table says";
            return sizes_differ(problem, out.len(), count as u64);
        }
        let Some(stated) = self.frames.get(number).and_then(|frame| frame.checksum) else {
            return Ok(());
        };
        // A frame's own checksum was compared with its content.
        let own = stored.last_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        let found = match own {
            Some(own) if frame.has_checksum => own,
            _ => xxh64_low(out),
        };
        if found != stated {
            return Err(mismatch("a frame does not fit the checksum of the seek table"));
        }
        Ok(())
    }
}

/// Appends the table of some frames, which all have checksums.
pub(crate) fn append_table(out: &mut Vec<u8>, frames: &[SeekFrame]) -> Result<()> {
    let count = u32::try_from(frames.len()).ok();
    let size = count.and_then(|count| count.checked_mul(12)?.checked_add(9));
    let (Some(count), Some(size)) = (count, size) else {
        return Err(Error::invalid("too many frames for a seek table").with_found(frames.len()));
    };
    out.extend(TABLE_FRAME_MAGIC.to_le_bytes());
    out.extend(size.to_le_bytes());
    for frame in frames {
        out.extend(frame.compressed_size.to_le_bytes());
        out.extend(frame.decompressed_size.to_le_bytes());
        out.extend(frame.checksum.unwrap_or_default().to_le_bytes());
    }
    out.extend(count.to_le_bytes());
    out.push(0x80);
    out.extend(SEEK_MAGIC.to_le_bytes());
    Ok(())
}
