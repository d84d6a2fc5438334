//! Shards by number and by key (spec/shardpack.md, section 11).

use std::path::Path;
use std::sync::Arc;

use crate::hash::xxh64;
use crate::json::Object;
use crate::shard::{FileSource, Source, View};
use crate::{Code, Error, Limits, Result};

use super::index::{self, Index};
use super::layout::{BLOCK_START_SIZE, Footer};
use super::record::{Origin, Record, StoredRecord, in_record};

/// Holds the footer and the index of a shard of up to about 3000 records.
const TAIL_READ: u64 = 1 << 16;
/// What is read of a record at first: enough for nearly every head, and for small records as a whole.
pub(super) const FIRST_READ: u64 = 4096;
/// How much is read at once when records are read in order.
pub(super) const WINDOW: u64 = 1 << 20;

/// Gives the records of one shard by number and by key. Opening reads the index. Any number of threads may use a reader.
pub struct ShardPackReader {
    pub(super) origin: Arc<Origin>,
    pub(super) index: Index,
}

impl ShardPackReader {
    /// Opens a shard.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, &Limits::default())
    }

    /// Opens a shard with other limits.
    pub fn open_with(path: impl AsRef<Path>, limits: &Limits) -> Result<Self> {
        Self::from_source(Arc::new(FileSource::open(path)?), limits)
    }

    /// Reads a shard from memory, from a range of a larger file, or from anything else that reads at an offset.
    pub fn from_source(source: Arc<dyn Source>, limits: &Limits) -> Result<Self> {
        Self::from_origin(Origin::new(Some(source), limits))
    }

    pub(super) fn from_origin(origin: Arc<Origin>) -> Result<Self> {
        let index = read_index(&origin).map_err(|error| origin.located(error))?;
        Ok(Self { origin, index })
    }

    /// The last bytes of the shard, field by field.
    pub fn footer(&self) -> &Footer {
        &self.index.footer
    }

    /// The path of the shard, if it has one.
    pub fn path(&self) -> Option<&Path> {
        self.origin.path()
    }

    /// The number of records.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The fields of the shard: created, schema, user, version and others. They are parsed each time.
    pub fn metadata(&self) -> Result<Object> {
        self.index.metadata(&self.origin.limits).map_err(|error| self.origin.located(error))
    }

    /// Where each record starts, and where the last one ends.
    pub fn offsets(&self) -> Result<Vec<u64>> {
        self.check_offsets()?;
        Ok(self.index.offsets())
    }

    pub(super) fn check_offsets(&self) -> Result<()> {
        self.index.check_offsets().map_err(|error| self.origin.located(error))
    }

    /// Opens the record of a number, from 0 on. It reads the head, and small records as a whole.
    pub fn record(&self, number: usize) -> Result<StoredRecord> {
        let (offset, size, first) = self.first_bytes(number)?;
        StoredRecord::open(&self.origin, offset, size, first)
    }

    /// Opens a record whose key may be no text.
    pub(super) fn record_any(&self, number: usize) -> Result<StoredRecord> {
        let (offset, size, first) = self.first_bytes(number)?;
        StoredRecord::open_any(&self.origin, offset, size, first)
    }

    fn first_bytes(&self, number: usize) -> Result<(u64, u64, View)> {
        self.check_offsets()?;
        let (offset, size) = self.index.place(number).ok_or_else(|| {
            let error = Error::new(Code::EntryNotFound, "", "no such record");
            let error = error.with_expected(format_args!("a number below {}", self.len()));
            self.origin.located(error.with_found(number))
        })?;
        Ok((offset, size, View::of(self.origin.read(offset, size.min(FIRST_READ))?)))
    }

    /// Reads the record of a number, from 0 on, as a whole.
    pub fn read_record(&self, number: usize) -> Result<Record> {
        self.record(number)?.read()
    }

    /// The number of the record with a key, if there is one. A key of two records is an error (P-REC-10, P-IDX-9).
    pub fn find(&self, key: &str) -> Result<Option<usize>> {
        self.index.check_lookup().map_err(|error| self.origin.located(error))?;
        let mut found = None;
        for number in self.index.with_hash(xxh64(key.as_bytes())) {
            if found == Some(number) || self.record(number)?.key() != key {
                continue;
            }
            if found.replace(number).is_some() {
                return Err(self.origin.located(duplicate(key)));
            }
        }
        Ok(found)
    }

    /// Opens the record with a key.
    pub fn by_key(&self, key: &str) -> Result<StoredRecord> {
        match self.find(key)? {
            Some(number) => self.record(number),
            None => Err(self.origin.located(no_such_key(key))),
        }
    }

    /// All records in the order of the file; small ones are read together. A damaged record gives an error instead, and
    /// the next one follows.
    pub fn records(&self) -> Records<'_> {
        Records { reader: self, number: 0, window: Arc::default(), window_at: 0 }
    }

    /// All records as a whole, in the order of the file.
    pub fn iter_records(&self) -> impl Iterator<Item = Result<Record>> {
        self.records().map(|record| record?.read())
    }

    /// Reads and checks everything: the index, and every record with its metadata and entries.
    pub fn verify(&self) -> Result<()> {
        self.verify_each(|_| Ok(()))
    }

    /// Calls a function for every record, after it was checked.
    pub(super) fn verify_each(&self, mut each: impl FnMut(&StoredRecord) -> Result<()>) -> Result<()> {
        self.metadata()?;
        for (number, record) in self.records().enumerate() {
            let record = record?;
            record.verify()?;
            if self.find(record.key())? != Some(number) {
                let problem = "the lookup does not find the record";
                return Err(record.failed(Error::new(Code::BadOffset, "P-IDX-6", problem)));
            }
            each(&record)?;
        }
        Ok(())
    }
}

