//! How files and entries are written.

use super::filters::Filters;
use super::layout::{Codec, is_alignment};
use super::schema::check_schema;
use super::seekable::SeekFrame;
use super::source::{self, Source};
use crate::json::Object;
use crate::registry::{ContentType, Limits, Role};
use crate::{Error, Result};

/// How the head of a file is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Blocks are spooled, and follow the head when it is known. Gives the canonical bytes.
    #[default]
    Moved,
    /// The names of all entries, in order, without `meta/identity`. Blocks are written in place; the bytes are the same.
    Declared(Vec<String>),
    /// Room for at most so many entries, of which `meta/identity` is one. Blocks are written in place.
    Reserved(u32),
}

/// How to write a file.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// What the file is for.
    pub role: Role,
    /// 0, 16, 32 or 64: every entry starts on a multiple of it.
    pub alignment: u8,
    /// How entries are compressed that do not say it.
    pub compression: Codec,
    /// The level of zstd.
    pub level: i32,
    /// How the head is made.
    pub layout: Layout,
    /// Whether to add the entry `meta/identity` at the end.
    pub identity: bool,
    /// The schema section.
    pub schema: Option<Object>,
    /// Whether to sync the file to disk before it gets its name. Without it, a power failure can lose the file.
    pub sync: bool,
}

impl Default for WriterOptions {
    fn default() -> WriterOptions {
        WriterOptions {
            role: Role::UNKNOWN,
            alignment: 64,
            compression: Codec::None,
            level: 3,
            layout: Layout::Moved,
            identity: false,
            schema: None,
            sync: true,
        }
    }
}

/// How to write one entry.
#[derive(Clone, Debug, Default)]
pub struct EntryOptions {
    /// A hint about the content.
    pub content_type: ContentType,
    /// Bits of the schema's `tag_dictionary`.
    pub tag_bits: u16,
    /// Another codec than that of the file.
    pub codec: Option<Codec>,
    /// Makes a zstd entry seekable: frames of so many bytes, and a seek table.
    pub frame_bytes: Option<usize>,
    /// Applied to each frame before zstd.
    pub filters: Option<Filters>,
}

/// A part of an entry as another file stores it: one zstd frame with a size and a checksum.
pub struct StoredRun<'a> {
    /// The other file.
    pub source: &'a dyn Source,
    /// Where the frame starts.
    pub offset: u64,
    /// The size of the frame.
    pub stored_size: u32,
    /// The size of its content.
    pub content_size: u32,
    /// The CRC-32C of its content, as it was before filters.
    pub crc32c: u32,
}

impl StoredRun<'_> {
    /// The row of a seek table for this run, with the checksum at the end of the frame.
    pub(super) fn frame(&self) -> Result<SeekFrame> {
        let mut tail = [0; 4];
        let Some(at) = self.stored_size.checked_sub(4) else {
            return Err(Error::invalid("a run is too short for a zstd frame"));
        };
        let at = self.offset.saturating_add(at.into());
        source::read_into(self.source, at, &mut tail)?;
        Ok(SeekFrame {
            compressed_size: self.stored_size,
            decompressed_size: self.content_size,
            checksum: Some(u32::from_le_bytes(tail)),
        })
    }
}

/// Refuses options that no file can have.
pub(super) fn check_options(options: &WriterOptions) -> Result<()> {
    if !is_alignment(options.alignment) {
        return Err(Error::invalid("unknown alignment").with_expected("0, 16, 32 or 64").with_found(options.alignment));
    }
    if let Layout::Reserved(most) = options.layout
        && u64::from(most) > Limits::default().max_entries
    {
        return Err(Error::invalid("too many entries to reserve").with_found(most));
    }
    match &options.schema {
        Some(schema) => check_schema(schema).map_err(|e| Error::invalid("the schema section is wrong").with_source(e)),
        None => Ok(()),
    }
}
