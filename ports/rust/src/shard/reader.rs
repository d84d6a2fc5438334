//! Gives the entries of a file by name.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};

use super::content::HowStored;
use super::index::{Index, parse_header};
use super::layout::{Codec, Header, IndexEntry};
use super::source::{self, FileSource, Source, View};
use super::{Filters, SeekFrame, parallel};
use crate::json::{self, Object};
use crate::registry::{Code, Limits, Role};
use crate::{Error, Result};

const FIRST_READ: u64 = 4096;
/// A long head is read in pieces of this size, several at once.
const HEAD_PIECE: usize = 8 << 20;
/// From this size on, memory is asked for and not taken.
const LARGE: usize = 64 << 20;

/// How to read a file.
#[derive(Clone, Debug)]
pub struct ReaderOptions {
    /// What the file may ask for; raise one for files that you trust.
    pub limits: Limits,
    /// Whether to compare entries with their checksums. Structure is always checked.
    pub checksums: bool,
}

impl Default for ReaderOptions {
    fn default() -> ReaderOptions {
        ReaderOptions { limits: Limits::default(), checksums: true }
    }
}

/// What the index says about an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryInfo<'a> {
    /// The name.
    pub name: &'a str,
    /// How it is stored.
    pub codec: Codec,
    /// The row of the index.
    pub row: IndexEntry,
}

/// Gives the entries of a file by name.
///
/// Opening reads the head of the file and checks its structure. Any number of threads may use a reader.
pub struct ShardReader {
    pub(super) source: Arc<dyn Source>,
    pub(super) header: Header,
    pub(super) index: Index,
    pub(super) options: ReaderOptions,
    /// Seek tables and filters, by the offset of the block.
    pub(super) kept: Mutex<HashMap<u64, Arc<HowStored>>>,
    /// A bit for each entry whose view was compared with its checksum.
    pub(super) checked: OnceLock<Vec<AtomicU64>>,
    /// Held while a large compressed entry is scanned, which bounds memory.
    pub(super) large: Mutex<()>,
}

impl fmt::Debug for ShardReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardReader").field("path", &self.path()).field("entries", &self.len()).finish_non_exhaustive()
    }
}

impl ShardReader {
    /// Opens a file.
    pub fn open(path: impl AsRef<Path>) -> Result<ShardReader> {
        ShardReader::open_with(path, ReaderOptions::default())
    }

    /// Opens a file with options.
    pub fn open_with(path: impl AsRef<Path>, options: ReaderOptions) -> Result<ShardReader> {
        ShardReader::from_source(Arc::new(FileSource::open(path)?), options)
    }

    /// Reads a file that is in memory.
    pub fn from_bytes(data: impl Into<Arc<[u8]>>) -> Result<ShardReader> {
        let data: Arc<[u8]> = data.into();
        ShardReader::from_source(Arc::new(data), ReaderOptions::default())
    }

    /// Reads from anything that reads at an offset.
    pub fn from_source(source: Arc<dyn Source>, options: ReaderOptions) -> Result<ShardReader> {
        let (header, index) = parse_head(&*source, &options.limits).map_err(|e| e.with_path(source.path()))?;
        Ok(ShardReader {
            source,
            header,
            index,
            options,
            kept: Mutex::default(),
            checked: OnceLock::new(),
            large: Mutex::default(),
        })
    }

    /// Where the bytes come from.
    pub fn source(&self) -> &Arc<dyn Source> {
        &self.source
    }

