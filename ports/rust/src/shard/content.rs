//! How the content of entries is decoded and checked.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::codec::{self, Frames, ZSTD_EXPANSION, with_scratch};
use super::filters::{self, Filters, MAX_DESCRIPTION};
use super::layout::{Codec, IndexEntry, entry_flags, flags};
use super::lz4;
use super::parallel::{Buffer, both, with_buffer};
use super::reader::{ShardReader, zeroed};
use super::seekable::{self, SeekTable};
use super::source::{self, View};
use crate::hash;
use crate::registry::Code;
use crate::{Error, Result};

/// The size of content from which its frames are worth several threads.
const WORTH_THREADS: usize = 1 << 18;
/// How much of a raw entry is read at once.
const SCAN_PIECE: u64 = 1 << 20;
/// The size from which compressed entries are scanned one after another.
const SCAN_LARGE: u64 = 64 << 20;
/// How many times the limit of decompressed bytes a compressed entry may take in the file.
const MOST_STORED: u64 = 4;
/// The size of a seek table of 300 frames: mostly one read brings the whole table.
const USUAL_TABLE: u64 = 4096;
/// The number of entries whose tables a reader keeps, and the largest table that it keeps.
const MOST_KEPT: usize = 64;
const MOST_FRAMES_KEPT: usize = 1 << 12;

/// What ranges of an entry need to know.
#[derive(Debug)]
pub(super) struct HowStored {
    /// `None` if the entry is not seekable.
    pub(super) table: Option<SeekTable>,
    filters: Option<Filters>,
}

impl ShardReader {
    /// How an entry is stored (S-CMP-1, and S-FLT-1 about the codec).
    pub(super) fn codec(&self, entry: &IndexEntry) -> Result<Codec> {
        let default = self.header.compression_default;
        let is_zstd = entry.flags & entry_flags::ZSTD != 0;
        let is_lz4 = entry.flags & entry_flags::LZ4 != 0;
        let codec = match (is_zstd, is_lz4) {
            _ if entry.flags & entry_flags::COMPRESSED == 0 => Codec::None,
            (true, false) => Codec::Zstd,
            (false, true) => Codec::Lz4,
            (false, false) if default == Codec::Zstd.number() => Codec::Zstd,
            (false, false) if default == Codec::Lz4.number() => Codec::Lz4,
            _ => {
                return Err(Error::new(Code::UnknownCodec, "S-CMP-1", "the codec of the entry cannot be determined")
                    .with_found(format_args!("flags {:#06x} and default {default}", entry.flags)));
            }
        };
        if entry.flags & entry_flags::FILTERED != 0 && codec != Codec::Zstd {
            return Err(Error::new(Code::BadFilter, "S-FLT-1", "a filtered entry is not compressed with zstd")
                .with_found(codec.as_str()));
        }
        Ok(codec)
    }

    pub(super) fn has_checksum(&self, entry: &IndexEntry) -> bool {
        self.header.flags & flags::CHECKSUMS != 0 || entry.crc32c != 0
    }

    /// Makes all checks that need no data, before memory is made for the content.
    pub(super) fn check_sizes(&self, entry: &IndexEntry) -> Result<Codec> {
        let codec = self.codec(entry)?;
        let (stored, size) = (entry.disk_size, entry.orig_size);
        if codec == Codec::None {
            if stored != size {
                return Err(Error::new(Code::SizeMismatch, "S-DAT-4", "an uncompressed entry has two different sizes")
                    .with_expected(format_args!("{size} bytes"))
                    .with_found(stored));
            }
            return Ok(codec);
        }
        let most = self.limits().max_decompressed_bytes;
        if size > most {
            return Err(Error::new(Code::LimitExceeded, "S-CMP-2", "the entry is too large after decompression")
                .with_expected(format_args!("at most {most} bytes"))
                .with_found(size));
        }
        // No rule, but memory: skippable frames may be any number of bytes.
        if stored / MOST_STORED > most {
            return Err(Error::new(Code::LimitExceeded, "", "the stored bytes of a compressed entry are too many")
                .with_expected(format_args!("at most {MOST_STORED} times {most}"))
                .with_found(stored));
        }
        let reachable = match codec {
            Codec::Lz4 => stored.saturating_mul(lz4::EXPANSION).saturating_add(lz4::SLACK),
            _ => stored.saturating_mul(ZSTD_EXPANSION),
        };
        if size > reachable {
            return Err(Error::new(Code::SizeMismatch, "S-CMP-8", "the stored bytes cannot expand to this size")
                .with_found(format_args!("{stored} bytes for {size}")));
        }
        Ok(codec)
    }

