//! What becomes of journals: chunks of a recording, and what an earlier recording has left.

use std::path::PathBuf;

use super::files::{RecordingFiles, exists};
use super::read::Journal;
use super::recorder::{OnPartial, RecordOptions, SyncPolicy};
use super::recover::recover_with;
use super::writer::JournalWriter;
use crate::wshard::episode::Episode;
use crate::wshard::manifest::ChunkManifest;
use crate::wshard::save::{SaveOptions, write_file};
use crate::{Code, Error, Result};

/// Gives the episode of a journal that this process has recorded and ended to a function that saves it.
pub(crate) fn save_recorded(journal: &JournalWriter, save: impl FnOnce(&Episode) -> Result<()>) -> Result<Episode> {
    let read = Journal::open(&journal.path, false, true)?;
    if !read.has_end {
        let problem = "the journal has changed since it was written";
        return Err(Error::new(Code::BadMetadata, "J-2", problem).with_path(Some(&journal.path)));
    }
    let episode = read.episode()?;
    save(&episode)?;
    Ok(episode)
}

/// Turns full journals into chunks, one after the other. If the disk refuses, journals stay where they are, and the end of
/// the recording tries again.
#[derive(Debug)]
pub(crate) struct Finisher {
    files: RecordingFiles,
    sync: bool,
    manifest: ChunkManifest,
    unfinished: std::collections::VecDeque<JournalWriter>,
    has_failed: bool,
}

impl Finisher {
    pub(crate) fn new(files: RecordingFiles, options: &RecordOptions) -> Self {
        let manifest = ChunkManifest::new(&options.episode_id, &options.env_id);
        Self {
            files,
            sync: options.sync != SyncPolicy::Never,
            manifest,
            unfinished: Default::default(),
            has_failed: false,
        }
    }

    /// Takes full journals, and finishes what it can.
    pub(crate) fn take(&mut self, full: Vec<JournalWriter>) {
        self.unfinished.extend(full);
        while !self.unfinished.is_empty() && !self.has_failed {
            self.has_failed = self.finish_next().is_err();
        }
    }

    /// Writes the chunk of the first journal, then the manifest that names it, then removes the journal (J-9).
    fn finish_next(&mut self) -> Result<()> {
        let Some(journal) = self.unfinished.front_mut() else {
            return Ok(());
        };
        if self.sync {
            journal.sync()?; // copying may take a while
        }
        let names = self.files.names();
        let path = names.chunk(self.manifest.chunks.len() as u64);
        let options = SaveOptions { sync: self.sync, ..SaveOptions::default() };
        let episode = save_recorded(journal, |episode| write_file(&path, episode, &options))?;
        let mut manifest = self.manifest.clone();
        manifest.add_metadata(&episode.metadata);
        manifest.add_chunk(&path, episode.length, None)?;
        manifest.write(&names.manifest(), self.sync)?;
        self.manifest = manifest;
        self.unfinished.pop_front().map_or(Ok(()), JournalWriter::remove)
    }

    /// Finishes all chunks and the last ones, and gives the manifest.
    pub(crate) fn finish_all(&mut self, last: Vec<JournalWriter>) -> Result<PathBuf> {
        self.unfinished.extend(last);
        while !self.unfinished.is_empty() {
            self.finish_next()?;
        }
        Ok(self.files.names().manifest())
    }

    /// Deletes the recording.
    pub(crate) fn remove(&mut self, last: Vec<JournalWriter>) -> Result<()> {
        self.unfinished.extend(last);
        self.files.remove_chunks()?;
        std::mem::take(&mut self.unfinished).into_iter().try_for_each(JournalWriter::remove)
    }
}

impl RecordingFiles {
    /// Deletes everything except the first journal, in an order that is sound at any moment.
    pub(crate) fn remove_chunks(&self) -> Result<()> {
        let mut last = 0u64;
        while self.has_chunk(last) || exists(&self.journal(last.saturating_add(1))) {
            last = last.saturating_add(1);
        }
        let names = self.names();
        let journals = (1..=last).rev().map(|index| self.journal(index));
        let chunks = (0..=last).rev().map(|index| names.chunk(index));
        for path in journals.chain([names.manifest()]).chain(chunks).filter(|path| exists(path)) {
            std::fs::remove_file(&path).map_err(|e| Error::io("cannot remove", Some(&path), e))?;
        }
        Ok(())
    }

    /// Deals with what an earlier recording has left. The caller holds the lock of its first journal.
    pub(crate) fn resolve_earlier(&self, on_partial: OnPartial, sync: bool) -> Result<()> {
        let mut locks = Vec::new();
        let mut index = 1u64;
        while self.is_rolled() && (self.has_journal(index) || self.has_chunk(index)) {
            if self.has_journal(index) {
                locks.push(JournalWriter::open(&self.journal(index))?); // a recorder that has moved on holds the lock there
            }
            index = index.saturating_add(1);
        }
        if self.has_journal(0) || !locks.is_empty() {
            match on_partial {
                OnPartial::Refuse => {
                    let problem = "an unfinished recording of this episode exists; recover it, or set on_partial";
                    return Err(Error::invalid(problem).with_path(Some(&self.journal(0))));
                }
                OnPartial::Recover => self.recover_beside(sync)?,
                OnPartial::Discard => {}
            }
            if self.is_rolled() {
                self.remove_chunks()?;
            }
        }
        // Chunks of the new recording would mix with those of another episode.
        match self.names().existing() {
            Some(path) => {
                let problem = "a chunked episode with this name exists; record to another path, or delete its files";
                Err(Error::invalid(problem).with_path(Some(&path)))
            }
            None => Ok(()),
        }
    }

    /// Recovers a recording under a free name. Journals without a complete start are copied as they are.
    fn recover_beside(&self, sync: bool) -> Result<()> {
        let ending = self.path.extension().map_or_else(String::new, |ending| format!(".{}", ending.to_string_lossy()));
        let stem = self.path.with_extension("");
        let beside =
            (1u64..).map(|number| Self { path: super::files::with(&stem, &format!(".recovered-{number}{ending}")) });
        let is_free =
            |files: &Self| !exists(&files.path) && !exists(&files.journal(0)) && !exists(&files.names().manifest());
        let Some(beside) = beside.into_iter().find(is_free) else {
            return Ok(());
        };
        match recover_with(&self.journal(0), Some(&beside.path), sync) {
            Err(e) if !e.rule().is_empty() && e.code() != Code::MissingFile => {
                let mut index = 0u64;
                while self.has_journal(index) {
                    let (from, to) = (self.journal(index), beside.journal(index));
                    std::fs::copy(&from, &to).map_err(|e| Error::io("cannot copy", Some(&to), e))?;
                    index = index.saturating_add(1);
                }
                Ok(())
            }
            found => found.map(drop),
        }
    }
}