    /// The path of the file, if it has one.
    pub fn path(&self) -> Option<&Path> {
        self.source.path()
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What the file is for.
    pub fn role(&self) -> Role {
        self.header.role
    }

    /// What the file may ask for.
    pub fn limits(&self) -> &Limits {
        &self.options.limits
    }

    // --- what is there

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All names, in the order of the index.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|row| self.index.name(row))
    }

    /// The row of a name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.index.find(name)
    }

    /// Whether there is an entry of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// What the index says about an entry. The entry itself is not read.
    pub fn info(&self, name: &str) -> Result<EntryInfo<'_>> {
        self.info_at(self.row(name)?)
    }

    /// What the index says about the entry in a row.
    pub fn info_at(&self, row: usize) -> Result<EntryInfo<'_>> {
        let entry = self.entry(row)?;
        let name = self.index.name(row);
        let codec = self.codec(&entry).map_err(|e| self.locate(e, name))?;
        Ok(EntryInfo { name, codec, row: entry })
    }

    /// The row of the index of a name, as it is stored.
    pub fn index_entry(&self, name: &str) -> Option<IndexEntry> {
        self.index.entry(self.find(name)?)
    }

    /// Checks that an entry can have the size that the index claims, before memory is made for it (S-DAT-4, S-CMP-1, S-CMP-2,
    /// S-CMP-8).
    pub fn check_size(&self, name: &str) -> Result<()> {
        let checked = self.check_sizes(&self.entry_of(name)?);
        checked.map(drop).map_err(|e| self.locate(e, name))
    }

    pub(super) fn row(&self, name: &str) -> Result<usize> {
        self.index.find(name).ok_or_else(|| self.locate(Error::new(Code::EntryNotFound, "", "no such entry"), name))
    }

    pub(super) fn entry(&self, row: usize) -> Result<IndexEntry> {
        self.index.entry(row).ok_or_else(|| Error::invalid("no such row").with_path(self.path()).with_found(row))
    }

    /// The row of the index of a name.
    fn entry_of(&self, name: &str) -> Result<IndexEntry> {
        self.entry(self.row(name)?)
    }

    pub(super) fn locate(&self, error: Error, entry: &str) -> Error {
        error.with_path(self.path()).with_entry(entry)
    }

    // --- reading

    /// All bytes of an entry, decompressed and checked.
    pub fn read(&self, name: &str) -> Result<Vec<u8>> {
        self.read_at(self.row(name)?)
    }

    /// All bytes of the entry in a row, decompressed and checked.
    pub fn read_at(&self, row: usize) -> Result<Vec<u8>> {
        let entry = self.entry(row)?;
        self.decode(&entry)
            .and_then(|data| self.verify_content(&entry, &data).map(|()| data))
            .map_err(|e| self.locate(e, self.index.name(row)))
    }

    /// Many entries. With the feature `rayon`, several threads read and decode them.
    pub fn read_many(&self, names: &[&str]) -> Result<Vec<Vec<u8>>> {
        let contents: Vec<OnceLock<Vec<u8>>> = names.iter().map(|_| OnceLock::new()).collect();
        parallel::for_each(names.len(), |i| {
            if let (Some(name), Some(place)) = (names.get(i), contents.get(i)) {
                let _ = place.set(self.read(name)?);
            }
            Ok(())
        })?;
        let contents = contents.into_iter().map(OnceLock::into_inner);
        Ok(contents.map(Option::unwrap_or_default).collect())
    }

    /// Fills memory that has exactly the size of an entry, decompressed and checked. After an error it may hold anything.
    ///
    /// Like [`decode_window_into`](ShardReader::decode_window_into) it allocates nothing later, but for the table of a
    /// seekable entry.
    pub fn read_into(&self, name: &str, out: &mut [u8]) -> Result<()> {
        let entry = self.entry_of(name)?;
        let mut read = || {
            let codec = self.check_sizes(&entry)?;
            if out.len() as u64 != entry.orig_size {
                return Err(Error::invalid("the memory has not the size of the entry")
                    .with_expected(format_args!("{} bytes", entry.orig_size))
                    .with_found(out.len()));
            }
            self.decode_into(&entry, codec, out)?;
            self.verify_content(&entry, out)
        };
        read().map_err(|e| self.locate(e, name))
    }

    /// The bytes of an entry in a range.
    ///
    /// Of a seekable entry only the frames that hold them are read, decoded and checked; of a raw entry only the bytes
    /// themselves are read, without a check.
    pub fn read_range(&self, name: &str, range: Range<u64>) -> Result<Vec<u8>> {
        let entry = self.entry_of(name)?;
        self.check_window(&entry, &range)
            .and_then(zeroed)
            .and_then(|mut out| self.decode_window(&entry, range, &mut out).map(|()| out))
            .map_err(|e| self.locate(e, name))
    }

    /// Fills memory with the bytes of an entry from an offset on, as [`read_range`](ShardReader::read_range) does.
    ///
    /// The first calls of a thread make a decoder and buffers, which it keeps. Later calls for entries of that size
    /// allocate nothing, up to 64 MiB of stored bytes, and of content where an entry must be decoded as a whole: one that
    /// is compressed and not seekable.
    pub fn decode_window_into(&self, name: &str, start: u64, out: &mut [u8]) -> Result<()> {
        let entry = self.entry_of(name)?;
        let window = start..start.saturating_add(out.len() as u64);
        self.check_window(&entry, &window)
            .and_then(|_| self.decode_window(&entry, window, out))
            .map_err(|e| self.locate(e, name))
    }

    /// The bytes of a raw entry in place where the file can be mapped, and a copy elsewhere.
    ///
    /// The checksum of an entry is compared before its first view. A compressed entry has no view: `not_viewable`. A view
    /// stays valid without the reader. Do not change a file in place that is mapped; writers here replace files.
    pub fn view(&self, name: &str) -> Result<View> {
        let row = self.row(name)?;
        let entry = self.entry(row)?;
        self.view_of(row, &entry).map_err(|e| self.locate(e, name))
    }

    /// The stored bytes of an entry, neither decompressed nor checked.
    pub fn read_stored(&self, name: &str) -> Result<Vec<u8>> {
        let entry = self.entry_of(name)?;
        self.read_bytes(entry.data_offset, entry.disk_size).map_err(|e| self.locate(e, name))
    }

    /// An entry that must be a JSON object. Errors name the rule that asks for it.
    pub fn read_json(&self, name: &str, rule: &'static str) -> Result<Object> {
        let row = self.row(name)?;
        let limits = self.limits();
        json::check_length(self.entry(row)?.orig_size, "the entry", limits)
            .and_then(|()| self.read_at(row))
            .and_then(|text| json::parse_object(&text, "the entry", rule, limits))
            .map_err(|e| self.locate(e, name))
    }

    /// The frames of a seekable entry; `None` for any other.
    pub fn seek_frames(&self, name: &str) -> Result<Option<Vec<SeekFrame>>> {
        let how = self.how_stored(&self.entry_of(name)?);
        let how = how.map_err(|e| self.locate(e, name))?;
        Ok(how.table.as_ref().map(|table| table.frames.clone()))
    }

    /// What was done to an entry before it was compressed.
    pub fn filters(&self, name: &str) -> Result<Option<Filters>> {
        let how = self.filters_of(&self.entry_of(name)?);
        let how = how.map_err(|e| self.locate(e, name))?;
        Ok(how.map(|(filters, _)| filters))
    }

    /// Bytes of the file.
    pub(super) fn read_bytes(&self, offset: u64, length: u64) -> Result<Vec<u8>> {
        let mut data = zeroed(usize::try_from(length).unwrap_or(usize::MAX))?;
        source::read_into(&*self.source, offset, &mut data)?;
        Ok(data)
    }
}

