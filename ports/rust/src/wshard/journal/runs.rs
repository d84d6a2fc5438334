//! The runs of a channel: where they are in the journal, and what they hold (spec/journal.md, section 6).

use std::sync::Arc;

use super::frame::{Frame, Frames, LARGEST_RUN, read_at};
use crate::hash::crc32c;
use crate::shard::frames;
use crate::shard::{EntryOptions, Filters, ShardWriter, Source, StoredRun};
use crate::wshard::fields::size_mismatch;
use crate::{Code, Error, Result};

/// The most bytes of a run that is filtered or of text, or that is compressed again (J-RUN-3).
pub(crate) const LARGEST_LIMITED: u32 = 64 << 20;
const SMALLEST_COMPRESSED: u64 = 257;
const SEEK_TABLE: u64 = 17;
const SEEK_ROW: u64 = 12;

/// Where a run is; 24 bytes, because a recording of hours has hundreds of thousands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Where the stored bytes are.
    pub(crate) offset: u64,
    /// Where the content ends, in the content of all runs.
    end: u64,
    pub(crate) stored: u32,
    crc: u32,
}

/// The content of a channel of a journal.
#[derive(Clone)]
pub(crate) struct Runs {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) is_compressed: bool,
    pub(crate) filters: Option<Filters>,
    pub(crate) list: Vec<Run>,
}

impl std::fmt::Debug for Runs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Runs({})", self.list.len())
    }
}

impl Runs {
    pub(crate) fn new(source: &Arc<dyn Source>) -> Self {
        Self { source: Arc::clone(source), is_compressed: false, filters: None, list: Vec::new() }
    }

    fn size(&self) -> u64 {
        self.list.last().map_or(0, |run| run.end)
    }

    /// Checks a run (J-RUN-2, J-RUN-3). `decodes` tells whether its content is checked, too (J-RUN-4).
    pub(crate) fn check(&self, frames: &Frames, frame: &Frame, step: u64, is_text: bool, decodes: bool) -> Result<()> {
        let head = frame.head;
        let is_other = !self.list.is_empty() && head.is_compressed != self.is_compressed;
        if is_other || (self.filters.is_some() && !head.is_compressed) {
            let problem = "a run has another codec than the runs before it, or than its filters need";
            return Err(Error::new(Code::BadHeader, "J-RUN-2", problem));
        }
        let size = u64::from(head.entries).saturating_mul(step);
        if head.entries == 0 || size != u64::from(head.content_size) {
            return Err(size_mismatch("J-RUN-3", "a run does not hold its entries", size, head.content_size));
        }
        if (self.filters.is_some() || is_text) && head.content_size > LARGEST_LIMITED {
            return Err(size_mismatch(
                "J-RUN-3",
                "a filtered run, or one of text, is too large",
                "at most 64 MiB",
                head.content_size,
            ));
        }
        if decodes && head.is_compressed {
            decode(&frames.stored(frame)?, head.content_size, head.content_crc, self.filters.as_ref())?;
        }
        Ok(())
    }

    pub(crate) fn add(&mut self, frame: &Frame) {
        let head = frame.head;
        self.is_compressed = head.is_compressed;
        let end = self.size().saturating_add(u64::from(head.content_size));
        self.list.push(Run { offset: frame.offset, end, stored: head.stored_size, crc: head.content_crc });
    }

    /// Where the content of a run starts.
    fn start(&self, number: usize) -> u64 {
        number.checked_sub(1).and_then(|before| self.list.get(before)).map_or(0, |run| run.end)
    }

