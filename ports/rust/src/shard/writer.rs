//! Writes containers (spec/shard.md, section 16).

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use super::IDENTITY_ENTRY;
use super::encode::encode;
use super::identity::{Identity, schema_digest};
use super::layout::{
    Codec, HEADER_SIZE, Header, INDEX_ENTRY_SIZE, IndexEntry, ROOM_FOR_NAME, VERSION, align_up, entry_flags, flags,
};
use super::options::{EntryOptions, Layout, StoredRun, WriterOptions, check_options};
use super::reader::ShardReader;
use super::seekable::append_table;
use super::source::{self, Source};
use crate::atomic::{NewFile, Spool, spool_beside};
use crate::hash::{self, sha256_hex, xxh64};
use crate::json::{self, Object};
use crate::registry::{Code, ContentType, Limits, Role};
use crate::{Error, Result};

/// Blocks that are written together.
const BUFFERED: usize = 1 << 20;
const COPIED: usize = 256 << 10;

/// Writes entries one by one.
///
/// The file appears under its name when [`finish`](ShardWriter::finish) returns. What was there before stays until then,
/// and for good if the writer is dropped.
pub struct ShardWriter {
    options: WriterOptions,
    file: NewFile,
    blocks: Blocks,
    /// The size of the head, if it is known before all entries are written.
    head_size: Option<u64>,
    /// Rows whose offsets count from the start of the data section.
    rows: Vec<IndexEntry>,
    names: Vec<String>,
    seen: HashSet<String>,
    digests: BTreeMap<String, String>,
    /// After an error while writing, what was written is not an entry.
    is_broken: bool,
}

impl fmt::Debug for ShardWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardWriter")
            .field("path", &self.file.path())
            .field("entries", &self.names.len())
            .finish_non_exhaustive()
    }
}

impl ShardWriter {
    /// Starts a file.
    pub fn create(path: impl AsRef<Path>, options: WriterOptions) -> Result<ShardWriter> {
        let path = path.as_ref();
        check_options(&options).map_err(|e| e.with_path(Some(path)))?;
        let mut writer = ShardWriter {
            file: NewFile::create(path)?,
            blocks: Blocks::default(),
            head_size: None,
            rows: Vec::new(),
            names: Vec::new(),
            seen: HashSet::new(),
            digests: BTreeMap::new(),
            is_broken: false,
            options,
        };
        writer.head_size = match &writer.options.layout {
            Layout::Moved => None,
            Layout::Declared(names) => {
                let identity = writer.options.identity.then_some(IDENTITY_ENTRY);
                let names = names.iter().map(String::as_str).chain(identity);
                Some(writer.head_for(names))
            }
            Layout::Reserved(most) => {
                let room = (INDEX_ENTRY_SIZE as u64).saturating_add(ROOM_FOR_NAME);
                let room = u64::from(*most).saturating_mul(room);
                let size = room.saturating_add(HEADER_SIZE as u64);
                Some(align_up(size, writer.options.alignment))
            }
        };
        if let Some(head) = writer.head_size {
            let at = writer.file.file().seek(SeekFrom::Start(head));
            at.map_err(|e| Error::io("cannot write", Some(path), e))?;
        }
        Ok(writer)
    }

    /// Writes an entry, compressed as the options of the file say.
    pub fn write(&mut self, name: &str, data: &[u8]) -> Result<()> {
        self.write_with(name, data, &EntryOptions::default())
    }

    /// Writes an entry with options of its own.
    pub fn write_with(&mut self, name: &str, data: &[u8], options: &EntryOptions) -> Result<()> {
        self.check_name(name)?;
        let codec = options.codec.unwrap_or(self.options.compression);
        let encoded = encode(data, codec, self.options.level, options).map_err(|e| self.locate(e, name))?;
        match encoded {
            Some((stored, flags)) => self.put(name, data, &stored, flags, options),
            None => self.put(name, data, data, 0, options),
        }
    }

    /// Writes an entry of another file in the form in which that file stores it. Its content is decoded and checked.
    pub fn copy(&mut self, from: &ShardReader, name: &str) -> Result<()> {
        self.check_name(name)?;
        let info = from.info(name)?;
        let data = from.read(name)?;
        let options = EntryOptions {
            content_type: info.row.content_type,
            tag_bits: info.row.tag_bits,
            ..EntryOptions::default()
        };
        if info.codec == Codec::None {
            return self.put(name, &data, &data, 0, &options);
        }
        let flags = info.codec.flags() | info.row.flags & entry_flags::FILTERED;
        self.put(name, &data, &from.read_stored(name)?, flags, &options)
    }