    /// Stored bytes to decode: in place if they are in memory, or read into a buffer.
    fn stored<'a>(&'a self, range: Range<u64>, buffer: &'a mut Buffer) -> Result<&'a [u8]> {
        if let Some(bytes) = self.source.slice(range.clone()) {
            return Ok(bytes);
        }
        let size = range.end.saturating_sub(range.start);
        let bytes = buffer.room(usize::try_from(size).unwrap_or(usize::MAX))?;
        source::read_into(&*self.source, range.start, bytes)?;
        Ok(bytes)
    }

    /// Reads an entry without comparing it with its checksum.
    pub(super) fn decode(&self, entry: &IndexEntry) -> Result<Vec<u8>> {
        let codec = self.check_sizes(entry)?;
        let size = usize::try_from(entry.orig_size).unwrap_or(usize::MAX);
        if codec == Codec::Zstd && entry.flags & entry_flags::FILTERED == 0 {
            // New memory need not be filled with zeros if one thread decodes into it.
            return with_buffer(|buffer| {
                let stored = self.stored(block(entry), buffer)?;
                if seekable::table_size(stored, entry.disk_size).is_some() {
                    let mut out = zeroed(size)?;
                    self.decode_zstd(entry, stored, &mut out)?;
                    return Ok(out);
                }
                codec::decode_zstd_to_vec(stored, size, self.limits().max_window_bytes)
            });
        }
        let mut out = zeroed(size)?;
        self.decode_into(entry, codec, &mut out)?;
        Ok(out)
    }

    /// Fills memory of exactly the size of an entry whose sizes are checked.
    pub(super) fn decode_into(&self, entry: &IndexEntry, codec: Codec, out: &mut [u8]) -> Result<()> {
        if codec == Codec::None {
            return source::read_into(&*self.source, entry.data_offset, out);
        }
        with_buffer(|buffer| {
            let stored = self.stored(block(entry), buffer)?;
            match codec {
                Codec::Lz4 => lz4::decode(stored, out),
                _ => self.decode_zstd(entry, stored, out),
            }
        })
    }

    /// Decodes an entry: any frames; frames with a seek table; or one filtered frame.
    fn decode_zstd(&self, entry: &IndexEntry, stored: &[u8], out: &mut [u8]) -> Result<()> {
        let mut filters = None;
        let mut leading = 0;
        if entry.flags & entry_flags::FILTERED != 0 {
            let (found, size) = filters::leading(stored, entry.disk_size)?;
            (filters, leading) = (Some(found), size);
        }
        let table = SeekTable::parse(stored, entry.disk_size, entry.orig_size, leading)?;
        if let Some(table) = table {
            let frames = 0..table.frames.len();
            let part =
                Part { table: &table, filters, stored, stored_start: 0, max_window: self.limits().max_window_bytes };
            return part.decode(frames, 0..entry.orig_size, out);
        }
        let max_window = self.limits().max_window_bytes;
        let Some(filters) = filters else {
            return codec::decode_zstd(stored, out, max_window);
        };
        let stored = stored.get(leading..).unwrap_or_default();
        let frame = match Frames::new(stored, max_window).next().transpose()? {
            Some(frame) if frame.range == (0..stored.len()) => frame,
            _ => {
                return Err(Error::new(
                    Code::BadFilter,
                    "S-FLT-1",
                    "a filtered entry without a seek table is not one frame",
                ));
            }
        };
        filters.check_frame(out.len())?;
        with_scratch(|scratch| {
            let count = codec::decode_frame(scratch, stored, &frame, out)?;
            codec::exactly(count, out.len())?;
            filters.undo(out, &mut scratch.filter)
        })
    }