    /// The bytes from start to end.
    pub(crate) fn read_range(&self, start: u64, end: u64) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let first = self.list.partition_point(|run| run.end <= start);
        for (number, run) in self.list.iter().enumerate().skip(first) {
            let begin = self.start(number);
            if begin >= end {
                break;
            }
            let within = |at: u64| at.clamp(begin, run.end).saturating_sub(begin);
            out.extend(self.read_run(number, run, within(start), within(end))?);
        }
        Ok(out)
    }

    /// The content of one run.
    pub(crate) fn content(&self, number: usize) -> Result<Vec<u8>> {
        let end = self.list.get(number).map_or(0, |run| run.end);
        self.read_range(self.start(number), end)
    }

    /// A part of the content of one run.
    fn read_run(&self, number: usize, run: &Run, from: u64, to: u64) -> Result<Vec<u8>> {
        let count = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
        if !self.is_compressed {
            let mut data = vec![0; count(to.saturating_sub(from))];
            read_at(&*self.source, run.offset.saturating_add(from), &mut data)?;
            return Ok(data);
        }
        let mut stored = vec![0; run.stored as usize];
        read_at(&*self.source, run.offset, &mut stored)?;
        let size = run.end.saturating_sub(self.start(number));
        let mut content = decode(&stored, u32::try_from(size).unwrap_or(u32::MAX), run.crc, self.filters.as_ref())?;
        content.truncate(count(to));
        content.drain(..count(from).min(content.len()));
        Ok(content)
    }

    /// Writes the first bytes of the content as an entry of the stored runs, the last of them compressed again if the entry
    /// ends within it. It tells whether an entry may hold them (S-CMP-2, S-CMP-10).
    pub(crate) fn write_stored(&self, writer: &mut ShardWriter, name: &str, size: u64) -> Result<bool> {
        if !self.is_compressed || !(SMALLEST_COMPRESSED..=u64::from(LARGEST_RUN)).contains(&size) {
            return Ok(false);
        }
        let count = self.list.partition_point(|run| run.end < size).saturating_add(1);
        let whole = self.list.get(..count).unwrap_or_default();
        let mut again: Arc<[u8]> = Arc::default();
        let mut last_crc = 0;
        let begin = self.start(count.saturating_sub(1));
        let is_cut = whole.last().is_some_and(|run| run.end > size);
        if is_cut {
            if size.saturating_sub(begin) > u64::from(LARGEST_LIMITED) {
                return Ok(false);
            }
            let data = self.read_range(begin, size)?;
            last_crc = crc32c(&data);
            let mut frame = Vec::new();
            frames::append_frame(&mut frame, &data, 3, self.filters.as_ref())?;
            again = frame.into();
        }
        let mut runs = Vec::with_capacity(count);
        for (number, run) in whole.iter().enumerate() {
            let content = run.end.min(size).saturating_sub(self.start(number));
            let content_size = u32::try_from(content).unwrap_or(u32::MAX);
            let is_again = is_cut && number.saturating_add(1) == count;
            runs.push(if is_again {
                let stored_size = u32::try_from(again.len()).unwrap_or(u32::MAX);
                StoredRun { source: &again, offset: 0, stored_size, content_size, crc32c: last_crc }
            } else {
                StoredRun {
                    source: &*self.source,
                    offset: run.offset,
                    stored_size: run.stored,
                    content_size,
                    crc32c: run.crc,
                }
            });
        }
        let mut total = runs.iter().fold(0u64, |sum, run| sum.saturating_add(u64::from(run.stored_size)));
        if count > 1 {
            total = total.saturating_add(SEEK_TABLE).saturating_add(SEEK_ROW.saturating_mul(count as u64));
        }
        if let Some(filters) = &self.filters {
            let mut description = Vec::new();
            filters.append_description(&mut description)?;
            total = total.saturating_add(description.len() as u64);
        }
        if total >= size {
            return Ok(false);
        }
        let options = EntryOptions { filters: self.filters, ..EntryOptions::default() };
        writer.write_runs(name, &runs, &options)?;
        Ok(true)
    }
}

/// Decodes a run: exactly one zstd frame that states its size and has a checksum (J-RUN-4).
fn decode(stored: &[u8], size: u32, crc: u32, filters: Option<&Filters>) -> Result<Vec<u8>> {
    let as_run = |e: Error| e.with_rule("J-RUN-4");
    frames::check_frame(stored, size.into()).map_err(as_run)?;
    let mut content = vec![0; size as usize];
    frames::decode_frame_into(stored, &mut content, filters).map_err(as_run)?;
    if crc32c(&content) != crc {
        return Err(Error::new(Code::ChecksumMismatch, "J-RUN-4", "a run decodes to other bytes"));
    }
    Ok(content)
}
