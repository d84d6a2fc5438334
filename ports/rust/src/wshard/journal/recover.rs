//! Saves what a recording holds that was not finished.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::episode::step_range;
use super::files::{ChunkNames, PARTIAL, RecordingFiles, exists, size_of, with};
use super::read::Journal;
use crate::json::Object;
use crate::shard::{ShardReader, Source};
use crate::wshard::episode::Episode;
use crate::wshard::manifest::{Chunk, ChunkManifest};
use crate::wshard::open::{OpenOptions, Sidecars, open_with};
use crate::wshard::save::{SaveOptions, lock, refuse_sidecars, write_file};
use crate::{Code, Error, Result};

/// What was recovered from a recording that was not finished.
#[derive(Debug, Default)]
pub struct Recovery {
    /// The journal, or the last one.
    pub journal: PathBuf,
    /// The name of the episode.
    pub episode_id: String,
    /// The complete steps that were recovered.
    pub steps: u64,
    /// The bytes of journals in complete frames.
    pub read_bytes: u64,
    /// The bytes after them.
    pub lost_bytes: u64,
    /// The rule that the first bad frame breaks; `None` if all frames are complete.
    pub reason: Option<Error>,
    /// The entries that were dropped, by block, because other channels end earlier.
    pub cut: BTreeMap<String, u64>,
    /// Whether the recorder had ended the recording.
    pub is_finished: bool,
    /// Where the episode was saved; the manifest if it is in chunks.
    pub out: PathBuf,
    /// The chunks of a recording in several files, also those that were finished before.
    pub chunks: Vec<PathBuf>,
    /// The steps that are lost between others that were recovered.
    pub lost_steps: u64,
}

impl Recovery {
    /// Adds what a journal holds that was not recovered.
    fn add_losses(&mut self, journal: &mut Journal) {
        self.is_finished = journal.is_finished();
        self.read_bytes = self.read_bytes.saturating_add(journal.read_bytes());
        self.lost_bytes = self.lost_bytes.saturating_add(journal.lost_bytes());
        self.reason = self.reason.take().or(journal.reason.take());
        for (block, count) in journal.cut() {
            let place = self.cut.entry(block).or_default();
            *place = place.saturating_add(count);
        }
    }
}

/// An episode that may still be recorded, as far as it is in its journal.
#[derive(Debug)]
pub struct PartialEpisode {
    /// The complete steps so far. Its channels read the journal.
    pub episode: Episode,
    /// What the journal holds, and what of it is not in the episode.
    pub state: Recovery,
}

/// Opens the journal of a recording, which may still go on. The path is the journal, or the name that the episode is recorded
/// for.
pub fn open_partial(path: impl AsRef<Path>) -> Result<PartialEpisode> {
    let path = path.as_ref();
    let is_journal = path.to_string_lossy().ends_with(PARTIAL);
    let location = if is_journal { path.to_path_buf() } else { with(path, PARTIAL) };
    let journal = Journal::open(&location, false, false)?;
    PartialEpisode::of(journal).map_err(|e| e.with_path(Some(&location)))
}

impl PartialEpisode {
    /// Reads a journal from anything that reads at an offset.
    pub fn from_source(source: Arc<dyn Source>) -> Result<Self> {
        Self::of(Journal::parse(source, false, false)?)
    }

    fn of(mut journal: Journal) -> Result<Self> {
        let episode = journal.episode()?;
        let (episode_id, steps) = (episode.id.clone(), episode.length);
        let location = journal.path.clone().unwrap_or_default();
        let mut state = Recovery { episode_id, steps, journal: location, ..Recovery::default() };
        state.add_losses(&mut journal);
        Ok(Self { episode, state })
    }
}

/// Saves what a recording holds, up to its last complete frame. It never changes journals, and it may be called again.
///
/// The path is a journal, or the name that the episode was recorded for. `out` is where to save the episode; by default that
/// name, which must be free. A recording in several files keeps its finished chunks; the other journals become chunks beside
/// them, and the manifest then names all.
pub fn recover(path: impl AsRef<Path>, out: Option<&Path>) -> Result<Recovery> {
    recover_with(path.as_ref(), out, true)
}

