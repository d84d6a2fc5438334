//! Writes episodes in chunks (spec/wshard.md, section 11).

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

use super::episode::Episode;
use super::journal::{ChunkNames, exists, step_range, with};
use super::manifest::ChunkManifest;
use super::names::check_id;
use super::save::{SaveOptions, lock, refuse_sidecars, write_file};
use crate::shard::ShardReader;
use crate::{Error, Result};

/// Writes an episode into a folder, in chunks of so many steps with a manifest, and gives the manifest's path. An episode of
/// the same id that is there is replaced in one step: its manifest.
pub fn save_chunked(folder: impl AsRef<Path>, ep: &Episode, steps: u64, options: &SaveOptions) -> Result<PathBuf> {
    let folder = folder.as_ref();
    check_name(&ep.id)?;
    if steps == 0 {
        return Err(Error::invalid("a chunk has at least one step"));
    }
    fs::create_dir_all(folder).map_err(|e| Error::io("cannot make the folder", Some(folder), e))?;
    let names = ChunkNames::of(&folder.join(format!("{}.wshard", ep.id)));
    let target = names.manifest();
    let _lock = lock(&target)?;
    refuse_sidecars(&target)?;
    let old = old_chunks(&target);
    let mut manifest = ChunkManifest::new(&ep.id, &ep.env_id);
    let count = ep.length.div_ceil(steps).max(1);
    let mut written = Written(Vec::new());
    for index in 0..count {
        let start = index.saturating_mul(steps);
        let mut part = ep.slice(start, start.saturating_add(steps).min(ep.length))?;
        if index.saturating_add(1) < count {
            drop_last(&mut part)?;
        }
        (part.chunk_index, part.total_chunks) = (Some(index), Some(count));
        part.timestep_range = step_range(start, part.length);
        let path = free_name(&names, index);
        write_file(&path, &part, options).map_err(|e| e.with_path(Some(&path)))?;
        written.0.push(path.clone());
        manifest.add_chunk(&path, part.length, None)?;
    }
    manifest.write(&target, options.sync)?; // the switch
    let kept = std::mem::take(&mut written.0);
    for file in old.iter().filter(|file| !kept.contains(file)) {
        fs::remove_file(file).map_err(|e| Error::io("cannot remove", Some(file), e))?;
    }
    Ok(target)
}

/// Chunks that go if their manifest does not come.
struct Written(Vec<PathBuf>);

impl Drop for Written {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

/// Refuses a name that a manifest cannot hold: a reader would not follow it (S-MAN-4).
fn check_name(id: &str) -> Result<()> {
    check_id(id)?;
    let scheme = id.split_once(':').map(|(scheme, _)| scheme);
    let is_scheme = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "+.-".contains(c))
    };
    if id.contains(['/', '\\', '\0']) || scheme.is_some_and(is_scheme) {
        let problem = Error::invalid("a manifest cannot name chunks of this name");
        return Err(problem.with_expected("a name without a slash and without 'scheme:' at its start"));
    }
    Ok(())
}

/// The name of a chunk; with digits of its own if the usual name is taken, because a manifest may name that file.
fn free_name(names: &ChunkNames, index: u64) -> PathBuf {
    let mut path = names.chunk(index);
    while exists(&path) {
        let digits = RandomState::new().hash_one(index) >> 16;
        let name = names.chunk(index).with_extension("");
        path = with(&name, &format!("-{digits:012x}.wshard"));
    }
    path
}

/// The chunks that a manifest names.
fn old_chunks(manifest: &Path) -> Vec<PathBuf> {
    let Ok(reader) = ShardReader::open(manifest) else {
        return Vec::new();
    };
    let chunks = ChunkManifest::read(&reader).map(|manifest| manifest.chunks).unwrap_or_default();
    chunks.iter().filter_map(|chunk| reader.resolve_uri(&chunk.uri).ok()).collect()
}

/// Removes the observation after the last step: only the last chunk has it.
fn drop_last(part: &mut Episode) -> Result<()> {
    for channel in part.lanes.values_mut() {
        if !channel.has_own_clock() && channel.length == part.length.saturating_add(1) {
            *channel = channel.window(0, part.length)?;
        }
    }
    Ok(())
}
