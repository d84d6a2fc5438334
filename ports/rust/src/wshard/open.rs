//! Opens episodes, with the sidecars beside them (spec/wshard.md, sections 12 and 16).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::episode::{Episode, Extra, LabelLane, Origin};
use super::fields::{as_count, given, wrong};
use super::label::Label;
use super::manifest::open_chunks;
use super::names::{META_EDIT, META_IDENTITY, META_SIDECAR};
use super::route::open_file;
use crate::hash::{is_sha256_hex, sha256_hex};
use crate::json::{self, Object, Value};
use crate::shard::{ReaderOptions, ShardReader};
use crate::{Code, Error, Result, Role};

pub(crate) const SUFFIX: &str = ".wshard";

/// What to do about the sidecars beside an episode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sidecars {
    /// Read them; one that breaks a rule is left out, and [`Episode::warnings`] says why.
    #[default]
    Read,
    /// A sidecar that breaks a rule is an error.
    Strict,
    /// Read the episode's own file only.
    Ignore,
}

/// How to open an episode.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// How to read the files.
    pub reader: ReaderOptions,
    /// What to do about sidecars.
    pub sidecars: Sidecars,
}

/// How often a reader looks again that was overtaken by a writer (W-SID-7).
const ATTEMPTS: usize = 3;

/// Opens an episode: a file of its own, with the sidecars beside it, or the manifest of an episode in chunks. Arrays are not
/// read.
pub fn open(path: impl AsRef<Path>) -> Result<Episode> {
    open_with(path, &OpenOptions::default())
}

