//! Reads containers.
#![allow(unused_variables, clippy::todo)]

use std::path::Path;
use std::sync::Arc;

use super::{Codec, Filters, Header, Identity, IndexEntry, SeekFrame, Source, View};
use crate::json::Object;
use crate::{Limits, Result, Role, Warning};

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
        ReaderOptions {
            limits: Limits::default(),
            checksums: true,
        }
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

impl std::fmt::Debug for ShardReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardReader").field("path", &self.path()).finish_non_exhaustive()
    }
}

/// Gives the entries of a file by name. Any number of threads may use a reader.
pub struct ShardReader {
    source: Arc<dyn Source>,
}

impl ShardReader {
    /// Opens a file: reads its head and checks its structure.
    pub fn open(path: impl AsRef<Path>) -> Result<ShardReader> {
        todo!()
    }
    /// Opens a file with options.
    pub fn open_with(path: impl AsRef<Path>, options: ReaderOptions) -> Result<ShardReader> {
        todo!()
    }
    /// Reads a file that is in memory.
    pub fn from_bytes(data: impl Into<Arc<[u8]>>) -> Result<ShardReader> {
        todo!()
    }
    /// Reads from anything that reads at an offset.
    pub fn from_source(source: Arc<dyn Source>, options: ReaderOptions) -> Result<ShardReader> {
        todo!()
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
        todo!()
    }
    /// What the file is for.
    pub fn role(&self) -> Role {
        todo!()
    }
    /// What the file may ask for.
    pub fn limits(&self) -> &Limits {
        todo!()
    }
    /// The number of entries.
    pub fn len(&self) -> usize {
        todo!()
    }
    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// All names, in the order of the index.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|_| "")
    }
    /// The row of a name.
    pub fn find(&self, name: &str) -> Option<usize> {
        todo!()
    }
    /// Whether there is an entry of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.find(name).is_some()
    }
    /// What the index says about an entry.
    pub fn info(&self, name: &str) -> Result<EntryInfo<'_>> {
        todo!()
    }
    /// What the index says about the entry in a row.
    pub fn info_at(&self, row: usize) -> Result<EntryInfo<'_>> {
        todo!()
    }
    /// Checks that an entry can have the size that the index claims, before memory is made for it (S-DAT-4, S-CMP-1, S-CMP-2, S-CMP-8).
    pub fn check_size(&self, name: &str) -> Result<()> {
        todo!()
    }
    /// All bytes of an entry, decompressed and checked.
    pub fn read(&self, name: &str) -> Result<Vec<u8>> {
        todo!()
    }
    /// All bytes of the entry in a row.
    pub fn read_at(&self, row: usize) -> Result<Vec<u8>> {
        todo!()
    }
    /// Many entries, on several threads with the feature `rayon`.
    pub fn read_many(&self, names: &[&str]) -> Result<Vec<Vec<u8>>> {
        todo!()
    }
    /// Fills memory that has exactly the size of an entry.
    pub fn read_into(&self, name: &str, out: &mut [u8]) -> Result<()> {
        todo!()
    }
    /// The bytes of an entry from start to end.
    pub fn read_range(&self, name: &str, range: std::ops::Range<u64>) -> Result<Vec<u8>> {
        todo!()
    }
    /// Fills memory with the bytes of an entry from an offset on. Allocates nothing after the first calls of a thread.
    pub fn decode_window_into(&self, name: &str, start: u64, out: &mut [u8]) -> Result<()> {
        todo!()
    }
    /// A raw entry in place, without a copy where the file can be mapped.
    pub fn view(&self, name: &str) -> Result<View> {
        todo!()
    }
    /// The stored bytes of an entry, neither decompressed nor checked.
    pub fn read_stored(&self, name: &str) -> Result<Vec<u8>> {
        todo!()
    }
    /// An entry that must be a JSON object; errors name the rule.
    pub fn read_json(&self, name: &str, rule: &'static str) -> Result<Object> {
        todo!()
    }
    /// The frames of a seekable entry; `None` for any other.
    pub fn seek_frames(&self, name: &str) -> Result<Option<Vec<SeekFrame>>> {
        todo!()
    }
    /// What was done to an entry before it was compressed.
    pub fn filters(&self, name: &str) -> Result<Option<Filters>> {
        todo!()
    }
    /// The schema section, if the file has one.
    pub fn schema(&self) -> Result<Option<Object>> {
        todo!()
    }
    /// The rows of a manifest.
    pub fn manifest(&self) -> Result<Vec<Object>> {
        todo!()
    }
    /// The object of a manifest, whose list is under `files` or `chunks`.
    pub fn manifest_fields(&self) -> Result<Object> {
        todo!()
    }
    /// The path of a file that a manifest names (S-MAN-4).
    pub fn resolve_uri(&self, uri: &str) -> Result<std::path::PathBuf> {
        todo!()
    }
    /// Checks that every file that a manifest names is there, with its size and SHA-256 (S-MAN-5).
    pub fn verify_files(&self) -> Result<()> {
        todo!()
    }
    /// The identity of the content, of version 2.
    pub fn identity(&self) -> Result<Identity> {
        todo!()
    }
    /// Compares `meta/identity` with the file, and returns its version.
    pub fn verify_identity(&self) -> Result<u8> {
        todo!()
    }
    /// Reads and checks everything.
    pub fn verify(&self) -> Result<()> {
        todo!()
    }
    /// What a checking tool reports about a file that can be read.
    pub fn warnings(&self) -> Result<Vec<Warning>> {
        todo!()
    }
}