/// `recover`, with or without syncing to disk.
#[doc(hidden)]
pub fn recover_with(path: &Path, out: Option<&Path>, sync: bool) -> Result<Recovery> {
    let files = RecordingFiles::of(path);
    let options = SaveOptions { sync, ..SaveOptions::default() };
    if files.is_rolled() {
        return ChunkRecovery::new(files, out, options).run();
    }
    let location = files.journal(0);
    let target = out.unwrap_or(&files.path);
    if out.is_none() && exists(target) {
        let problem = "an episode with this name exists; say where to save the recording";
        return Err(Error::invalid(problem).with_path(Some(target)));
    }
    if matches!((target.canonicalize(), location.canonicalize()), (Ok(a), Ok(b)) if a == b) {
        return Err(Error::invalid("cannot save over the journal itself").with_path(Some(target)));
    }
    let mut journal = Journal::open(&location, true, false)?;
    let episode = journal.episode().map_err(|e| e.with_path(Some(&location)))?;
    save_over(target, &episode, &options)?;
    let mut found = Recovery {
        episode_id: episode.id.clone(),
        steps: episode.length,
        out: target.to_path_buf(),
        journal: location,
        ..Recovery::default()
    };
    found.add_losses(&mut journal);
    Ok(found)
}

/// Saves the episode of a journal, also over another episode, whose lock it holds meanwhile (W-SID-7).
pub(crate) fn save_over(path: &Path, episode: &Episode, options: &SaveOptions) -> Result<()> {
    let folder = ChunkNames::of(path);
    fs::create_dir_all(folder.folder()).map_err(|e| Error::io("cannot write", Some(path), e))?;
    let _lock = lock(path)?;
    refuse_sidecars(path)?;
    write_file(path, episode, options).map_err(|e| e.with_path(Some(path)))
}

// --- a recording in several files

struct ChunkRecovery {
    files: RecordingFiles,
    names: ChunkNames,
    options: SaveOptions,
    manifest: Option<ChunkManifest>,
    found: Recovery,
    /// Counted as the recorder does, with steps that are lost.
    next_step: u64,
}

impl ChunkRecovery {
    fn new(files: RecordingFiles, out: Option<&Path>, options: SaveOptions) -> Self {
        let names = out.map_or_else(|| files.names(), ChunkNames::of);
        let found = Recovery { journal: files.journal(0), out: names.manifest(), ..Recovery::default() };
        Self { files, names, options, manifest: None, found, next_step: 0 }
    }

    fn run(mut self) -> Result<Recovery> {
        let is_elsewhere = self.names != self.files.names();
        if is_elsewhere {
            if let Some(path) = self.names.existing() {
                return Err(Error::invalid("an episode with this name exists").with_path(Some(&path)));
            }
            let folder = self.names.folder();
            fs::create_dir_all(folder).map_err(|e| Error::io("cannot write", Some(folder), e))?;
        }
        let listed = self.read_manifest()?;
        let (mut missing, mut is_new) = (None, is_elsewhere);
        for index in 0u64.. {
            let path = self.files.names().chunk(index);
            let known = usize::try_from(index).ok().and_then(|index| listed.get(index));
            if let Some(known) = known {
                // Also if it is missing, so that those after it keep their numbers.
                if !exists(&path) && missing.is_none() {
                    missing = Some(path.clone());
                }
                self.add_finished(&path, known.length, Some(known))?;
            } else if self.files.has_journal(index) {
                is_new = true;
                self.add_journal(index)?;
            } else if self.files.has_chunk(index) {
                is_new = true;
                let length = self.adopt(&path, index, None)?;
                self.add_finished(&path, length, None)?;
            } else {
                break;
            }
        }
        if let Some(missing) = missing {
            let problem = "a finished chunk of the recording is missing; the journals were saved as chunks";
            return Err(Error::new(Code::MissingFile, "W-CHK-7", problem).with_path(Some(&missing)));
        }
        let Some(manifest) = self.manifest.filter(|manifest| !manifest.chunks.is_empty()) else {
            let problem = "nothing can be recovered: the journal has no complete start";
            return Err(Error::invalid(problem).with_rule("J-1").with_path(Some(&self.found.journal)));
        };
        if is_new {
            manifest.write(&self.names.manifest(), self.options.sync)?;
        }
        (self.found.episode_id, self.found.steps) = (manifest.episode_id, manifest.total_timesteps);
        Ok(self.found)
    }

