//! Sets of shards as they are written (spec/shardpack.md, section 9.3).

use std::path::{Path, PathBuf};

use crate::json::{self, Object, Value};
use crate::shard::write_manifest;
use crate::{Code, Error, Limits, Result};

use super::encoder::{EncodedRecord, Encoder};
use super::record::{Record, StoredRecord};
use super::set::{LONGEST_REVISION, MOST_SHARDS, NamePattern, SET_FORMAT, SET_SUFFIX, check_file_name};
use super::writer::{KeySet, MOST_NAMES, ShardPackWriter, WriterOptions, check_free};

const LARGEST_SCHEMA: usize = 64 << 10;
/// A row of a set file without the name of its file, and everything but rows, schema and the fields of the user.
const ROOM_FOR_ROW: usize = 300;
const ROOM_FOR_OTHER: usize = 8 << 10;

/// How to write a set of shards.
#[derive(Clone, Debug)]
pub struct SetOptions {
    /// How each shard is written. A set cannot be replaced: remove the old one first.
    pub shards: WriterOptions,
    /// Starts a new shard before the file would grow above this size. A larger record gets a shard of its own.
    pub max_bytes: u64,
    /// Starts a new shard after this many records.
    pub max_records: usize,
    /// Names this state of the set; by default the time of creation.
    pub revision: Option<String>,
}

impl Default for SetOptions {
    fn default() -> Self {
        Self { shards: WriterOptions::default(), max_bytes: 1 << 30, max_records: usize::MAX, revision: None }
    }
}

/// Writes a set of shards and the set file that lists them. Each shard appears when it is complete, and the set file when
/// all are. Keys are unique in the whole set. A killed process leaves complete shards without a set file, and the hidden
/// file of the last one.
pub struct SetWriter {
    folder: PathBuf,
    name: String,
    pattern: NamePattern,
    options: SetOptions,
    /// The shard that is being written; `None` after a failure.
    writer: Option<ShardPackWriter>,
    rows: Vec<Object>,
    /// `None` if one of the shards has no schema.
    schema: Option<Object>,
    most_shards: usize,
    len: usize,
}

impl SetWriter {
    /// Starts a set of shards with a name such as `data/train-%06d.shardpack`.
    pub fn create(output: impl AsRef<Path>, options: SetOptions) -> Result<Self> {
        let output = output.as_ref();
        Self::start(output, options).map_err(|error| error.with_path(Some(output)))
    }

    fn start(output: &Path, mut options: SetOptions) -> Result<Self> {
        let name = output.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let pattern = NamePattern::parse(name).filter(|pattern| pattern.is_plain && check_file_name(name).is_ok());
        let pattern = pattern.ok_or_else(|| {
            Error::new(Code::InvalidArgument, "P-SET-6", "the name of a set needs exactly one number")
                .with_expected("a name such as train-%06d.shardpack")
        })?;
        if options.shards.overwrite {
            let problem = "a set cannot be replaced: remove the old one first";
            return Err(Error::new(Code::InvalidArgument, "P-SET-9", problem));
        }
        if options.revision.as_ref().is_some_and(|text| !(1..=LONGEST_REVISION).contains(&text.chars().count())) {
            let error = Error::new(Code::InvalidArgument, "P-SET-6", "the revision is empty or too long");
            return Err(error.with_expected(format_args!("1 to {LONGEST_REVISION} characters")));
        }
        options.shards.created = Some(options.shards.created_or_now()?); // one time for all shards
        let user = json::canonical(&options.shards.user)?.len();
        let room = usize::try_from(Limits::default().max_json_bytes).unwrap_or(usize::MAX);
        let room = room.saturating_sub(LARGEST_SCHEMA).saturating_sub(ROOM_FOR_OTHER).saturating_sub(user);
        let most_shards = MOST_SHARDS.min(room.checked_div(ROOM_FOR_ROW.saturating_add(name.len())).unwrap_or(0));
        let mut set = Self {
            folder: crate::atomic::folder_of(output).to_path_buf(),
            name: name.to_owned(),
            pattern,
            options,
            writer: None,
            rows: Vec::new(),
            schema: Some(Object::new()),
            most_shards,
            len: 0,
        };
        check_free(&set.set_file(), false)?;
        set.start_shard(KeySet::default())?;
        Ok(set)
    }

    /// The path of the set file.
    pub fn set_file(&self) -> PathBuf {
        let before = self.pattern.before.strip_suffix(['-', '_', '.']).unwrap_or(&self.pattern.before);
        let after = self.pattern.after.strip_suffix(".shardpack").unwrap_or(&self.pattern.after);
        let stem = if before.is_empty() && after.is_empty() { "set" } else { "" };
        self.folder.join([before, after, stem, SET_SUFFIX].concat())
    }

