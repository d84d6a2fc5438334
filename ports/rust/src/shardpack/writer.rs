//! One shard, record by record (spec/shardpack.md, section 13).

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use crate::atomic::NewFile;
use crate::hash::{Sha256Hex, xxh64};
use crate::json::{self, Object, Value};
use crate::{Code, Error, Limits, Result};

use super::encoder::{EncodedRecord, Encoder};
use super::encoding::Encoding;
use super::index;
use super::kinds::{Kinds, KindsCache};
use super::layout::{Footer, MOST_RECORDS, is_alignment};
use super::record::{Record, StoredRecord, in_record};

/// How much waits in memory before it is written.
const BATCH: usize = 1 << 20;
/// Above this number of names, a shard has no schema.
pub(super) const MOST_NAMES: usize = 256;
/// Fields of a shard's metadata that a writer computes.
const OWN_FIELDS: [&str; 4] = ["created", "schema", "user", "version"];

/// How to write a shard.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// 1, 8 or 64. With 64, arrays and episodes inside the shard can be used in place.
    pub alignment: u8,
    /// None, lz4 or zstd, for entries that may be compressed and whose content type is not compressed already.
    pub compression: Encoding,
    /// The level of zstd.
    pub level: i32,
    /// Your own fields about the shard.
    pub user: Object,
    /// The time that the shard states, such as `2024-01-01T00:00:00Z`. By default it comes from the environment variable
    /// `SOURCE_DATE_EPOCH` or the clock.
    pub created: Option<String>,
    /// Whether to replace a file that is there, when the new one is complete. Without it, such a file is an error.
    pub overwrite: bool,
    /// Whether to sync to disk. Without it, a power failure can lose the file.
    pub sync: bool,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self {
            alignment: 8,
            compression: Encoding::None,
            level: 3,
            user: Object::new(),
            created: None,
            overwrite: false,
            sync: true,
        }
    }
}

impl WriterOptions {
    /// Refuses what cannot be written: now rather than after an hour.
    pub(super) fn check(&self) -> Result<()> {
        if !is_alignment(self.alignment) {
            let error = Error::new(Code::InvalidArgument, "P-REC-4", "unknown alignment");
            return Err(error.with_expected("1, 8 or 64").with_found(self.alignment));
        }
        if !matches!(self.compression, Encoding::None | Encoding::Lz4 | Encoding::Zstd) {
            return Err(Error::invalid("entries cannot be written in this encoding").with_found(self.compression));
        }
        let text = json::canonical(&self.user);
        let parsed = text.and_then(|text| json::parse_object(text.as_bytes(), "it", "P-IDX-8", &Limits::default()));
        parsed.map(drop).map_err(|error| {
            let problem = "the fields of the user cannot be stored";
            Error::new(Code::InvalidArgument, "P-IDX-8", problem).with_source(error)
        })
    }

    /// The time that the shard states.
    pub(super) fn created_or_now(&self) -> Result<String> {
        match &self.created {
            Some(created) => Ok(created.clone()),
            None => creation_time(),
        }
    }
}

fn creation_time() -> Result<String> {
    let seconds = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) if !text.is_empty() => text.parse().ok(),
        _ => SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok().map(|since| since.as_secs()),
    };
    seconds
        .and_then(rfc3339)
        .ok_or_else(|| Error::invalid("SOURCE_DATE_EPOCH is not a number of seconds, or the clock is wrong"))
}