    /// The chunks that are named already.
    fn read_manifest(&mut self) -> Result<Vec<Chunk>> {
        let path = self.files.names().manifest();
        if !exists(&path) {
            return Ok(Vec::new());
        }
        let known = ChunkManifest::read(&ShardReader::open(&path)?).map_err(|e| e.with_path(Some(&path)))?;
        self.begin(&known.episode_id, &known.env_id, &known.metadata.unwrap_or_default())?;
        Ok(known.chunks)
    }

    /// Takes note of the recording that one of the files belongs to, and of its metadata.
    fn begin(&mut self, episode_id: &str, env_id: &str, metadata: &Object) -> Result<()> {
        let manifest = self.manifest.get_or_insert_with(|| ChunkManifest::new(episode_id, env_id));
        if manifest.episode_id != episode_id {
            let problem = Error::invalid("the files belong to two recordings").with_path(Some(&self.found.journal));
            return Err(problem.with_expected(&manifest.episode_id).with_found(episode_id));
        }
        manifest.add_metadata(metadata);
        Ok(())
    }

    fn add_finished(&mut self, path: &Path, length: u64, known: Option<&Chunk>) -> Result<()> {
        self.next_step = self.next_step.saturating_add(length);
        self.add(path, length, known)
    }

    /// Checks a finished chunk that the manifest does not name yet, and gives its steps.
    fn adopt(&mut self, path: &Path, index: u64, steps: Option<u64>) -> Result<u64> {
        let chunk = open_with(path, &OpenOptions { sidecars: Sidecars::Ignore, ..OpenOptions::default() })?;
        if chunk.chunk_index != Some(index) || steps.is_some_and(|steps| steps != chunk.length) {
            let problem = "a file that is not this chunk of the recording is in the way; move it away";
            return Err(Error::invalid(problem).with_path(Some(path)));
        }
        ShardReader::open(path)?.verify()?;
        self.begin(&chunk.id, &chunk.env_id, &chunk.metadata)?;
        Ok(chunk.length)
    }

    fn add_journal(&mut self, index: u64) -> Result<()> {
        let location = self.files.journal(index);
        self.found.journal.clone_from(&location);
        let mut journal = match Journal::open(&location, true, false) {
            Ok(journal) => journal,
            Err(error) if error.rule().is_empty() => return Err(error), // the disk failed, not the content
            Err(error) => {
                self.found.lost_bytes = self.found.lost_bytes.saturating_add(size_of(&location));
                self.found.reason.get_or_insert(error);
                self.found.is_finished = false;
                return Ok(());
            }
        };
        // Not a start and nothing more.
        if index == 0 || journal.kept().values().any(|count| *count > 0) {
            self.save(&journal).map_err(|e| e.with_path(Some(&location)))?;
        }
        self.found.add_losses(&mut journal);
        Ok(())
    }

    fn save(&mut self, journal: &Journal) -> Result<()> {
        let lost = journal.first_step.saturating_sub(self.next_step);
        self.found.lost_steps = self.found.lost_steps.saturating_add(lost);
        let before = self.manifest.as_ref();
        let (start, index) = before.map_or((0, 0), |manifest| (manifest.total_timesteps, manifest.chunks.len() as u64));
        let mut ep = journal.episode_from(start)?;
        self.next_step = journal.first_step.saturating_add(ep.length);
        self.begin(&ep.id, &ep.env_id, &Object::new())?;
        // Also if the journal does not say that another follows: the recorder may have died just then.
        (ep.chunk_index, ep.timestep_range) = (Some(index), step_range(start, ep.length));
        let path = self.names.chunk(index);
        if exists(&path) {
            self.adopt(&path, index, Some(ep.length))?;
        } else {
            write_file(&path, &ep, &self.options)?;
            self.begin(&ep.id, &ep.env_id, &ep.metadata)?;
        }
        self.add(&path, ep.length, None)
    }

    /// Names a chunk in the manifest, under its name there. `known` is what an earlier manifest says about it.
    fn add(&mut self, path: &Path, length: u64, known: Option<&Chunk>) -> Result<()> {
        let Some(manifest) = &mut self.manifest else {
            return Ok(());
        };
        let target = self.names.chunk(manifest.chunks.len() as u64);
        if path != target && exists(path) {
            let copied = fs::hard_link(path, &target).or_else(|_| fs::copy(path, &target).map(drop));
            copied.map_err(|e| Error::io("cannot copy", Some(&target), e))?;
        }
        manifest.add_chunk(&target, length, known)?;
        self.found.chunks.push(target);
        Ok(())
    }
}