/// Opens an episode with options.
pub fn open_with(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Episode> {
    let path = path.as_ref();
    for _ in 1..ATTEMPTS {
        let found = open_once(path, options);
        let is_overtaken = match &found {
            Ok(ep) => ep.warnings.iter().any(|warning| was_overtaken(warning, path)),
            Err(error) => was_overtaken(error, path),
        };
        if !is_overtaken {
            return found;
        }
    }
    open_once(path, options)
}

/// Whether a writer may have replaced a file while it was opened.
fn was_overtaken(error: &Error, path: &Path) -> bool {
    let is_gone = || {
        let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
        source.is_some_and(|e| e.kind() == io::ErrorKind::NotFound) && error.path() != Some(path)
    };
    matches!(error.code(), Code::MissingFile | Code::ReferenceMismatch | Code::ChunkDiscontinuity | Code::DuplicateName)
        || is_gone()
}

fn open_once(path: &Path, options: &OpenOptions) -> Result<Episode> {
    let reader = Arc::new(ShardReader::open_with(path, options.reader.clone())?);
    let found =
        if reader.role() == Role::MANIFEST { open_chunks(&reader, &options.reader) } else { open_file(&reader, None) };
    let mut ep = found.map_err(|e| e.with_path(Some(path)))?;
    if options.sidecars != Sidecars::Ignore {
        attach_sidecars(&mut ep, path, options)?;
    }
    Ok(ep)
}

impl Episode {
    /// The episode in an open file, without sidecars.
    pub fn from_reader(reader: ShardReader) -> Result<Self> {
        let reader = Arc::new(reader);
        open_file(&reader, None).map_err(|e| e.with_path(reader.path()))
    }
}

impl Origin {
    /// The origin of an episode in several files.
    pub(crate) fn of_files(reader: Arc<ShardReader>, others: Vec<Arc<ShardReader>>) -> Self {
        let (episode, wshard, channels) = (Object::new(), Object::new(), Object::new());
        Self { reader, others, episode, wshard, channels, rows: BTreeMap::new() }
    }
}

/// What the index says about the content of each entry: its size and its checksum.
fn facts(reader: &ShardReader) -> BTreeMap<&str, (u64, u32)> {
    let facts = |name| reader.index_entry(name).map(|entry| (name, (entry.orig_size, entry.crc32c)));
    reader.names().filter_map(facts).collect()
}

/// A hash of what the index of a file says about its content: names, sizes and checksums, without `meta/identity`. Sidecars
/// and manifests name files by it.
pub fn fingerprint(reader: &ShardReader) -> Result<String> {
    let held = facts(reader).into_iter().filter(|(name, _)| *name != META_IDENTITY);
    let object: Object =
        held.map(|(name, (size, crc))| (name.to_owned(), Value::List(vec![size.into(), crc.into()]))).collect();
    Ok(sha256_hex(json::canonical(&object)?.as_bytes()))
}

// --- sidecars

/// The sidecars beside an episode, in the order in which they are read.
pub fn sidecar_files(path: &Path) -> Result<Vec<PathBuf>> {
    let mut folder = path.as_os_str().to_owned();
    folder.push(".lanes");
    let folder = PathBuf::from(folder);
    let entries = match fs::read_dir(&folder) {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        entries => entries.map_err(|e| Error::io("cannot list the sidecars", Some(&folder), e))?,
    };
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>();
    if let Ok(files) = &mut files {
        files.retain(|file| file.to_str().is_some_and(|name| name.ends_with(SUFFIX)));
        files.sort();
    }
    files.map_err(|e| Error::io("cannot list the sidecars", Some(&folder), e))
}

/// Which content of an episode a sidecar belongs to.
pub(crate) struct Base {
    episode_id: String,
    pub(crate) fingerprint: String,
    pub(crate) identity: Option<String>,
    length: u64,
}

impl Base {
    /// The contents that a sidecar fits: one, or two while its episode is being replaced (W-SID-1).
    pub(crate) fn read(reader: &ShardReader) -> Result<Vec<Self>> {
        if !reader.contains(META_SIDECAR) {
            return Err(Error::new(Code::BadMetadata, "W-SID-1", "not a sidecar: it has no meta/sidecar"));
        }
        let fields = reader.read_json(META_SIDECAR, "W-SID-1")?;
        if fields.get("v") != Some(&Value::Int(1)) {
            return Err(wrong("W-SID-1", "v", "1", fields.get("v")).with_entry(META_SIDECAR));
        }
        let bases = [fields.get("base").or(Some(&Value::Null)), given(&fields, "before")];
        let is_edit = reader.contains(META_EDIT);
        bases
            .into_iter()
            .flatten()
            .map(|base| Self::parse(base, is_edit).map_err(|e| e.with_entry(META_SIDECAR)))
            .collect()
    }

    fn parse(value: &Value, is_edit: bool) -> Result<Self> {
        let fields = value.as_object().ok_or_else(|| wrong("W-SID-1", "base", "an object", Some(value)))?;
        let bad = |field, expected| wrong("W-SID-1", field, expected, fields.get(field));
        let text = |field| fields.get(field).and_then(Value::as_str);
        let digest = |field| text(field).filter(|text| is_sha256_hex(text)).map(str::to_owned);
        let digits = "64 lower-case hex digits";
        let identity = match digest("identity") {
            None if is_edit && !fields.contains_key("identity") => None,
            found => Some(found.ok_or_else(|| bad("identity", digits))?),
        };
        Ok(Self {
            episode_id: text("episode_id").ok_or_else(|| bad("episode_id", "a string"))?.to_owned(),
            fingerprint: digest("fingerprint").ok_or_else(|| bad("fingerprint", digits))?,
            identity,
            length: fields
                .get("length_T")
                .and_then(as_count)
                .ok_or_else(|| bad("length_T", "an integer of 0 or more"))?,
        })
    }
}

/// Reads the sidecars beside an episode into it.
fn attach_sidecars(ep: &mut Episode, path: &Path, options: &OpenOptions) -> Result<()> {
    let files = sidecar_files(path)?;
    let Some(origin) = ep.origin.clone().filter(|_| !files.is_empty()) else {
        return Ok(());
    };
    let mut taken: BTreeSet<String> = origin.reader.names().map(str::to_owned).collect();
    taken.extend(origin.others.iter().flat_map(|chunk| chunk.names().map(str::to_owned)));
    let mut attacher =
        Attacher { fingerprint: fingerprint(&origin.reader)?, held: facts(&origin.reader), taken, used: Vec::new() };
    for file in files {
        if let Err(error) = attacher.attach(ep, &file, options) {
            let error = error.with_path(Some(&file));
            if options.sidecars == Sidecars::Strict {
                return Err(error);
            }
            ep.warnings.push(error);
        }
    }
    let others = origin.others.iter().cloned().chain(attacher.used).collect();
    ep.origin = Some(Arc::new(Origin { others, ..origin.shallow() }));
    Ok(())
}

impl Origin {
    fn shallow(&self) -> Self {
        let (episode, wshard, channels) = (self.episode.clone(), self.wshard.clone(), self.channels.clone());
        Self {
            reader: Arc::clone(&self.reader),
            others: Vec::new(),
            episode,
            wshard,
            channels,
            rows: self.rows.clone(),
        }
    }
}

struct Attacher<'a> {
    fingerprint: String,
    /// What the episode's own file holds.
    held: BTreeMap<&'a str, (u64, u32)>,
    /// The names of all blocks so far.
    taken: BTreeSet<String>,
    used: Vec<Arc<ShardReader>>,
}