/// A time in UTC, such as `2024-01-01T00:00:00Z`, from the seconds since 1970.
fn rfc3339(seconds: u64) -> Option<String> {
    const DAY: u64 = 86_400;
    // Days since the first of March of the year 0, so that a leap day is the last of its year.
    let days = (seconds / DAY).checked_add(719_468)?;
    let (era, day) = (days / 146_097, days % 146_097);
    let leaps = (day / 1460).checked_sub(day / 36_524)?.checked_add(day / 146_096)?;
    let year = day.checked_sub(leaps)? / 365;
    let past = year.checked_mul(365)?.checked_add(year / 4)?.checked_sub(year / 100)?;
    let day = day.checked_sub(past)?;
    let month = day.checked_mul(5)?.checked_add(2)? / 153; // from March on
    let day = day.checked_sub(month.checked_mul(153)?.checked_add(2)? / 5)?.checked_add(1)?;
    let is_next_year = month >= 10;
    let month = if is_next_year { month.checked_sub(9)? } else { month.checked_add(3)? };
    let year = era.checked_mul(400)?.checked_add(year)?.checked_add(u64::from(is_next_year))?;
    let time = seconds % DAY;
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    (year <= 9999).then(|| format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"))
}

enum Output {
    File(NewFile),
    Stream(Box<dyn Write + Send>),
}

/// Writes one shard, record by record, in one pass. The file appears under its name when [`finalize`](Self::finalize)
/// returns. Until then, and after an error, what was there before stays. A killed process leaves a hidden `.partial` file,
/// from which [`recover`](super::recover) recovers the records.
pub struct ShardPackWriter {
    pub(super) encoder: Encoder,
    options: WriterOptions,
    created: String,
    output: Output,
    buffer: Vec<u8>,
    /// Of all bytes, if the shard belongs to a set.
    digest: Option<Sha256Hex>,
    position: u64,
    /// Where each record starts, and the hash of its key.
    records: Vec<(u64, u64)>,
    pub(super) keys: KeySet,
    schema: SchemaCounter,
    others: Object,
    has_failed: bool,
}

/// What became of a shard.
pub(super) struct Finished {
    pub footer: Footer,
    pub sha256: Option<String>,
    pub schema: Option<Object>,
    pub keys: KeySet,
}

impl ShardPackWriter {
    /// Starts a shard. Dropping the writer without [`finalize`](Self::finalize) leaves nothing.
    pub fn create(path: impl AsRef<Path>, options: WriterOptions) -> Result<Self> {
        let path = path.as_ref();
        let start = || {
            check_free(path, options.overwrite)?;
            options.check()?;
            Ok(Output::File(NewFile::create(path)?))
        };
        let output = start().map_err(|error: Error| error.with_path(Some(path)))?;
        Self::new(output, options)
    }

    /// Starts a shard that goes to anything that takes bytes: a pipe, an upload, memory. Without
    /// [`finalize`](Self::finalize), it has a part of a shard.
    pub fn to_stream(output: impl Write + Send + 'static, options: WriterOptions) -> Result<Self> {
        options.check()?;
        Self::new(Output::Stream(Box::new(output)), options)
    }

    fn new(output: Output, options: WriterOptions) -> Result<Self> {
        let encoder = Encoder {
            alignment: options.alignment,
            compression: options.compression,
            level: options.level,
            kinds: KindsCache::default(),
        };
        Ok(Self {
            encoder,
            created: options.created_or_now()?,
            options,
            output,
            buffer: Vec::new(),
            digest: None,
            position: 0,
            records: Vec::new(),
            keys: KeySet::default(),
            schema: SchemaCounter::default(),
            others: Object::new(),
            has_failed: false,
        })
    }

    /// The number of records that were written.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether no record was written yet.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Adds a record. After an error about the record itself the shard is unchanged, and you can go on writing.
    pub fn write_record(&mut self, record: &Record) -> Result<()> {
        let encoded = self.encoder.record(record);
        encoded.and_then(|encoded| self.add(&encoded)).map_err(|error| self.located(error))
    }

    /// Adds a record of another shard as it is stored: entries are checked, but not decoded.
    pub fn copy_record(&mut self, record: &StoredRecord) -> Result<()> {
        let encoded = self.encoder.stored(record);
        encoded.and_then(|encoded| self.add(&encoded)).map_err(|error| self.located(error))
    }

    /// Keeps fields of another shard's metadata that a writer does not know.
    pub fn keep_fields(&mut self, metadata: Object) {
        self.others.extend(metadata.into_iter().filter(|(key, _)| !OWN_FIELDS.contains(&key.as_str())));
    }

    pub(super) fn add(&mut self, record: &EncodedRecord) -> Result<()> {
        if self.has_failed {
            return Err(Error::new(Code::IoError, "", "an earlier record could not be written"));
        }
        if self.records.len() as u64 >= MOST_RECORDS {
            return Err(Error::new(Code::LimitExceeded, "P-IDX-1", "too many records in one shard"));
        }
        let end = self.position.checked_add(record.size);
        let end = end.ok_or_else(|| Error::new(Code::LimitExceeded, "P-REC-7", "the shard is too large"))?;
        if !self.keys.insert(&record.key) {
            let error = Error::new(Code::InvalidArgument, "P-REC-10", "the key was written before");
            return Err(in_record(error, &record.key));
        }
        self.has_failed = true; // until all is written
        record.write(|piece| self.append(piece))?;
        self.has_failed = false;
        self.records.push((self.position, xxh64(record.key.as_bytes())));
        self.position = end;
        self.schema.add(&record.kinds);
        Ok(())
    }

    fn append(&mut self, piece: &[u8]) -> Result<()> {
        if let Some(digest) = &mut self.digest {
            digest.update(piece);
        }
        if piece.len() >= BATCH {
            self.write_out()?;
            return self.write_all(piece);
        }
        self.buffer.extend_from_slice(piece);
        if self.buffer.len() >= BATCH { self.write_out() } else { Ok(()) }
    }

    fn write_out(&mut self) -> Result<()> {
        let buffer = std::mem::take(&mut self.buffer);
        self.write_all(&buffer)?;
        self.buffer = buffer;
        self.buffer.clear();
        Ok(())
    }

    fn write_all(&mut self, data: &[u8]) -> Result<()> {
        let written = match &mut self.output {
            Output::File(file) => file.file().write_all(data),
            Output::Stream(stream) => stream.write_all(data),
        };
        written.map_err(|error| Error::io("cannot write", self.path(), error))
    }

    fn path(&self) -> Option<&Path> {
        match &self.output {
            Output::File(file) => Some(file.path()),
            Output::Stream(_) => None,
        }
    }

    pub(super) fn located(&self, error: Error) -> Error {
        error.with_path(self.path())
    }

    /// Whether a record could not be written, so that the shard cannot be completed.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Computes the SHA-256 of the file while it is written.
    pub(super) fn hash_content(&mut self) {
        self.digest = Some(Sha256Hex::default());
    }

    /// About the size of the file with one more record.
    pub(super) fn size_with(&self, record: u64) -> u64 {
        const ROOM_FOR_METADATA: u64 = 1024;
        let index = (self.records.len() as u64).saturating_add(1).saturating_mul(super::layout::PER_RECORD);
        self.position.saturating_add(record).saturating_add(index).saturating_add(ROOM_FOR_METADATA)
    }

    /// Hands all records to the operating system, so that they survive if this process is killed.
    pub fn flush(&mut self) -> Result<()> {
        self.write_out()
    }

    /// Writes the index, syncs the file and gives it its name.
    pub fn finalize(self) -> Result<Footer> {
        self.finish().map(|finished| finished.footer)
    }

    pub(super) fn finish(mut self) -> Result<Finished> {
        let path = self.path().map(PathBuf::from);
        let located = |error: Error| error.with_path(path.as_deref());
        if self.has_failed {
            return Err(located(Error::new(Code::IoError, "", "a record could not be written")));
        }
        let schema = self.schema.fields();
        let mut fields = std::mem::take(&mut self.others);
        fields.insert("created".to_owned(), std::mem::take(&mut self.created).into());
        fields.insert("user".to_owned(), std::mem::take(&mut self.options.user).into());
        fields.insert("version".to_owned(), 1.into());
        if let Some(schema) = &schema {
            fields.insert("schema".to_owned(), schema.clone().into());
        }
        let metadata = json::canonical(&fields).map_err(located)?;
        let (index, footer) = index::build(&self.records, self.position, metadata.as_bytes()).map_err(located)?;
        self.append(&index)?;
        self.write_out()?;
        let Self { output, digest, keys, options, .. } = self;
        match output {
            Output::File(file) => {
                check_free(file.path(), options.overwrite).map_err(located)?;
                file.publish(options.sync)?;
            }
            Output::Stream(mut stream) => stream.flush().map_err(|error| Error::io("cannot write", None, error))?,
        }
        Ok(Finished { footer, sha256: digest.map(Sha256Hex::finish), schema, keys })
    }
}

/// Refuses to replace a file unless that is asked for.
pub(super) fn check_free(path: &Path, overwrite: bool) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(_) if !overwrite => Err(Error::invalid("the file exists: set `overwrite` to replace it")),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::io("cannot write", Some(path), error)),
        _ => Ok(()),
    }
}