    // --- checksums

    pub(super) fn verify_content(&self, entry: &IndexEntry, data: &[u8]) -> Result<()> {
        if !self.options.checksums || !self.has_checksum(entry) {
            return Ok(());
        }
        compare_checksum(entry, hash::crc32c(data))
    }

    /// Reads and checks an entry and hands out its content, piece by piece. It keeps no more than one piece of a raw entry
    /// in memory.
    pub(super) fn scan(&self, row: usize, mut each: impl FnMut(&[u8])) -> Result<()> {
        let entry = self.entry(row)?;
        self.scan_entry(&entry, &mut each).map_err(|e| self.locate(e, self.index.name(row)))
    }

    fn scan_entry(&self, entry: &IndexEntry, each: &mut dyn FnMut(&[u8])) -> Result<()> {
        let codec = self.check_sizes(entry)?;
        if codec != Codec::None {
            let _alone = (entry.orig_size >= SCAN_LARGE).then(|| self.large.lock());
            let data = self.decode(entry)?;
            self.verify_content(entry, &data)?;
            each(&data);
            return Ok(());
        }
        with_buffer(|buffer| {
            let (mut at, end, mut sum) = (entry.data_offset, block(entry).end, 0);
            while at < end {
                let next = at.saturating_add(SCAN_PIECE).min(end);
                let piece = self.stored(at..next, buffer)?;
                sum = hash::crc32c_append(sum, piece);
                each(piece);
                at = next;
            }
            if self.options.checksums && self.has_checksum(entry) {
                compare_checksum(entry, sum)?;
            }
            Ok(())
        })
    }

    // --- views and windows

