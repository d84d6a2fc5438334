//! Shards from start to end, without seeking (spec/shardpack.md, section 11).

use std::io::{BufReader, Read};
use std::sync::Arc;

use crate::shard::View;
use crate::{Code, Error, Limits, Result};

use super::index::Index;
use super::layout::{BLOCK_START_SIZE, Footer, INDEX_MARKER, RECORD_MARKER, block_start};
use super::record::{Origin, StoredRecord, at_offset};

const BUFFER: usize = 1 << 16;
/// A record of a stream is in memory as a whole.
const LARGEST_RECORD: u64 = 4 << 30;

/// Gives the records of a shard in order, from anything that can only be read forwards: a pipe, a network connection, a
/// file that lost its end. Each record is in memory as a whole and stays valid while you read on.
///
/// It ends after the first error. If the source ends too early, that is an error with the code `truncated`, after all
/// complete records.
pub struct Stream<R> {
    from: BufReader<R>,
    origin: Arc<Origin>,
    largest_record: u64,
    position: u64,
    count: u64,
    is_done: bool,
}

impl<R: Read> Stream<R> {
    /// Reads a shard from its first byte on.
    pub fn new(from: R) -> Self {
        Self::with_limits(from, &Limits::default(), LARGEST_RECORD)
    }

    /// Reads a shard with other limits; `largest_record` bounds the bytes of one record.
    pub fn with_limits(from: R, limits: &Limits, largest_record: u64) -> Self {
        let origin = Origin::new(None, limits);
        let from = BufReader::with_capacity(BUFFER, from);
        Self { from, origin, largest_record, position: 0, count: 0, is_done: false }
    }

    /// The next record; `None` after a complete index.
    fn read_next(&mut self) -> Result<Option<StoredRecord>> {
        let start = self.read(Vec::new(), BLOCK_START_SIZE as u64)?;
        let Some((size, marker)) = block_start(&start).filter(|_| start.iter().any(|byte| *byte != 0)) else {
            return Err(self.cut("P-FTR-1")); // zeros are space that a writer reserved and did not use
        };
        let refused = |error| Err(at_offset(error, &self.origin, self.position));
        if ![RECORD_MARKER, INDEX_MARKER].contains(&marker) {
            let problem = "neither a record nor the index starts here";
            return refused(Error::new(Code::BadMagic, "P-REC-2", problem).with_found(marker.escape_ascii()));
        }
        if size < start.len() as u64 {
            return refused(Error::new(Code::BadOffset, "P-REC-1", "it is smaller than its head").with_found(size));
        }
        if marker == INDEX_MARKER {
            return self.end(start, size).map(|()| None);
        }
        if size > self.largest_record {
            let error = Error::new(Code::LimitExceeded, "", "it is too large to read from a stream");
            return refused(error.with_expected(format_args!("at most {}", self.largest_record)).with_found(size));
        }
        let block = self.read(start, size)?;
        if (block.len() as u64) < size {
            return Err(self.cut("P-REC-7"));
        }
        let record = StoredRecord::open(&self.origin, self.position, size, View::of(block))?;
        self.position = self.position.saturating_add(size);
        self.count = self.count.saturating_add(1);
        Ok(Some(record))
    }

    /// Adds bytes to a block until it has a size, or until the source ends. Memory grows as bytes arrive, so a false size
    /// costs nothing.
    fn read(&mut self, mut block: Vec<u8>, size: u64) -> Result<Vec<u8>> {
        let missing = size.saturating_sub(block.len() as u64);
        let read = self.from.by_ref().take(missing).read_to_end(&mut block);
        read.map_err(|error| Error::io("cannot read", None, error))?;
        Ok(block)
    }

    fn cut(&self, rule: &'static str) -> Error {
        let error = Error::new(Code::Truncated, rule, "the stream ends before the index of the shard");
        at_offset(error, &self.origin, self.position)
    }

    /// Reads the index and checks that it fits what was read (P-IDX-2).
    fn end(&mut self, start: Vec<u8>, size: u64) -> Result<()> {
        let limit = self.origin.limits.max_index_bytes;
        if size > limit {
            let error = Error::new(Code::LimitExceeded, "P-IDX-1", "the index is too large");
            return Err(error.with_expected(format_args!("at most {limit}")).with_found(size));
        }
        let data = self.read(start, size)?;
        if (data.len() as u64) < size {
            return Err(self.cut("P-FTR-1"));
        }
        let footer = Footer::parse(&data, self.position.saturating_add(size), &data)?;
        if (footer.index_offset, footer.record_count) != (self.position, self.count) {
            let problem = "the footer does not match the records before it";
            return Err(Error::new(Code::SizeMismatch, "P-IDX-2", problem)
                .with_expected(format_args!("{} records, {} bytes", footer.record_count, footer.index_offset))
                .with_found(format_args!("{} records, {} bytes", self.count, self.position)));
        }
        Index::new(data, footer)?;
        if self.read(Vec::new(), 1)?.is_empty() {
            return Ok(());
        }
        Err(Error::new(Code::TrailingData, "P-FTR-5", "bytes follow the footer"))
    }
}

impl<R: Read> Iterator for Stream<R> {
    type Item = Result<StoredRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let next = self.read_next().transpose();
        self.is_done = !matches!(next, Some(Ok(_)));
        next
    }
}