fn parse_head(source: &dyn Source, limits: &Limits) -> Result<(Header, Index)> {
    let size = source.len();
    let mut head = zeroed(usize::try_from(size.min(FIRST_READ)).unwrap_or_default())?;
    source::read_into(source, 0, &mut head)?;
    let header = parse_header(&head, size, limits)?;
    let needed = usize::try_from(header.data_section_offset).unwrap_or(usize::MAX);
    if needed <= head.len() {
        head.truncate(needed);
    } else {
        head = read_head(source, &head, needed)?;
    }
    let index = Index::parse(head, &header, limits)?;
    Ok((header, index))
}

/// Reads what is missing of a head.
fn read_head(source: &dyn Source, start: &[u8], needed: usize) -> Result<Vec<u8>> {
    let mut head = zeroed(needed)?;
    if let Some((first, rest)) = head.split_at_mut_checked(start.len()) {
        first.copy_from_slice(start);
        read_pieces(source, start.len() as u64, rest)?;
    }
    Ok(head)
}

fn read_pieces(source: &dyn Source, offset: u64, out: &mut [u8]) -> Result<()> {
    let half = (out.len() / 2).next_multiple_of(4096);
    match out.split_at_mut_checked(half) {
        Some((first, second)) if half >= HEAD_PIECE / 2 => parallel::both(
            || read_pieces(source, offset, first),
            || read_pieces(source, offset.saturating_add(half as u64), second),
        ),
        _ => source::read_into(source, offset, out),
    }
}

/// Memory for content, without bytes in it.
pub(crate) fn reserve(size: usize) -> Result<Vec<u8>> {
    let mut data = Vec::new();
    data.try_reserve_exact(size).map_err(|e| {
        Error::new(Code::LimitExceeded, "", "too many bytes to be read at once: read ranges, or use a view")
            .with_found(size)
            .with_source(e)
    })?;
    Ok(data)
}

/// Memory for content, of zeros.
pub(super) fn zeroed(size: usize) -> Result<Vec<u8>> {
    if size < LARGE {
        return Ok(vec![0; size]);
    }
    let mut data = reserve(size)?;
    data.resize(size, 0);
    Ok(data)
}
