//! Records of an open shard, and records in memory.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::hash::crc32c;
use crate::json::{self, Object};
use crate::shard::{Source, View, read_into, reserve};
use crate::{Code, Error, Limits, Result};

use super::encoding::{Encoding, content_type_of};
use super::kinds::{Kinds, KindsCache};
use super::layout::{FixedHead, HeadParts, MetadataEncoding, Row, align_up, check_key, wrong_checksum};
use super::messagepack;

/// A record in memory: what you write, and what a reader gives you as a whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// Names the record. It is unique in its shard.
    pub key: String,
    /// What you want to know about the record without reading its entries.
    pub metadata: Metadata,
    /// The entries, in the order of the file.
    pub file_entries: Vec<FileEntry>,
}

/// One named entry of a record in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileEntry {
    /// Is unique in the record.
    pub file_name: String,
    /// A media type such as `image/jpeg`; empty if it is not known.
    pub content_type: String,
    /// The content.
    pub data: Vec<u8>,
    /// Whether a writer may compress the entry; of an entry that was read, whether it is stored compressed.
    pub compressed: bool,
}

impl FileEntry {
    /// An entry whose content type follows from the ending of its name.
    pub fn new(file_name: impl Into<String>, data: impl Into<Vec<u8>>) -> Self {
        let file_name = file_name.into();
        let content_type = content_type_of(&file_name).to_owned();
        Self { file_name, content_type, data: data.into(), compressed: true }
    }
}

/// The metadata of a record. A record without metadata has an empty object.
#[derive(Clone, Debug, PartialEq)]
pub enum Metadata {
    /// A JSON object.
    Json(Object),
    /// A map of MessagePack.
    MessagePack(messagepack::Value),
}

impl Default for Metadata {
    fn default() -> Self {
        Self::Json(Object::new())
    }
}

// --- records of an open shard

/// Where the bytes of a shard come from.
pub(super) struct Origin {
    /// Not there if the records come from a stream, which are in memory as a whole.
    pub source: Option<Arc<dyn Source>>,
    pub limits: Limits,
    pub kinds: KindsCache,
}

impl Origin {
    pub(super) fn new(source: Option<Arc<dyn Source>>, limits: &Limits) -> Arc<Self> {
        Arc::new(Self { source, limits: limits.clone(), kinds: KindsCache::default() })
    }

    pub(super) fn path(&self) -> Option<&Path> {
        self.source.as_ref()?.path()
    }

    pub(super) fn located(&self, error: Error) -> Error {
        error.with_path(self.path())
    }

    /// Reads bytes of the file, whose size the caller has compared with that of the file.
    pub(super) fn read(&self, offset: u64, size: u64) -> Result<Vec<u8>> {
        let size = usize::try_from(size).map_err(|_| {
            Error::new(Code::LimitExceeded, "", "more bytes than this machine can hold").with_found(size)
        })?;
        let mut data = reserve(size)?;
        data.resize(size, 0);
        if let Some(source) = &self.source {
            read_into(&**source, offset, &mut data)?;
        }
        Ok(data)
    }
}

/// A record of an open shard: a key, metadata and named entries. Its head was checked. Entries are read and checked when
/// you ask for them.
#[derive(Clone)]
pub struct StoredRecord {
    origin: Arc<Origin>,
    offset: u64,
    head: FixedHead,
    kinds: Arc<Kinds>,
    /// What the head says about each entry, and where it starts in the record; `None` for entries that leave it.
    rows: Vec<(Row, Option<u64>)>,
    /// The first bytes of the record: its head at least. Records that were read together share their memory.
    block: View,
}

impl StoredRecord {
    /// Opens the record that takes `size` bytes from an offset on. `first` is what is in memory of it already.
    pub(super) fn open(origin: &Arc<Origin>, offset: u64, size: u64, first: View) -> Result<Self> {
        let record = Self::open_any(origin, offset, size, first)?;
        check_key(record.parts().key).map_err(|error| at_offset(error, origin, offset))?;
        Ok(record)
    }

    /// Opens a record whose key may be no text.
    pub(super) fn open_any(origin: &Arc<Origin>, offset: u64, size: u64, first: View) -> Result<Self> {
        Self::parse(origin, offset, size, first).map_err(|error| at_offset(error, origin, offset))
    }