/// Knows keys by half of their SHA-256: 16 bytes for each, whatever its length. Two keys never share one, not even keys
/// that somebody has chosen to; keys that share an XXH64 can be made.
#[derive(Default)]
pub(super) struct KeySet(HashSet<[u8; 16]>);

impl KeySet {
    /// Adds a key; false if it is there already.
    pub(super) fn insert(&mut self, key: &str) -> bool {
        self.0.insert(Sha256::digest(key.as_bytes()).first_chunk().copied().unwrap_or_default())
    }
}

/// Counts how many records have an entry of each name.
#[derive(Default)]
struct SchemaCounter {
    /// The kinds of the last records, which were not counted yet: most records share theirs.
    last: Arc<Kinds>,
    pending: u64,
    /// The content type of each name, and the number of records that have it.
    rows: BTreeMap<String, (String, u64)>,
    is_too_much: bool,
}

impl SchemaCounter {
    fn add(&mut self, kinds: &Arc<Kinds>) {
        if !Arc::ptr_eq(kinds, &self.last) {
            self.count();
            self.last = Arc::clone(kinds);
        }
        self.pending = self.pending.saturating_add(1);
    }

    fn count(&mut self) {
        let records = std::mem::take(&mut self.pending);
        for number in 0..if records > 0 { self.last.len() } else { 0 } {
            let (name, content_type) = (self.last.name(number), self.last.content_type(number));
            if !self.rows.contains_key(name) {
                if self.rows.len() >= MOST_NAMES {
                    self.is_too_much = true;
                    return;
                }
                self.rows.insert(name.to_owned(), (content_type.to_owned(), 0));
            }
            if let Some((known, count)) = self.rows.get_mut(name) {
                if known != content_type {
                    known.clear(); // it varies
                }
                *count = count.saturating_add(records);
            }
        }
    }

    /// The schema; `None` if there are too many names.
    fn fields(&mut self) -> Option<Object> {
        self.count();
        let row = |(name, (content_type, records)): (&String, &(String, u64))| {
            let row = json::object([("content_type", content_type.as_str().into()), ("records", (*records).into())]);
            (name.clone(), Value::Object(row))
        };
        (!self.is_too_much).then(|| self.rows.iter().map(row).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::rfc3339;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_704_067_199, "2023-12-31T23:59:59Z"),
            (1_704_067_200, "2024-01-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(rfc3339(seconds).as_deref(), Some(text));
        }
        assert_eq!(rfc3339(253_402_300_800), None);
        assert_eq!(rfc3339(u64::MAX), None);
    }
}
