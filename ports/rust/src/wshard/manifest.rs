//! The manifest of an episode in chunks, and the chunks that it names (spec/wshard.md, section 11).

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use super::episode::{Episode, Origin, as_pair};
use super::fields::{as_count, given, wrong};
use super::join::join;
use super::journal::step_range;
use super::open::fingerprint;
use super::route::open_file;
use crate::hash::{Sha256Hex, is_sha256_hex};
use crate::json::{self, Object, Value};
use crate::shard::{EntryOptions, MANIFEST_ENTRY, ReaderOptions, ShardReader, ShardWriter, WriterOptions};
use crate::{Code, ContentType, Error, Result, Role};

/// What a manifest says about an episode in chunks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChunkManifest {
    /// The name of the episode.
    pub episode_id: String,
    /// The environment.
    pub env_id: String,
    /// The steps of all chunks.
    pub total_timesteps: u64,
    /// The metadata of the whole episode, if the manifest has it.
    pub metadata: Option<Object>,
    /// The chunks, in the order of the episode.
    pub chunks: Vec<Chunk>,
    /// The numbers of chunks that the manifest and its rows claim.
    totals: Vec<u64>,
}

/// A row of a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// The name of the file, in the folder of the manifest.
    pub uri: String,
    /// The SHA-256 of the file.
    pub sha256: Option<String>,
    /// The fingerprint of the episode in it.
    pub fingerprint: Option<String>,
    /// The size of the file.
    pub size: Option<u64>,
    /// Which chunk it is.
    pub index: u64,
    /// Its steps.
    pub length: u64,
    /// Its first and its last step.
    pub timestep_range: Option<(i64, i64)>,
}

impl ChunkManifest {
    /// Reads and checks the manifest in a file of role 4 (W-CHK-1 to W-CHK-6).
    pub fn read(reader: &ShardReader) -> Result<Self> {
        let fields = if reader.contains(MANIFEST_ENTRY) {
            reader.read_json(MANIFEST_ENTRY, "W-CHK-1")?
        } else {
            let schema = reader.schema()?.unwrap_or_default();
            schema.get("manifest").and_then(Value::as_object).cloned().unwrap_or_default()
        };
        let manifest = Self::parse(&fields).map_err(|e| e.with_entry(MANIFEST_ENTRY))?;
        reader.manifest()?; // the rules of all manifests
        manifest.check_continuity().map_err(|e| e.with_entry(MANIFEST_ENTRY))?;
        Ok(manifest)
    }

    fn parse(fields: &Object) -> Result<Self> {
        let bad = |field, expected| wrong("W-CHK-1", field, expected, fields.get(field));
        let mut found = Self::default();
        let id = fields.get("episode_id").and_then(Value::as_str).ok_or_else(|| bad("episode_id", "a string"))?;
        id.clone_into(&mut found.episode_id);
        if let Some(env) = given(fields, "env_id") {
            env.as_str().ok_or_else(|| bad("env_id", "a string"))?.clone_into(&mut found.env_id);
        }
        if let Some(metadata) = given(fields, "metadata") {
            found.metadata = Some(metadata.as_object().ok_or_else(|| bad("metadata", "an object"))?.clone());
        }
        let total = fields.get("total_timesteps").and_then(as_count);
        found.total_timesteps = total.ok_or_else(|| bad("total_timesteps", "an integer of 0 or more"))?;
        let list = fields.get("chunks").and_then(Value::as_list).ok_or_else(|| bad("chunks", "a list"))?;
        found.add_total(fields)?;
        for item in list {
            let row = item.as_object().ok_or_else(|| wrong("W-CHK-1", "a row", "an object", Some(item)))?;
            found.chunks.push(Chunk::parse(row)?);
            found.add_total(row)?;
        }
        found.chunks.sort_by_key(|chunk| chunk.index);
        Ok(found)
    }