    /// Writes an entry from zstd frames that another file holds. They are copied, not decoded. Several of them make a
    /// seekable entry. Not for files with an identity, which needs the content.
    pub fn write_runs(&mut self, name: &str, runs: &[StoredRun<'_>], options: &EntryOptions) -> Result<()> {
        self.check_name(name)?;
        if self.options.identity || runs.is_empty() {
            let problem = "only a file without an identity can copy runs, and at least one";
            return Err(self.locate(Error::invalid(problem), name));
        }
        let mut flags = Codec::Zstd.flags();
        let mut head = Vec::new();
        if let Some(filters) = &options.filters {
            flags |= entry_flags::FILTERED;
            filters.append_description(&mut head)?;
        }
        let (mut size, mut checksum) = (0u64, 0);
        let mut frames = Vec::with_capacity(runs.len());
        for run in runs {
            frames.push(run.frame().map_err(|e| self.locate(e, name))?);
            let content = usize::try_from(run.content_size).unwrap_or(usize::MAX);
            checksum = hash::crc32c_combine(checksum, run.crc32c, content);
            size = size.saturating_add(run.content_size.into());
        }
        self.put_streamed(name, flags, options, |writer| {
            writer.append(&head)?;
            for run in runs {
                writer.copy_range(run.source, run.offset, run.stored_size.into())?;
            }
            if frames.len() > 1 {
                let mut table = Vec::new();
                append_table(&mut table, &frames)?;
                writer.append(&table)?;
            }
            Ok((size, checksum))
        })
    }

    /// Writes a raw entry of a known size from a reader, in constant memory. Not for files with an identity.
    pub fn write_stream(
        &mut self,
        name: &str,
        size: u64,
        content: &mut dyn Read,
        options: &EntryOptions,
    ) -> Result<()> {
        self.check_name(name)?;
        if self.options.identity {
            let problem = "a file with an identity needs whole entries";
            return Err(self.locate(Error::invalid(problem), name));
        }
        self.put_streamed(name, 0, options, |writer| {
            let mut buffer = vec![0; COPIED];
            let (mut left, mut checksum) = (size, 0);
            while left > 0 {
                let count = usize::try_from(left).unwrap_or(usize::MAX).min(COPIED);
                let piece = buffer.get_mut(..count).unwrap_or_default();
                content.read_exact(piece).map_err(|e| Error::io("cannot read the content of the entry", None, e))?;
                checksum = hash::crc32c_append(checksum, piece);
                writer.append(piece)?;
                left = left.saturating_sub(count as u64);
            }
            Ok((size, checksum))
        })
    }

    /// Writes the head, syncs the file and gives it its name.
    pub fn finish(mut self) -> Result<()> {
        let path = self.file.path().to_path_buf();
        self.write_rest().map_err(|e| e.with_path(Some(&path)))?;
        self.file.publish(self.options.sync)
    }

    fn locate(&self, error: Error, entry: &str) -> Error {
        error.with_path(Some(self.file.path())).with_entry(entry)
    }

    // --- entries

    /// Checks that an entry of this name can be written now.
    fn check_name(&self, name: &str) -> Result<()> {
        let check = || {
            if self.is_broken {
                return Err(Error::new(Code::Closed, "", "writing failed before"));
            }
            if name == IDENTITY_ENTRY && self.options.identity {
                return Err(Error::invalid("the writer adds this entry itself"));
            }
            self.check_new_name(name)
        };
        check().map_err(|e| self.locate(e, name))
    }

    fn check_new_name(&self, name: &str) -> Result<()> {
        if name.is_empty() || name.len() > usize::from(u16::MAX) || name.contains('\0') {
            return Err(Error::invalid("the name cannot be stored")
                .with_rule("S-NAM-6")
                .with_expected("1 to 65535 bytes without NUL"));
        }
        let number = self.names.len();
        let most = Limits::default().max_entries;
        if number as u64 >= most {
            return Err(Error::new(Code::LimitExceeded, "S-HDR-8", "too many entries")
                .with_expected(format_args!("at most {most}")));
        }
        if self.seen.contains(name) {
            let problem = "the entry is written twice";
            return Err(Error::new(Code::DuplicateName, "S-NAM-4", problem));
        }
        match &self.options.layout {
            Layout::Declared(names) if name != IDENTITY_ENTRY && names.get(number).is_none_or(|one| one != name) => {
                Err(Error::invalid("another entry was announced for this place"))
            }
            Layout::Reserved(most) if number as u64 >= u64::from(*most) => {
                Err(Error::new(Code::LimitExceeded, "", "more entries than the head was reserved for")
                    .with_expected(format_args!("at most {most}")))
            }
            _ => Ok(()),
        }
    }

    fn put(&mut self, name: &str, data: &[u8], stored: &[u8], flags: u16, options: &EntryOptions) -> Result<()> {
        self.put_streamed(name, flags, options, |writer| {
            writer.append(stored)?;
            Ok((data.len() as u64, hash::crc32c(data)))
        })?;
        if self.options.identity && name != IDENTITY_ENTRY {
            self.digests.insert(name.to_owned(), sha256_hex(data));
        }
        Ok(())
    }

    /// Adds an entry whose bytes the body appends; the body returns the size and the checksum of the content.
    fn put_streamed(
        &mut self,
        name: &str,
        flags: u16,
        options: &EntryOptions,
        body: impl FnOnce(&mut ShardWriter) -> Result<(u64, u32)>,
    ) -> Result<()> {
        self.is_broken = true; // until everything is written
        let start = match self.rows.is_empty() {
            true => 0,
            false => align_up(self.blocks.position, self.options.alignment),
        };
        let padding = start.saturating_sub(self.blocks.position);
        let padding = usize::try_from(padding).unwrap_or_default();
        let (size, checksum) = self
            .append([0; 64].get(..padding).unwrap_or_default())
            .and_then(|()| body(self))
            .map_err(|e| self.locate(e, name))?;
        self.rows.push(IndexEntry {
            name_hash: xxh64(name.as_bytes()),
            name_offset: 0,
            name_length: u16::try_from(name.len()).unwrap_or_default(),
            flags,
            data_offset: start,
            disk_size: self.blocks.position.saturating_sub(start),
            orig_size: size,
            crc32c: checksum,
            content_type: options.content_type,
            tag_bits: options.tag_bits,
        });
        self.names.push(name.to_owned());
        self.seen.insert(name.to_owned());
        self.is_broken = false;
        Ok(())
    }

    fn append(&mut self, data: &[u8]) -> Result<()> {
        let in_place = self.head_size.is_some().then(|| self.file.file());
        self.blocks
            .append(data, in_place, self.file.path())
            .map_err(|e| Error::io("cannot write", Some(self.file.path()), e))
    }

    fn copy_range(&mut self, source: &dyn Source, mut offset: u64, size: u64) -> Result<()> {
        let end = offset.saturating_add(size);
        let mut buffer = vec![0; COPIED];
        while offset < end {
            let left = usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX);
            let piece = buffer.get_mut(..left.min(COPIED)).unwrap_or_default();
            source::read_into(source, offset, piece)?;
            self.append(piece)?;
            offset = offset.saturating_add(piece.len() as u64);
        }
        Ok(())
    }

