//! The names of the files of a recording (spec/journal.md, section 9, and spec/wshard.md, section 11).

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::read::Journal;

pub(crate) const PARTIAL: &str = ".partial";
const SUFFIX: &str = ".wshard";

/// The names of the chunks and the manifest of an episode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChunkNames {
    folder: PathBuf,
    stem: String,
}

impl ChunkNames {
    pub(crate) fn of(path: &Path) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let stem = name.strip_suffix(SUFFIX).unwrap_or(&name).to_owned();
        Self { folder: path.parent().unwrap_or(Path::new("")).to_path_buf(), stem }
    }

    pub(crate) fn folder(&self) -> &Path {
        if self.folder.as_os_str().is_empty() { Path::new(".") } else { &self.folder }
    }

    pub(crate) fn chunk(&self, index: u64) -> PathBuf {
        self.folder.join(format!("{}_chunk_{index:04}{SUFFIX}", self.stem))
    }

    pub(crate) fn manifest(&self) -> PathBuf {
        self.folder.join(format!("{}_manifest{SUFFIX}", self.stem))
    }

    /// The manifest or the first chunk of an episode that has these names.
    pub(crate) fn existing(&self) -> Option<PathBuf> {
        [self.manifest(), self.chunk(0)].into_iter().find(|path| exists(path))
    }
}

/// The files of a recording, by the file that it was begun for.
///
/// The first journal has the name of the file that it becomes if it stays the only one. A chunk has a journal until the
/// manifest names it, and the next journal is opened before the one before it is finished. So the files that exist tell how
/// far the recording got.
#[derive(Clone, Debug)]
pub(crate) struct RecordingFiles {
    pub(crate) path: PathBuf,
}

impl RecordingFiles {
    /// The recording of a journal, a chunk, a manifest, or the file that it was begun for.
    pub(crate) fn of(path: &Path) -> Self {
        let text = path.to_string_lossy();
        let path = text.strip_suffix(PARTIAL).map_or_else(|| path.to_path_buf(), PathBuf::from);
        let names = ChunkNames::of(&path);
        if let Some(stem) = names.stem.strip_suffix("_manifest") {
            return Self::begun_for(&names.folder.join(stem));
        }
        let numbered = names.stem.rsplit_once("_chunk_").filter(|(_, number)| (4..=9).contains(&number.len()));
        let numbered = numbered.and_then(|(stem, number)| Some((stem, number.parse::<u64>().ok()?)));
        match numbered {
            Some((stem, index)) if is_chunk(&path, index) => Self::begun_for(&names.folder.join(stem)),
            _ => Self { path },
        }
    }

    /// The recording whose chunks have names that begin so.
    fn begun_for(stem: &Path) -> Self {
        if exists(&with(stem, PARTIAL)) {
            return Self { path: stem.to_path_buf() }; // the episode was to have a name without a suffix
        }
        Self { path: with(stem, SUFFIX) }
    }

    pub(crate) fn names(&self) -> ChunkNames {
        ChunkNames::of(&self.path)
    }

    /// The journal of a chunk.
    pub(crate) fn journal(&self, index: u64) -> PathBuf {
        with(&if index == 0 { self.path.clone() } else { self.names().chunk(index) }, PARTIAL)
    }

    /// Whether a chunk has a journal that is not empty.
    pub(crate) fn has_journal(&self, index: u64) -> bool {
        size_of(&self.journal(index)) > 0
    }

    pub(crate) fn has_chunk(&self, index: u64) -> bool {
        exists(&self.names().chunk(index))
    }

    /// Whether the recording has, or had, more than one journal. The second is opened before the first is finished, and
    /// finished after the first is removed.
    pub(crate) fn is_rolled(&self) -> bool {
        exists(&self.journal(1)) || (!self.has_journal(0) && self.has_chunk(0))
    }
}

/// Whether a file that is named like a chunk is one, or the journal of one.
fn is_chunk(path: &Path, index: u64) -> bool {
    let journal = with(path, PARTIAL);
    if index == 0 || size_of(&journal) == 0 {
        return exists(path);
    }
    // Reading the recording will report an error.
    Journal::open(&journal, false, true).map_or(true, |journal| journal.index > 0)
}

/// A path with something added to its name.
pub(crate) fn with(path: &Path, ending: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

pub(crate) fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// The size of a file; 0 also for a missing one.
pub(crate) fn size_of(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |status| status.len())
}