    fn parse(origin: &Arc<Origin>, offset: u64, size: u64, mut block: View) -> Result<Self> {
        let head = FixedHead::parse(&block, size)?;
        let have = block.len() as u64;
        if let Some(missing) = head.head_size().checked_sub(have).filter(|missing| *missing > 0) {
            let rest = origin.read(offset.saturating_add(have), missing)?;
            block = View::of([&*block, &rest].concat());
        }
        let size = usize::try_from(head.head_size()).unwrap_or(usize::MAX);
        let parts = HeadParts::parse(block.get(..size).unwrap_or(&block), &head)?;
        let kinds = origin.kinds.parse(parts.kinds, head.entry_count as usize)?;
        let rows = place_rows(Row::unpack_all(parts.rows), &head);
        Ok(Self { origin: Arc::clone(origin), offset, head, kinds, rows, block })
    }

    pub(super) fn parts(&self) -> HeadParts<'_> {
        HeadParts::split(&self.block, &self.head).unwrap_or_default()
    }

    /// Names the record. It is unique in its shard.
    pub fn key(&self) -> &str {
        std::str::from_utf8(self.parts().key).unwrap_or_default()
    }

    /// Where the record starts in its shard.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The bytes that the record takes in its shard, padding included.
    pub fn size(&self) -> u64 {
        self.head.record_size
    }

    /// 1, 8 or 64: entries start on multiples of it, from the start of the record.
    pub fn alignment(&self) -> u8 {
        self.head.alignment
    }

    /// The metadata as it is in the file.
    pub fn stored_metadata(&self) -> (MetadataEncoding, &[u8]) {
        (self.head.metadata_encoding, self.parts().metadata)
    }

    /// What the writer stored about the record. It is parsed each time (P-MTD).
    pub fn metadata(&self) -> Result<Metadata> {
        let limits = &self.origin.limits;
        let (encoding, stored) = self.stored_metadata();
        match encoding {
            MetadataEncoding::None => self.check_no_metadata().map(|()| Metadata::default()),
            MetadataEncoding::Json => json::parse_object(stored, "the metadata", "P-MTD-2", limits).map(Metadata::Json),
            MetadataEncoding::MessagePack => match messagepack::decode(stored, limits.max_json_nodes) {
                Ok(map @ messagepack::Value::Map(_)) => Ok(Metadata::MessagePack(map)),
                Ok(_) => Err(Error::new(Code::BadMetadata, "P-MTD-3", "the metadata is not a map")),
                Err(error) => Err(error),
            },
        }
        .map_err(|error| self.failed(error))
    }

    /// Checks P-MTD-1.
    pub(super) fn check_no_metadata(&self) -> Result<()> {
        match self.stored_metadata() {
            (MetadataEncoding::None, [_, ..]) => {
                let problem = "metadata is present, but its encoding is 'none'";
                Err(Error::new(Code::BadMetadata, "P-MTD-1", problem))
            }
            _ => Ok(()),
        }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The entries, in the order of the file. Nothing is read.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = StoredEntry<'_>> {
        self.rows.iter().enumerate().map(|(number, (row, start))| StoredEntry {
            record: self,
            number,
            row,
            start: *start,
        })
    }

    /// The entry of a name. Nothing is read.
    pub fn entry(&self, name: &str) -> Result<StoredEntry<'_>> {
        self.kinds
            .find(name)
            .and_then(|number| self.entries().nth(number))
            .ok_or_else(|| self.failed(Error::new(Code::EntryNotFound, "", "no such entry").with_entry(name)))
    }

    /// The content of the entry of a name, decompressed and checked.
    pub fn read_entry(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        self.entry(name)?.read()
    }

    /// Reads the whole record.
    pub fn read(&self) -> Result<Record> {
        let file_entries = self.entries().map(|entry| {
            Ok(FileEntry {
                file_name: entry.name().to_owned(),
                content_type: entry.content_type().to_owned(),
                data: entry.read()?.into_owned(),
                compressed: entry.encoding() != Encoding::None,
            })
        });
        Ok(Record {
            file_entries: file_entries.collect::<Result<_>>()?,
            metadata: self.metadata()?,
            key: self.key().to_owned(),
        })
    }

    /// Reads and checks the metadata and all entries.
    pub fn verify(&self) -> Result<()> {
        self.metadata()?;
        self.entries().try_for_each(|entry| entry.read().map(drop))
    }

    /// Adds the file and the record to an error.
    pub(super) fn failed(&self, error: Error) -> Error {
        self.origin.located(in_record(error, self.key()))
    }
}

impl fmt::Debug for StoredRecord {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.entries().map(|entry| entry.name());
        write!(out, "StoredRecord({:?} at byte {}, entries {:?})", self.key(), self.offset, names.collect::<Vec<_>>())
    }
}

/// Adds the key of the record to an error about what is in it.
pub(super) fn in_record(error: Error, key: &str) -> Error {
    error.within(format_args!("record {}", crate::error::quoted(key)))
}