    // --- the head

    /// Whether each name has a NUL behind it (S-NAM-7).
    fn terminator(&self) -> usize {
        usize::from(self.options.role != Role::WSHARD)
    }

    fn head_for<'a>(&self, names: impl Iterator<Item = &'a str>) -> u64 {
        let one = |name: &str| name.len().saturating_add(self.terminator());
        let size =
            names.fold(HEADER_SIZE, |size, name| size.saturating_add(INDEX_ENTRY_SIZE).saturating_add(one(name)));
        align_up(size as u64, self.options.alignment)
    }

    fn write_rest(&mut self) -> Result<()> {
        if self.is_broken {
            return Err(Error::new(Code::Closed, "", "writing failed before"));
        }
        let schema = match &self.options.schema {
            Some(schema) => schema_text(schema)?,
            None => String::new(),
        };
        if let Layout::Declared(names) = &self.options.layout
            && self.names.len() < names.len()
        {
            return Err(Error::invalid("not all announced entries were written")
                .with_expected(names.len())
                .with_found(self.names.len()));
        }
        if self.options.identity {
            self.write_identity()?;
        }
        let needed = self.head_for(self.names.iter().map(String::as_str));
        let head_size = self.head_size.unwrap_or(needed);
        if needed > head_size {
            return Err(Error::new(Code::LimitExceeded, "", "the names need more room than the head was reserved for")
                .with_expected(format_args!("at most {head_size} bytes"))
                .with_found(needed));
        }
        let index = self.rows.len().saturating_mul(INDEX_ENTRY_SIZE);
        let index_end = index.saturating_add(HEADER_SIZE) as u64;
        let table = head_size.saturating_sub(index_end);
        let most = Limits::default().max_string_table_bytes;
        if table > most {
            return Err(Error::new(
                Code::LimitExceeded,
                "S-HDR-12",
                "the names, or the room that is reserved for them, are too large",
            )
            .with_expected(format_args!("at most {most} bytes"))
            .with_found(table));
        }
        self.append(schema.as_bytes())?;
        let head = self.head(head_size, index_end, schema.len() as u64);
        self.write_file(&head).map_err(|e| Error::io("cannot write", Some(self.file.path()), e))
    }

    fn write_identity(&mut self) -> Result<()> {
        let identity = Identity {
            entries: std::mem::take(&mut self.digests),
            role: self.options.role,
            schema: schema_digest(self.options.schema.as_ref())?,
            version: 2,
        };
        let options = EntryOptions { content_type: ContentType::JSON, ..EntryOptions::default() };
        let text = identity.text();
        self.check_new_name(IDENTITY_ENTRY)?;
        self.put(IDENTITY_ENTRY, text.as_bytes(), text.as_bytes(), 0, &options)
    }

    /// Header, index and names, and zeros up to the data.
    fn head(&self, head_size: u64, index_end: u64, schema_size: u64) -> Vec<u8> {
        let total_file_size = head_size.saturating_add(self.blocks.position);
        let has_schema = self.options.schema.is_some();
        let has_types = self.rows.iter().any(|row| row.content_type.0 != 0);
        let is_reserved = matches!(self.options.layout, Layout::Reserved(_));
        let set = |flag, is_set| if is_set { flag } else { 0 };
        let header = Header {
            version: VERSION,
            role: self.options.role,
            flags: flags::LITTLE_ENDIAN
                | flags::CHECKSUMS
                | set(flags::SCHEMA, has_schema)
                | set(flags::RESERVED_HEAD, is_reserved)
                | set(flags::CONTENT_TYPES, has_types),
            alignment: self.options.alignment,
            compression_default: self.options.compression.number(),
            index_entry_size: INDEX_ENTRY_SIZE as u16,
            entry_count: u32::try_from(self.rows.len()).unwrap_or_default(),
            string_table_offset: index_end,
            data_section_offset: head_size,
            schema_offset: match has_schema {
                true => total_file_size.saturating_sub(schema_size),
                false => 0,
            },
            total_file_size,
        };
        let mut head = Vec::with_capacity(usize::try_from(head_size).unwrap_or_default());
        head.extend(header.pack());
        let mut name_offset = 0u32; // the string table has at most 100 MiB
        for row in &self.rows {
            let row = IndexEntry { name_offset, data_offset: row.data_offset.saturating_add(head_size), ..*row };
            head.extend(row.pack());
            let size = usize::from(row.name_length).saturating_add(self.terminator());
            name_offset = name_offset.saturating_add(u32::try_from(size).unwrap_or_default());
        }
        for name in &self.names {
            head.extend(name.as_bytes());
            head.extend(std::iter::repeat_n(0, self.terminator()));
        }
        head.resize(usize::try_from(head_size).unwrap_or_default(), 0);
        head
    }

    /// Writes what is not in the file yet.
    fn write_file(&mut self, head: &[u8]) -> io::Result<()> {
        let mut file = self.file.file();
        if self.head_size.is_some() {
            self.blocks.flush(file)?;
            file.seek(SeekFrom::Start(0))?;
            file.write_all(head)?;
        } else {
            file.write_all(head)?;
            if let Some(spool) = &self.blocks.spool {
                let mut spooled = &spool.file;
                spooled.seek(SeekFrom::Start(0))?;
                io::copy(&mut spooled, &mut file)?;
            }
            file.write_all(&self.blocks.buffer)?;
        }
        // An empty last block may lie behind the last byte that was written.
        let size = self.blocks.position.saturating_add(head.len() as u64);
        file.set_len(size)
    }
}