    fn add_total(&mut self, fields: &Object) -> Result<()> {
        if let Some(value) = given(fields, "total_chunks") {
            let expected = "an integer of 0 or more";
            self.totals.push(as_count(value).ok_or_else(|| wrong("W-CHK-1", "total_chunks", expected, Some(value)))?);
        }
        Ok(())
    }

    /// Checks that the chunks make one whole episode (W-CHK-3 to W-CHK-6).
    fn check_continuity(&self) -> Result<()> {
        let bad = |rule, problem: String| Err(Error::new(Code::ChunkDiscontinuity, rule, problem));
        if self.chunks.is_empty() {
            return bad("W-CHK-6", "the manifest names no chunks".to_owned());
        }
        let mut total = 0u64;
        for (expected, chunk) in (0u64..).zip(&self.chunks) {
            if chunk.index < expected {
                return bad("W-CHK-4", format!("chunk {} is there twice", chunk.index));
            }
            if chunk.index > expected {
                return bad("W-CHK-3", format!("chunk {expected} is missing"));
            }
            if let Some((first, last)) = chunk.timestep_range {
                if u64::try_from(first) != Ok(total) {
                    return bad("W-CHK-5", format!("chunk {expected} starts with step {first} instead of {total}"));
                }
                // An empty chunk has no last step: its range is written as [start, start].
                let span = last.checked_sub(first).and_then(|span| span.checked_add(1));
                let is_empty = chunk.length == 0 && first == last;
                if span.map(u64::try_from) != Some(Ok(chunk.length)) && !is_empty {
                    return bad(
                        "W-CHK-6",
                        format!("chunk {expected} has {} steps, and a range of {first} to {last}", chunk.length),
                    );
                }
            }
            total = match total.checked_add(chunk.length).filter(|total| *total <= i64::MAX as u64) {
                Some(total) => total,
                None => return bad("W-CHK-6", "the chunks have too many steps".to_owned()),
            };
        }
        if self.totals.iter().any(|claimed| *claimed != self.chunks.len() as u64) {
            return bad(
                "W-CHK-6",
                format!("the manifest names {} chunks, and claims another number", self.chunks.len()),
            );
        }
        if total != self.total_timesteps {
            return bad(
                "W-CHK-6",
                format!("the chunks have {total} steps, and the manifest claims {}", self.total_timesteps),
            );
        }
        Ok(())
    }

    /// A manifest without chunks.
    pub(crate) fn new(episode_id: &str, env_id: &str) -> Self {
        Self { episode_id: episode_id.to_owned(), env_id: env_id.to_owned(), ..Self::default() }
    }

    /// Adds the metadata of one more part; counts of `dropped` are added up.
    pub(crate) fn add_metadata(&mut self, metadata: &Object) {
        let merged = self.metadata.get_or_insert_default();
        for (key, value) in metadata {
            match (merged.get_mut(key), value) {
                (Some(Value::Object(before)), Value::Object(counts)) if key == "dropped" => {
                    for (block, count) in counts {
                        let sum =
                            before.get(block).and_then(as_count).zip(as_count(count)).map(|(a, b)| a.saturating_add(b));
                        before.insert(block.clone(), sum.map_or_else(|| count.clone(), Value::from));
                    }
                }
                _ => drop(merged.insert(key.clone(), value.clone())),
            }
        }
    }

    /// Names one more file. `known` is what an earlier manifest says about it, which saves hashing it.
    pub(crate) fn add_chunk(&mut self, path: &Path, length: u64, known: Option<&Chunk>) -> Result<()> {
        let known = known.filter(|known| known.sha256.is_some() && known.fingerprint.is_some() && known.size.is_some());
        let mut chunk = match known {
            Some(known) => known.clone(),
            None => Chunk {
                sha256: Some(file_digest(path)?),
                fingerprint: Some(fingerprint(&ShardReader::open(path)?)?),
                size: Some(fs::metadata(path).map_err(|e| Error::io("cannot read", Some(path), e))?.len()),
                ..Chunk::default()
            },
        };
        chunk.uri = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        (chunk.index, chunk.length) = (self.chunks.len() as u64, length);
        chunk.timestep_range = step_range(self.total_timesteps, length);
        self.chunks.push(chunk);
        self.total_timesteps = self.total_timesteps.saturating_add(length);
        Ok(())
    }