    fn start_shard(&mut self, keys: KeySet) -> Result<()> {
        if self.rows.len() >= self.most_shards {
            let problem = "the set has too many shards: raise `max_bytes` or `max_records`";
            let error = Error::new(Code::LimitExceeded, "P-SET-5", problem);
            return Err(error.with_expected(format_args!("at most {}", self.most_shards)));
        }
        let path = self.folder.join(self.pattern.name_of(self.rows.len()));
        let mut writer = ShardPackWriter::create(path, self.options.shards.clone())?;
        writer.keys = keys;
        writer.hash_content();
        self.writer = Some(writer);
        Ok(())
    }

    /// The number of records that were written, in all shards.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no record was written yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a record, as [`ShardPackWriter::write_record`] does.
    pub fn write_record(&mut self, record: &Record) -> Result<()> {
        self.add(|encoder| encoder.record(record))
    }

    /// Adds a record of another shard, as [`ShardPackWriter::copy_record`] does.
    pub fn copy_record(&mut self, record: &StoredRecord) -> Result<()> {
        self.add(|encoder| encoder.stored(record))
    }

    fn add<'a>(&mut self, encode: impl FnOnce(&Encoder) -> Result<EncodedRecord<'a>>) -> Result<()> {
        let max = (self.options.max_bytes, self.options.max_records);
        let mut writer = self.writer()?;
        let record = encode(&writer.encoder).map_err(|error| writer.located(error))?;
        if !writer.is_empty() && (writer.len() >= max.1 || writer.size_with(record.size) > max.0) {
            self.next_shard()?;
            writer = self.writer()?;
        }
        writer.add(&record).map_err(|error| writer.located(error))?;
        self.len = self.len.saturating_add(1);
        Ok(())
    }

    /// Ends the shard that is being written, even if it is not full. The next record starts another one.
    pub fn next_shard(&mut self) -> Result<()> {
        let keys = self.finish_shard()?;
        self.start_shard(keys)
    }

    fn writer(&mut self) -> Result<&mut ShardPackWriter> {
        let failed = Error::new(Code::Closed, "", "an earlier shard of the set could not be written");
        self.writer.as_mut().ok_or(failed)
    }

    /// Completes the shard that is being written and makes its row.
    fn finish_shard(&mut self) -> Result<KeySet> {
        self.writer()?;
        let Some(finished) = self.writer.take().map(ShardPackWriter::finish).transpose()? else {
            return Ok(KeySet::default());
        };
        self.schema = self.schema.take().zip(finished.schema).map(|(all, one)| merge_schemas(all, one));
        let footer = finished.footer;
        self.rows.push(json::object([
            ("uri", self.pattern.name_of(self.rows.len()).into()),
            ("sha256", finished.sha256.into()),
            ("size", footer.total_size.into()),
            ("records", footer.record_count.into()),
            ("footer", crate::hash::hex(&footer.to_bytes()).into()),
        ]));
        Ok(finished.keys)
    }

    /// Finishes the last shard and writes the set file. A set without records has one shard without records.
    pub fn finalize(mut self) -> Result<()> {
        if !self.writer()?.is_empty() || self.rows.is_empty() {
            self.finish_shard()?;
        }
        let created = Value::from(self.options.shards.created.take());
        let mut fields = json::object([
            ("format", SET_FORMAT.into()),
            ("version", 1.into()),
            ("name", self.name.as_str().into()),
            ("created", created.clone()),
            ("user", std::mem::take(&mut self.options.shards.user).into()),
            ("revision", self.options.revision.take().map_or(created, Value::from)),
            ("records", self.len.into()),
            ("files", std::mem::take(&mut self.rows).into_iter().collect()),
        ]);
        if let Some(schema) = self.schema.take()
            && schema.len() <= MOST_NAMES
            && json::canonical(&schema)?.len() <= LARGEST_SCHEMA
        {
            fields.insert("schema".to_owned(), schema.into());
        }
        write_manifest(self.set_file(), &fields)
    }
}

/// Adds up the schemas of shards.
fn merge_schemas(mut all: Object, one: Object) -> Object {
    let parts = |row: &Value| {
        let content_type = row.get("content_type").and_then(Value::as_str).unwrap_or_default();
        (content_type.to_owned(), row.get("records").and_then(Value::as_u64).unwrap_or_default())
    };
    for (name, row) in one {
        let (mut content_type, mut records) = parts(&row);
        if let Some(known) = all.get(&name) {
            let (known_type, count) = parts(known);
            records = records.saturating_add(count);
            if known_type != content_type {
                content_type.clear(); // it varies
            }
        }
        let row = json::object([("content_type", content_type.into()), ("records", records.into())]);
        all.insert(name, row.into());
    }
    all
}