/// The data section as far as it is written: in the file, in a spool or in memory.
#[derive(Default)]
struct Blocks {
    buffer: Vec<u8>,
    /// Bytes that do not fit in the buffer and cannot be written in place.
    spool: Option<Spool>,
    /// The size of all blocks.
    position: u64,
}

impl Blocks {
    fn append(&mut self, data: &[u8], in_place: Option<&File>, path: &Path) -> io::Result<()> {
        self.position = self.position.saturating_add(data.len() as u64);
        if self.buffer.len().saturating_add(data.len()) <= BUFFERED {
            self.buffer.extend_from_slice(data);
            return Ok(());
        }
        if in_place.is_none() && self.spool.is_none() {
            self.spool = Some(spool_beside(path)?);
        }
        let spool = self.spool.as_ref().map(|spool| &spool.file);
        if let Some(mut target) = in_place.or(spool) {
            target.write_all(&self.buffer)?;
            self.buffer.clear();
            target.write_all(data)?;
        }
        Ok(())
    }

    fn flush(&mut self, mut file: &File) -> io::Result<()> {
        file.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}

/// The canonical text of a schema section, within the limits of readers.
fn schema_text(schema: &Object) -> Result<String> {
    let text = json::canonical(schema)?;
    let limits = Limits::default();
    json::parse_object(text.as_bytes(), "the schema section", "S-SCH-2", &limits)?;
    Ok(text)
}