fn read_index(origin: &Origin) -> Result<Index> {
    let size = origin.source.as_ref().map_or(0, |source| source.len());
    let start = size.saturating_sub(TAIL_READ);
    let mut tail = origin.read(start, size.saturating_sub(start))?;
    let footer = match Footer::parse(&tail, size, &[]) {
        // What the file starts with says more.
        Err(error) if error.code() == Code::BadMagic => {
            let first = origin.read(0, size.min(BLOCK_START_SIZE as u64))?;
            Footer::parse(&tail, size, &first)?
        }
        result => result?,
    };
    index::check_size(&footer, &origin.limits)?;
    let data = match footer.index_offset.checked_sub(start).and_then(|skipped| usize::try_from(skipped).ok()) {
        Some(skipped) => tail.split_off(skipped.min(tail.len())),
        None => origin.read(footer.index_offset, footer.index_size())?,
    };
    Index::new(data, footer)
}

pub(super) fn duplicate(key: &str) -> Error {
    in_record(Error::new(Code::DuplicateName, "P-REC-10", "two records have this key"), key)
}

pub(super) fn no_such_key(key: &str) -> Error {
    in_record(Error::new(Code::EntryNotFound, "", "no such record"), key)
}

/// The records of a shard, in the order of the file.
pub struct Records<'a> {
    reader: &'a ShardPackReader,
    number: usize,
    /// Some bytes of the file, from an offset on.
    window: Arc<Vec<u8>>,
    window_at: u64,
}

impl Records<'_> {
    /// The first bytes of a record: all of it if it is small.
    fn first_bytes(&mut self, offset: u64, size: u64) -> Result<View> {
        let wanted = size.min(WINDOW);
        if let Some(start) = offset.checked_sub(self.window_at) {
            let range = start..start.saturating_add(wanted);
            if let Some(view) = View::new(Arc::clone(&self.window) as _, range) {
                return Ok(view);
            }
        }
        let left = self.reader.footer().index_offset.saturating_sub(offset);
        self.window = Arc::new(self.reader.origin.read(offset, left.min(WINDOW))?);
        self.window_at = offset;
        Ok(View::new(Arc::clone(&self.window) as _, 0..wanted).unwrap_or_else(|| View::of(Vec::new())))
    }
}

impl Iterator for Records<'_> {
    type Item = Result<StoredRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.number >= self.reader.len() {
            return None;
        }
        if let Err(error) = self.reader.check_offsets() {
            self.number = usize::MAX;
            return Some(Err(error));
        }
        let (offset, size) = self.reader.index.place(self.number)?;
        self.number = self.number.saturating_add(1);
        let first = self.first_bytes(offset, size);
        Some(first.and_then(|first| StoredRecord::open(&self.reader.origin, offset, size, first)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.reader.len().saturating_sub(self.number)))
    }
}
