//! Looks for everything that is wrong with an episode.

use std::path::Path;
use std::sync::Arc;

use super::channel::{Channel, Layout};
use super::episode::Episode;
use super::manifest::{Chunk, ChunkManifest, file_digest, other_file};
use super::names::{DONE, Lane, META_IDENTITY, META_SIDECAR, TERMINATED, TRUNCATED};
use super::open::{Base, OpenOptions, fingerprint, open_with};
use crate::shard::{Identity, ShardReader};
use crate::{Code, Error, Result, Role};

/// Something that a checking tool reports.
#[derive(Debug)]
pub struct Finding {
    /// What is wrong, and where.
    pub error: Error,
    /// Whether readers need not care.
    pub is_warning: bool,
}

/// Looks for everything that is wrong with an episode: reads all entries, in sidecars and chunks too, and compares hashes.
/// It returns what it found, in the order in which it looked.
pub fn check(path: impl AsRef<Path>) -> Vec<Finding> {
    let mut checker = Checker { found: Vec::new(), options: OpenOptions::default() };
    let path = path.as_ref();
    let checked = ShardReader::open(path).and_then(|reader| match reader.role() {
        Role::MANIFEST => checker.chunks(path, &reader),
        _ => checker.episode(path),
    });
    checker.note(checked);
    checker.found
}

struct Checker {
    found: Vec<Finding>,
    options: OpenOptions,
}

impl Checker {
    /// Keeps what is wrong; gives what is right.
    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.found.push(Finding { error, is_warning: false })).ok()
    }

    fn warn(&mut self, error: Error) {
        self.found.push(Finding { error, is_warning: true });
    }

    fn episode(&mut self, path: &Path) -> Result<()> {
        let mut ep = open_with(path, &self.options)?;
        for warning in std::mem::take(&mut ep.warnings) {
            self.note(Err::<(), _>(warning));
        }
        self.lanes(&ep);
        self.sidecars(&ep)
    }

    fn chunks(&mut self, path: &Path, reader: &ShardReader) -> Result<()> {
        let manifest = ChunkManifest::read(reader).map_err(|e| e.with_path(Some(path)))?;
        for chunk in &manifest.chunks {
            // Hashes come first: a file that is not the one that was written is not parsed.
            let opened =
                check_hash(reader, chunk).and_then(|()| manifest.open_chunk(reader, chunk, &self.options.reader));
            if let Some(ep) = self.note(opened) {
                self.lanes(&ep);
            }
        }
        match open_with(path, &self.options) {
            Ok(ep) => {
                for warning in ep.warnings {
                    self.note(Err::<(), _>(warning));
                }
            }
            Err(error) if self.found.is_empty() => return Err(error),
            Err(_) => {} // reported with its chunk
        }
        Ok(())
    }

    /// Reads every lane of an episode, and checks the rules that only tools check.
    fn lanes(&mut self, ep: &Episode) {
        for channel in ep.lanes.values() {
            self.channel(channel);
        }
        for residual in ep.residuals.values() {
            for part in [Some(&residual.values), residual.scales.as_ref()].into_iter().flatten() {
                self.note(part.data());
            }
        }
        for label in ep.labels.values() {
            self.note(label.read());
        }
        for extra in ep.extras.values() {
            self.note(extra.data());
        }
        self.note(ep.read_provenance());
        if let Some(times) = ep.lanes.get(&Lane::Timestamps) {
            self.order(times, times.values().map(Some));
        }
        let Some(origin) = &ep.origin else { return };
        self.note(
            check_union(&origin.reader, ep.length).map_err(|e| e.with_path(origin.reader.path()).with_entry(DONE)),
        );
        if origin.reader.contains(META_IDENTITY) {
            self.note(origin.reader.verify_identity());
        }
    }

    fn channel(&mut self, channel: &Channel) {
        if self.note(channel.data()).is_none() {
            return;
        }
        if channel.layout == Layout::Text {
            self.note(channel.strings());
        }
        if self.note(channel.check_pictures()) == Some(false) {
            let problem = "the pictures were not decoded, so their sizes were not checked";
            self.warn(channel.locate(Error::new(Code::MissingExtra, "W-VID-6", problem)));
        }
        self.order(channel, channel.timestamps());
    }

    /// Reports times that run backwards (W-TIM-4).
    fn order(&mut self, channel: &Channel, times: Result<Option<Vec<i64>>>) {
        if self.note(times).flatten().is_some_and(|times| !times.is_sorted()) {
            self.warn(channel.locate(Error::new(Code::BadValue, "W-TIM-4", "the times run backwards")));
        }
    }

    /// Compares the identities that sidecars state (W-SID-4).
    fn sidecars(&mut self, ep: &Episode) -> Result<()> {
        let Some(origin) = ep.origin.as_ref().filter(|origin| !origin.others.is_empty()) else {
            return Ok(());
        };
        let identity = origin.reader.identity()?;
        let own = fingerprint(&origin.reader)?;
        for sidecar in &origin.others {
            self.note(
                check_identity(sidecar, &own, &identity)
                    .map_err(|e| e.with_path(sidecar.path()).with_entry(META_SIDECAR)),
            );
        }
        Ok(())
    }
}

pub(crate) fn check_identity(sidecar: &ShardReader, own: &str, identity: &Identity) -> Result<()> {
    let bases = Base::read(sidecar)?;
    let stated = bases.iter().find(|base| base.fingerprint == own).and_then(|base| base.identity.as_ref());
    let first = Identity { version: 1, ..identity.clone() };
    match stated {
        Some(stated) if *stated != identity.digest() && *stated != first.digest() => {
            let problem = "the sidecar was made for an episode with other content";
            Err(Error::new(Code::IdentityMismatch, "W-SID-4", problem)
                .with_expected(stated)
                .with_found(identity.digest()))
        }
        _ => Ok(()),
    }
}

fn check_hash(reader: &ShardReader, chunk: &Chunk) -> Result<()> {
    let Some(stated) = &chunk.sha256 else {
        return Ok(());
    };
    let Ok(path) = reader.resolve_uri(&chunk.uri) else {
        return Ok(());
    };
    // Whoever opens it says what is wrong.
    let found = file_digest(&path).unwrap_or_else(|_| stated.clone());
    if found == *stated { Ok(()) } else { Err(other_file(chunk, "SHA-256").with_path(Some(&path))) }
}

/// Checks that `done` is the union of the other ends (W-END-3).
fn check_union(reader: &Arc<ShardReader>, steps: u64) -> Result<()> {
    let read = |name| reader.contains(name).then(|| reader.read(name).ok()).flatten();
    // Blocks of another size are absent, or were reported with their lanes.
    let ends: Vec<Vec<u8>> = [TERMINATED, TRUNCATED]
        .into_iter()
        .filter_map(read)
        .filter(|end| end.len() as u64 == steps && steps > 0)
        .collect();
    let Some(done) = read(DONE).filter(|done| !done.is_empty() && !ends.is_empty()) else {
        return Ok(());
    };
    if done.len() as u64 != steps {
        return Err(Error::new(Code::SizeMismatch, "W-END-1", "the block does not have one value for each step"));
    }
    for (t, done) in done.iter().enumerate() {
        let is_ended = ends.iter().any(|end| end.get(t).is_some_and(|flag| *flag != 0));
        if (*done != 0) != is_ended {
            return Err(Error::new(
                Code::BadValue,
                "W-END-3",
                format!("'done' is not the union of the other ends at step {t}"),
            ));
        }
    }
    Ok(())
}