    pub(super) fn view_of(&self, row: usize, entry: &IndexEntry) -> Result<View> {
        let codec = self.check_sizes(entry)?;
        if codec != Codec::None {
            return Err(
                Error::new(Code::NotViewable, "", "a compressed entry has no view; read it").with_found(codec.as_str())
            );
        }
        let Some(view) = self.source.view(block(entry)) else {
            let data = self.decode(entry)?;
            self.verify_content(entry, &data)?;
            return Ok(View::of(data));
        };
        let words = self.checked.get_or_init(|| {
            let words = self.len().div_ceil(64);
            std::iter::repeat_with(AtomicU64::default).take(words).collect()
        });
        let bit = 1u64 << (row % 64);
        let word = words.get(row / 64);
        if word.is_none_or(|word| word.load(Ordering::Relaxed) & bit == 0) {
            self.verify_content(entry, &view)?;
            if let Some(word) = word {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
        Ok(view)
    }

    /// The size of a window, which must lie in the entry.
    pub(super) fn check_window(&self, entry: &IndexEntry, window: &Range<u64>) -> Result<usize> {
        if window.start > window.end || window.end > entry.orig_size {
            return Err(Error::invalid("the range is outside the entry")
                .with_expected(format_args!("0 to {}", entry.orig_size))
                .with_found(format_args!("{} to {}", window.start, window.end)));
        }
        // A false size must not make memory.
        self.check_sizes(entry)?;
        Ok(usize::try_from(window.end.saturating_sub(window.start)).unwrap_or(usize::MAX))
    }

    pub(super) fn decode_window(&self, entry: &IndexEntry, window: Range<u64>, out: &mut [u8]) -> Result<()> {
        let codec = self.codec(entry)?;
        if codec == Codec::None {
            let start = entry.data_offset.saturating_add(window.start);
            return source::read_into(&*self.source, start, out);
        }
        let how = self.how_stored(entry)?;
        let Some(table) = &how.table else {
            return self.decode_window_of_whole(entry, codec, window, out);
        };
        if out.is_empty() {
            return Ok(());
        }
        let frames = table.covering(&window);
        let stored = table.stored(&frames);
        let start = entry.data_offset.saturating_add(stored.start);
        let end = entry.data_offset.saturating_add(stored.end);
        with_buffer(|buffer| {
            let part = Part {
                table,
                filters: how.filters,
                stored: self.stored(start..end, buffer)?,
                stored_start: stored.start,
                max_window: self.limits().max_window_bytes,
            };
            part.decode(frames, window, out)
        })
    }

    fn decode_window_of_whole(
        &self,
        entry: &IndexEntry,
        codec: Codec,
        window: Range<u64>,
        out: &mut [u8],
    ) -> Result<()> {
        if window == (0..entry.orig_size) {
            self.decode_into(entry, codec, out)?;
            return self.verify_content(entry, out);
        }
        let size = usize::try_from(entry.orig_size).unwrap_or(usize::MAX);
        with_buffer(|buffer| {
            let whole = buffer.room(size)?;
            self.decode_into(entry, codec, whole)?;
            self.verify_content(entry, whole)?;
            let start = usize::try_from(window.start).unwrap_or(usize::MAX);
            let part = whole.get(start..).and_then(|rest| rest.get(..out.len()));
            out.copy_from_slice(part.unwrap_or_default());
            Ok(())
        })
    }

    /// The filters of an entry, and the size of the frame that describes them.
    pub(super) fn filters_of(&self, entry: &IndexEntry) -> Result<Option<(Filters, usize)>> {
        if entry.flags & entry_flags::FILTERED == 0 {
            return Ok(None);
        }
        self.codec(entry)?;
        let longest = MAX_DESCRIPTION.saturating_add(8) as u64;
        let head = self.read_bytes(entry.data_offset, entry.disk_size.min(longest))?;
        filters::leading(&head, entry.disk_size).map(Some)
    }

    /// The table and the filters of an entry. Those of some entries are kept: windows of one entry follow one another.
    pub(super) fn how_stored(&self, entry: &IndexEntry) -> Result<Arc<HowStored>> {
        if let Ok(kept) = self.kept.lock()
            && let Some(found) = kept.get(&entry.data_offset)
        {
            return Ok(Arc::clone(found));
        }
        let filters = self.filters_of(entry)?;
        let found = Arc::new(HowStored {
            table: self.read_table(entry, filters.map_or(0, |(_, size)| size))?,
            filters: filters.map(|(filters, _)| filters),
        });
        if found.table.as_ref().is_none_or(|table| table.frames.len() <= MOST_FRAMES_KEPT)
            && let Ok(mut kept) = self.kept.lock()
        {
            if kept.len() >= MOST_KEPT {
                kept.clear();
            }
            kept.insert(entry.data_offset, Arc::clone(&found));
        }
        Ok(found)
    }

    fn read_table(&self, entry: &IndexEntry, leading: usize) -> Result<Option<SeekTable>> {
        if self.codec(entry)? != Codec::Zstd {
            return Ok(None);
        }
        let tail = |size: u64| {
            let start = block(entry).end.saturating_sub(size);
            self.read_bytes(start, size)
        };
        let usual = entry.disk_size.min(USUAL_TABLE);
        let mut bytes = tail(usual)?;
        let Some(size) = seekable::table_size(&bytes, entry.disk_size) else {
            return Ok(None);
        };
        let size = size as u64;
        if size > self.limits().max_index_bytes {
            return Err(Error::new(Code::LimitExceeded, "", "the seek table is too large")
                .with_expected(format_args!("at most {} bytes", self.limits().max_index_bytes))
                .with_found(size));
        }
        if size > usual {
            bytes = tail(size)?;
        }
        SeekTable::parse(&bytes, entry.disk_size, entry.orig_size, leading)
    }
}

/// The place of an entry in the file, which was checked when the file was opened.
pub(super) fn block(entry: &IndexEntry) -> Range<u64> {
    entry.data_offset..entry.data_offset.saturating_add(entry.disk_size)
}

fn compare_checksum(entry: &IndexEntry, found: u32) -> Result<()> {
    if found == entry.crc32c {
        return Ok(());
    }
    Err(Error::new(Code::ChecksumMismatch, "S-CRC-1", "CRC-32C mismatch: the data is damaged")
        .with_expected(format_args!("{:08x}", entry.crc32c))
        .with_found(format_args!("{found:08x}")))
}

/// Some stored frames of a seekable entry.
struct Part<'a> {
    table: &'a SeekTable,
    filters: Option<Filters>,
    stored: &'a [u8],
    /// Where the stored bytes start in the entry.
    stored_start: u64,
    max_window: u64,
}

impl Part<'_> {
    /// Decodes what frames have of a window, several at once if that is worth it.
    fn decode(&self, frames: Range<usize>, window: Range<u64>, out: &mut [u8]) -> Result<()> {
        match frames.len() {
            0 => Ok(()),
            1 => self.decode_one(frames, window, out),
            _ if out.len() < WORTH_THREADS => {
                let mut rest = out;
                for number in frames {
                    let (now, after) = self.split(number..number.saturating_add(1), &window, rest)?;
                    self.decode_one(number..number.saturating_add(1), window.clone(), now)?;
                    rest = after;
                }
                Ok(())
            }
            count => {
                let middle = frames.start.saturating_add(count / 2);
                let (left, right) = (frames.start..middle, middle..frames.end);
                let (now, after) = self.split(left.clone(), &window, out)?;
                both(|| self.decode(left, window.clone(), now), || self.decode(right, window.clone(), after))
            }
        }
    }