/// Adds where a record starts to an error about its head.
pub(super) fn at_offset(error: Error, origin: &Origin, offset: u64) -> Error {
    origin.located(error.within(format_args!("record at byte {offset}")))
}

/// Follows the sizes of the entries (section 4).
fn place_rows(rows: Vec<Row>, head: &FixedHead) -> Vec<(Row, Option<u64>)> {
    let mut end = Some(head.head_size());
    rows.into_iter()
        .map(|row| {
            let start = end.and_then(|end| align_up(end, head.alignment));
            end = start.and_then(|start| start.checked_add(row.stored_size)).filter(|end| *end <= head.record_size);
            (row, start.filter(|_| end.is_some()))
        })
        .collect()
}

/// One named entry of a record.
#[derive(Clone, Copy)]
pub struct StoredEntry<'a> {
    record: &'a StoredRecord,
    number: usize,
    row: &'a Row,
    start: Option<u64>,
}

impl<'a> StoredEntry<'a> {
    /// Is unique in the record.
    pub fn name(&self) -> &'a str {
        self.record.kinds.name(self.number)
    }

    /// A media type such as `image/jpeg`; empty if it is not known.
    pub fn content_type(&self) -> &'a str {
        self.record.kinds.content_type(self.number)
    }

    /// The bytes of the content, as the record states it.
    pub fn size(&self) -> u64 {
        self.row.original_size
    }

    /// The bytes in the file, as the record states it.
    pub fn stored_size(&self) -> u64 {
        self.row.stored_size
    }

    /// How the content is stored.
    pub fn encoding(&self) -> Encoding {
        self.row.encoding
    }

    /// The checksum of the stored bytes.
    pub fn crc32c(&self) -> u32 {
        self.row.crc32c
    }

    pub(super) fn row(&self) -> Row {
        *self.row
    }

    fn start(&self) -> Result<u64> {
        self.start.ok_or_else(|| {
            self.failed(
                Error::new(Code::BadOffset, "P-ENT-1", "the entry extends beyond its record")
                    .with_expected(format_args!("at most {}", self.record.head.record_size))
                    .with_found(self.row.stored_size),
            )
        })
    }

    /// Where the stored bytes start in the shard.
    pub fn offset(&self) -> Result<u64> {
        Ok(self.record.offset.saturating_add(self.start()?))
    }

    /// The bytes as they are in the file, checked against their checksum (P-ENT-1, P-ENT-3).
    pub fn stored(&self) -> Result<Cow<'a, [u8]>> {
        let (record, start) = (self.record, self.start()?);
        let end = start.saturating_add(self.row.stored_size);
        let in_memory = usize::try_from(start).ok().zip(usize::try_from(end).ok());
        let stored = match in_memory.and_then(|(start, end)| record.block.get(start..end)) {
            Some(stored) => Cow::Borrowed(stored),
            None => {
                let read = record.origin.read(self.offset()?, self.row.stored_size);
                Cow::Owned(read.map_err(|error| self.failed(error))?)
            }
        };
        self.check_stored(&stored)?;
        Ok(stored)
    }

    fn check_stored(&self, stored: &[u8]) -> Result<()> {
        let found = crc32c(stored);
        if found == self.row.crc32c {
            return Ok(());
        }
        Err(self.failed(wrong_checksum("P-ENT-3", "the stored bytes are damaged", self.row.crc32c, found)))
    }

    /// The content, checked, in memory that stays valid without the reader: a raw entry of a file in place, without a
    /// copy. A shard or an episode inside a record can be opened from it.
    pub fn view(&self) -> Result<View> {
        let origin = &self.record.origin;
        self.row.check(&origin.limits).map_err(|error| self.failed(error))?;
        let offset = self.offset()?;
        let in_place = match (self.row.encoding, &origin.source) {
            (Encoding::None, Some(source)) => source.view(offset..offset.saturating_add(self.row.stored_size)),
            _ => None,
        };
        match in_place {
            Some(view) => self.check_stored(&view).map(|()| view),
            None => Ok(View::of(self.read()?.into_owned())),
        }
    }

    /// The content, decompressed and checked.
    pub fn read(&self) -> Result<Cow<'a, [u8]>> {
        let limits = &self.record.origin.limits;
        self.row.check(limits).map_err(|error| self.failed(error))?;
        let stored = self.stored()?;
        if self.row.encoding == Encoding::None {
            return Ok(stored);
        }
        self.row.decode(&stored, limits).map(Cow::Owned).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: Error) -> Error {
        self.record.failed(error.with_entry(self.name()))
    }
}