impl Attacher<'_> {
    fn attach(&mut self, ep: &mut Episode, file: &Path, options: &OpenOptions) -> Result<()> {
        let reader = Arc::new(ShardReader::open_with(file, options.reader.clone())?);
        if reader.role() != Role::WSHARD {
            return Err(Error::new(Code::BadProfile, "W-ROL-1", "not a sidecar: it is not of role 5"));
        }
        if self.is_folded_in(&reader) {
            return Ok(());
        }
        let fits =
            |base: &Base| (&base.episode_id, base.length, &base.fingerprint) == (&ep.id, ep.length, &self.fingerprint);
        if !Base::read(&reader)?.iter().any(fits) {
            let problem = "this sidecar belongs to another episode, or to other content of it";
            return Err(Error::new(Code::ReferenceMismatch, "W-SID-2", problem).with_entry(META_SIDECAR));
        }
        if reader.contains(META_EDIT) {
            apply_edit(ep, &reader).map_err(|e| e.with_entry(META_EDIT))?;
        } else {
            self.adopt(ep, &reader)?;
        }
        self.used.push(reader);
        Ok(())
    }

    /// Whether the episode holds all that a sidecar adds (W-SID-6).
    fn is_folded_in(&self, sidecar: &ShardReader) -> bool {
        let added = facts(sidecar);
        let mut added = added.iter().filter(|(name, _)| !name.starts_with("meta/")).peekable();
        !sidecar.contains(META_EDIT)
            && added.peek().is_some()
            && added.all(|(name, facts)| self.held.get(name) == Some(facts))
    }

    /// Takes over the lanes of a sidecar (W-SID-3). A place that is taken makes an extra entry.
    fn adopt(&mut self, ep: &mut Episode, reader: &Arc<ShardReader>) -> Result<()> {
        let added = || reader.names().filter(|name| !name.starts_with("meta/"));
        if let Some(name) = added().find(|name| self.taken.contains(*name)) {
            let problem = "the sidecar holds a block that the episode has already";
            return Err(Error::new(Code::DuplicateName, "W-SID-3", problem).with_entry(name));
        }
        let side = open_file(reader, Some(ep))?;
        self.taken.extend(added().map(str::to_owned));
        for (lane, channel) in side.lanes {
            match ep.lanes.entry(lane) {
                Entry::Vacant(place) => drop(place.insert(channel)),
                Entry::Occupied(place) if place.key().is_of_steps() => {}
                Entry::Occupied(_) => {
                    let (name, data) = (channel.names.data.clone(), channel.data.clone());
                    let mut extra = Extra::of(data);
                    extra.channel = Some(channel);
                    ep.extras.insert(name, extra);
                }
            }
        }
        ep.residuals.extend(side.residuals);
        ep.labels.extend(side.labels);
        for (name, extra) in side.extras {
            ep.extras.entry(name).or_insert(extra);
        }
        Ok(())
    }
}

/// Changes metadata and labels as a sidecar says; null removes (W-SID-5).
fn apply_edit(ep: &mut Episode, reader: &ShardReader) -> Result<()> {
    let fields = reader.read_json(META_EDIT, "W-SID-5")?;
    if fields.get("v") != Some(&Value::Int(1)) {
        return Err(wrong("W-SID-5", "v", "1", fields.get("v")));
    }
    let object = |field| match fields.get(field) {
        None => Ok(Object::new()),
        Some(Value::Object(found)) => Ok(found.clone()),
        other => Err(wrong("W-SID-5", field, "an object", other)),
    };
    let labels = object("labels")?.into_iter().map(|(name, value)| match value {
        Value::Null => Ok((name, None)),
        Value::Object(label) => Label::parse(&label).map(|label| (name, Some(label))),
        other => Err(wrong("W-SID-5", &name, "an object", Some(&other))),
    });
    let labels = labels.collect::<Result<Vec<_>>>()?;
    for (key, value) in object("metadata")? {
        if value.is_null() {
            ep.metadata.remove(&key);
        } else {
            ep.metadata.insert(key, value);
        }
    }
    for (name, label) in labels {
        match label {
            None => ep.labels.remove(&name),
            Some(label) => ep.labels.insert(name, LabelLane::Here(label)),
        };
    }
    Ok(())
}
