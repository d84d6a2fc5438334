//! Writes episodes (spec/wshard.md, sections 14 and 15).

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use super::block::Block;
use super::episode::Episode;
use super::names::META_IDENTITY;
use super::open::{fingerprint, sidecar_files};
use super::plan::{Entry, Plan};
use crate::shard::{Codec, EntryOptions, Layout, ShardReader, ShardWriter, WriterOptions};
use crate::{Error, Result, Role};

/// How to store an episode. The default stores new blocks raw, in the canonical form, and blocks of a loaded file as that
/// file has them.
#[derive(Clone, Debug)]
pub struct SaveOptions {
    /// How blocks are compressed. Texts, and pictures that are encoded already, stay raw.
    pub compression: Codec,
    /// The level of zstd.
    pub level: i32,
    /// Whether to add `meta/identity`. A loaded episode that has one keeps it.
    pub identity: bool,
    /// Whether to sync the file to disk.
    pub sync: bool,
}

impl Default for SaveOptions {
    fn default() -> Self {
        Self { compression: Codec::None, level: 3, identity: false, sync: true }
    }
}

/// Writes an episode as one file. The file appears under its name when it is complete; until then, and after an error, what
/// was there before stays. An episode that has sidecars is not replaced: they belong to what it holds now.
pub fn save(path: impl AsRef<Path>, ep: &Episode, options: &SaveOptions) -> Result<()> {
    let path = path.as_ref();
    let _lock = lock(path)?;
    refuse_sidecars(path)?;
    check_current(path, ep)?;
    write_file(path, ep, options).map_err(|e| e.with_path(Some(path)))
}

/// The lock of an episode that is being replaced (W-SID-7); `None` if there is none yet.
pub(crate) fn lock(path: &Path) -> Result<Option<File>> {
    loop {
        let file = match File::open(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(|e| Error::io("cannot open", Some(path), e))?,
        };
        file.lock().map_err(|e| Error::io("cannot lock", Some(path), e))?;
        if is_still(&file, path) {
            return Ok(Some(file));
        }
    }
}

/// Whether a name still refers to an open file.
#[cfg(unix)]
pub(crate) fn is_still(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |status: io::Result<std::fs::Metadata>| status.ok().map(|status| (status.dev(), status.ino()));
    id(file.metadata()) == id(std::fs::metadata(path))
}

/// Whether a name still refers to an open file.
#[cfg(not(unix))]
pub(crate) fn is_still(_: &File, path: &Path) -> bool {
    path.exists() // a file that is open cannot be replaced there
}

pub(crate) fn refuse_sidecars(path: &Path) -> Result<()> {
    if sidecar_files(path)?.is_empty() {
        return Ok(());
    }
    let problem = "the episode has sidecars, which belong to what it holds now: remove them, or save elsewhere";
    Err(Error::invalid(problem).with_path(Some(path)))
}

/// Refuses to save an episode over the file that it was loaded from if another process has changed that file: the change
/// would be undone.
fn check_current(path: &Path, ep: &Episode) -> Result<()> {
    let Some(origin) = &ep.origin else {
        return Ok(());
    };
    let is_own = |own: &Path| matches!((own.canonicalize(), path.canonicalize()), (Ok(own), Ok(path)) if own == path);
    if origin.reader.path().is_some_and(is_own)
        && fingerprint(&ShardReader::open(path)?)? != fingerprint(&origin.reader)?
    {
        let problem = "the file has changed since the episode was opened: open it again, or save under another name";
        return Err(Error::invalid(problem).with_path(Some(path)));
    }
    Ok(())
}

/// Writes an episode under a name, and looks at no other file.
pub(crate) fn write_file(path: &Path, ep: &Episode, options: &SaveOptions) -> Result<()> {
    let entries = Plan::entries(ep)?;
    let reader = ep.origin.as_ref().map(|origin| &origin.reader);
    let origin = reader.filter(|reader| reader.role() == Role::WSHARD);
    let mut given = WriterOptions {
        role: Role::WSHARD,
        alignment: reader.map_or(64, |reader| reader.header().alignment),
        compression: options.compression,
        level: options.level,
        layout: Layout::Declared(entries.iter().map(|entry| entry.name.clone()).collect()),
        identity: options.identity,
        sync: options.sync,
        ..WriterOptions::default()
    };
    if let Some(origin) = origin {
        given.identity |= origin.contains(META_IDENTITY);
        given.schema = origin.schema().ok().flatten(); // one that cannot be parsed is not kept
        if options.compression == Codec::None {
            given.compression = match origin.header().compression_default {
                1 => Codec::Zstd,
                2 => Codec::Lz4,
                _ => Codec::None,
            };
        }
    }
    let mut writer = ShardWriter::create(path, given)?;
    for entry in entries {
        write_entry(&mut writer, &entry, origin, options).map_err(|e| e.with_entry(&entry.name))?;
    }
    writer.finish()
}

fn write_entry(
    writer: &mut ShardWriter,
    entry: &Entry,
    origin: Option<&Arc<ShardReader>>,
    options: &SaveOptions,
) -> Result<()> {
    let codec = if entry.is_compressible { options.compression } else { Codec::None };
    let form = EntryOptions {
        content_type: entry.content_type,
        tag_bits: entry.tag_bits,
        codec: Some(codec),
        ..EntryOptions::default()
    };
    match &entry.content {
        Block::Entry(reader, name, _) if options.compression == Codec::None && *name == entry.name => {
            match origin.filter(|origin| Arc::ptr_eq(origin, reader)) {
                Some(origin) => writer.copy(origin, name),
                None => writer.write_with(&entry.name, &entry.content.read()?, &form),
            }
        }
        Block::Runs(runs, size) => {
            if runs.write_stored(writer, &entry.name, *size)? {
                return Ok(());
            }
            let mut content = BlockReader { block: &entry.content, at: 0, piece: Vec::new().into_iter() };
            writer.write_stream(&entry.name, *size, &mut content, &form)
        }
        content => writer.write_with(&entry.name, &content.read()?, &form),
    }
}

/// Reads a block from its start, in little memory.
struct BlockReader<'a> {
    block: &'a Block,
    at: u64,
    piece: std::vec::IntoIter<u8>,
}

const PIECE: u64 = 1 << 20;

impl Read for BlockReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.piece.as_slice().is_empty() {
            let end = self.at.saturating_add(PIECE).min(self.block.size());
            let piece = self.block.read_range(self.at, end).map_err(io::Error::other)?;
            (self.at, self.piece) = (end, piece.into_owned().into_iter());
        }
        let mut rest = self.piece.as_slice();
        let count = rest.read(out)?;
        if let Some(skipped) = count.checked_sub(1) {
            self.piece.nth(skipped);
        }
        Ok(count)
    }
}