    /// Writes the manifest under a name, in one step.
    pub(crate) fn write(&self, path: &Path, sync: bool) -> Result<()> {
        let count = self.chunks.len();
        let mut fields = json::object([
            ("episode_id", self.episode_id.as_str().into()),
            ("env_id", self.env_id.as_str().into()),
            ("total_chunks", count.into()),
            ("total_timesteps", self.total_timesteps.into()),
            ("chunks", self.chunks.iter().map(|chunk| chunk.fields(count)).collect()),
        ]);
        if let Some(metadata) = &self.metadata {
            fields.insert("metadata".into(), metadata.clone().into());
        }
        let options = WriterOptions { role: Role::MANIFEST, sync, ..WriterOptions::default() };
        let mut writer = ShardWriter::create(path, options)?;
        let form = EntryOptions { content_type: ContentType::JSON, ..EntryOptions::default() };
        writer.write_with(MANIFEST_ENTRY, json::canonical(&fields)?.as_bytes(), &form)?;
        writer.finish()
    }

    /// Opens one chunk and compares it with its row (W-CHK-7, W-CHK-8).
    pub(crate) fn open_chunk(&self, reader: &ShardReader, chunk: &Chunk, options: &ReaderOptions) -> Result<Episode> {
        let missing = |e: Error| {
            if e.code() == Code::MissingFile { e.with_rule("W-CHK-7") } else { e }
        };
        let path = reader.resolve_uri(&chunk.uri).map_err(missing)?;
        self.check_file(&path, chunk)?;
        let file = Arc::new(ShardReader::open_with(&path, options.clone())?);
        let ep = open_file(&file, None).map_err(|e| e.with_path(Some(&path)))?;
        self.check_chunk(chunk, &ep, &file).map_err(|e| e.with_path(Some(&path)))?;
        Ok(ep)
    }

    fn check_file(&self, path: &Path, chunk: &Chunk) -> Result<()> {
        let status = match fs::metadata(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let problem = format!("chunk {} is missing", chunk.index);
                return Err(Error::new(Code::MissingFile, "W-CHK-7", problem).with_path(Some(path)));
            }
            status => status.map_err(|e| Error::io("cannot read", Some(path), e))?,
        };
        match chunk.size {
            Some(size) if size != status.len() => Err(other_file(chunk, "size").with_path(Some(path))),
            _ => Ok(()),
        }
    }

    fn check_chunk(&self, chunk: &Chunk, ep: &Episode, file: &ShardReader) -> Result<()> {
        if let Some(stated) = &chunk.fingerprint
            && *stated != fingerprint(file)?
        {
            return Err(other_file(chunk, "fingerprint"));
        }
        // [0, 0] of a chunk without steps reads as unset.
        let has_other_range =
            ep.length > 0 && chunk.timestep_range.is_some() && ep.timestep_range != chunk.timestep_range;
        let differences = [
            ("episode_id", ep.id != self.episode_id),
            ("chunk_index", ep.chunk_index != Some(chunk.index)),
            ("length_T", ep.length != chunk.length),
            ("total_chunks", ep.total_chunks.is_some_and(|total| total != 0 && total != self.chunks.len() as u64)),
            ("timestep_range", has_other_range),
        ];
        match differences.iter().find(|(_, differs)| *differs) {
            None => Ok(()),
            Some((what, _)) => {
                let problem = format!("chunk {} states another {what} than the manifest", chunk.index);
                Err(Error::new(Code::ChunkDiscontinuity, "W-CHK-8", problem))
            }
        }
    }
}