    /// Takes the memory for the first frames off.
    fn split<'m>(
        &self,
        frames: Range<usize>,
        window: &Range<u64>,
        out: &'m mut [u8],
    ) -> Result<(&'m mut [u8], &'m mut [u8])> {
        let content = self.table.content(&frames);
        let start = content.start.max(window.start);
        let size = content.end.min(window.end).saturating_sub(start);
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        out.split_at_mut_checked(size).ok_or_else(|| Error::invalid("the memory has not the size of the window"))
    }

    /// Decodes one frame, of which the window may have a part only.
    fn decode_one(&self, frame: Range<usize>, window: Range<u64>, out: &mut [u8]) -> Result<()> {
        let number = frame.start;
        let place = self.table.stored(&frame);
        let at = |offset: u64| usize::try_from(offset.saturating_sub(self.stored_start)).ok();
        let stored = at(place.start).zip(at(place.end));
        let stored = stored.and_then(|(start, end)| self.stored.get(start..end));
        let content = self.table.content(&frame);
        let size = usize::try_from(content.end.saturating_sub(content.start)).unwrap_or(usize::MAX);
        if let Some(filters) = &self.filters {
            filters.check_frame(size)?;
        }
        with_scratch(|scratch| {
            if size == out.len() {
                return self.decode_frame(number, stored.unwrap_or_default(), out, scratch);
            }
            let mut buffer = std::mem::take(&mut scratch.frame);
            let whole = buffer.room(size)?;
            let result = self.decode_frame(number, stored.unwrap_or_default(), whole, scratch);
            let skipped = window.start.saturating_sub(content.start);
            let skipped = usize::try_from(skipped).unwrap_or(usize::MAX);
            let part = whole.get(skipped..).and_then(|rest| rest.get(..out.len()));
            out.copy_from_slice(part.unwrap_or_default());
            scratch.frame = buffer;
            result
        })
    }

    fn decode_frame(&self, number: usize, stored: &[u8], out: &mut [u8], scratch: &mut codec::Scratch) -> Result<()> {
        self.table.decode(number, stored, out, scratch, self.max_window)?;
        match &self.filters {
            Some(filters) => filters.undo(out, &mut scratch.filter),
            None => Ok(()),
        }
    }
}
