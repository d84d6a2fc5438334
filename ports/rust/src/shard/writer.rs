//! Writes containers.
#![allow(unused_variables, clippy::todo)]

use std::path::Path;

use super::{Codec, Filters, ShardReader, Source};
use crate::json::Object;
use crate::{ContentType, Result, Role};

/// How the head of a file is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Blocks are spooled, and follow the head when it is known. Gives the canonical bytes.
    #[default]
    Moved,
    /// All names are given first, in order. Blocks are written in place; the bytes are the same.
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
    /// Whether to sync the file to disk before it gets its name.
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
    /// The CRC-32C of its content before filters.
    pub crc32c: u32,
}

/// Writes entries one by one. The file appears under its name when [`finish`](ShardWriter::finish) returns. Dropping the
/// writer before leaves what was there.
pub struct ShardWriter {}

impl ShardWriter {
    /// Starts a file.
    pub fn create(path: impl AsRef<Path>, options: WriterOptions) -> Result<ShardWriter> {
        todo!()
    }
    /// Writes an entry, compressed as the options of the file say.
    pub fn write(&mut self, name: &str, data: &[u8]) -> Result<()> {
        todo!()
    }
    /// Writes an entry with options of its own.
    pub fn write_with(&mut self, name: &str, data: &[u8], options: &EntryOptions) -> Result<()> {
        todo!()
    }
    /// Writes an entry of another file in the form in which that file stores it.
    pub fn copy(&mut self, from: &ShardReader, name: &str) -> Result<()> {
        todo!()
    }
    /// Writes an entry from zstd frames that another file holds. Several of them make a seekable entry.
    pub fn write_runs(
        &mut self,
        name: &str,
        runs: &[StoredRun<'_>],
        options: &EntryOptions,
    ) -> Result<()> {
        todo!()
    }
    /// Writes a raw entry of a known size from a reader, in constant memory.
    pub fn write_stream(
        &mut self,
        name: &str,
        size: u64,
        content: &mut dyn std::io::Read,
        options: &EntryOptions,
    ) -> Result<()> {
        todo!()
    }
    /// Writes the head, syncs the file and gives it its name.
    pub fn finish(self) -> Result<()> {
        todo!()
    }
}