pub(crate) fn other_file(chunk: &Chunk, what: &str) -> Error {
    let problem = format!("chunk {} is not the file that the manifest names: another {what}", chunk.index);
    Error::new(Code::ReferenceMismatch, "W-CHK-7", problem)
}

impl Chunk {
    fn fields(&self, count: usize) -> Object {
        let mut fields = json::object([
            ("uri", self.uri.as_str().into()),
            ("sha256", self.sha256.clone().into()),
            ("size", self.size.into()),
            ("chunk_index", self.index.into()),
            ("length_T", self.length.into()),
            ("total_chunks", count.into()),
            ("fingerprint", self.fingerprint.clone().into()),
        ]);
        if let Some((first, last)) = self.timestep_range {
            fields.insert("timestep_range".into(), [first, last].into_iter().collect());
        }
        fields
    }

    fn parse(row: &Object) -> Result<Self> {
        let bad = |field, expected| wrong("W-CHK-1", field, expected, row.get(field));
        let uri = row.get("uri").and_then(Value::as_str).filter(|uri| !uri.is_empty());
        let uri = uri.ok_or_else(|| bad("uri", "the name of a file"))?;
        if matches!(uri, "." | "..") || uri.contains(['/', '\\', '\0']) {
            return Err(Error::new(Code::UnsafePath, "W-CHK-2", "a chunk is not in the folder of the manifest")
                .with_expected("the name of a file")
                .with_found(format_args!("{uri:.80?}")));
        }
        let digest = |field| match given(row, field) {
            None => Ok(None),
            Some(Value::String(text)) if is_sha256_hex(text) => Ok(Some(text.clone())),
            Some(_) => Err(bad(field, "64 lower-case hex digits")),
        };
        let count = |field| as_count(row.get(field)?);
        let natural = "an integer of 0 or more";
        let size = given(row, "size").map(|_| count("size").ok_or_else(|| bad("size", natural))).transpose()?;
        let range = given(row, "timestep_range").map(|value| {
            let range = as_pair(value).filter(|(first, last)| *first >= 0 && *last >= 0);
            range.ok_or_else(|| bad("timestep_range", "a list of two integers of 0 or more"))
        });
        Ok(Self {
            uri: uri.to_owned(),
            sha256: digest("sha256")?,
            fingerprint: digest("fingerprint")?,
            size,
            index: count("chunk_index").ok_or_else(|| bad("chunk_index", natural))?,
            length: count("length_T").ok_or_else(|| bad("length_T", natural))?,
            timestep_range: range.transpose()?,
        })
    }
}

/// The SHA-256 of a file.
pub(crate) fn file_digest(path: &Path) -> Result<String> {
    let failed = |e| Error::io("cannot read", Some(path), e);
    let mut file = fs::File::open(path).map_err(failed)?;
    let mut hash = Sha256Hex::default();
    let mut piece = vec![0; 1 << 16];
    loop {
        let count = file.read(&mut piece).map_err(failed)?;
        match piece.get(..count) {
            Some(data) if count > 0 => hash.update(data),
            _ => return Ok(hash.finish()),
        }
    }
}

/// Opens the whole episode behind a manifest.
pub(crate) fn open_chunks(reader: &Arc<ShardReader>, options: &ReaderOptions) -> Result<Episode> {
    let manifest = ChunkManifest::read(reader)?;
    let chunks =
        manifest.chunks.iter().map(|chunk| manifest.open_chunk(reader, chunk, options)).collect::<Result<Vec<_>>>()?;
    let mut ep = join(&chunks)?;
    if let Some(metadata) = manifest.metadata {
        ep.metadata = metadata;
    }
    let others = chunks.iter().filter_map(|chunk| Some(Arc::clone(&chunk.origin.as_ref()?.reader))).collect();
    ep.origin = Some(Arc::new(Origin::of_files(Arc::clone(reader), others)));
    Ok(ep)
}
