//! Sets of shards that a set file lists (spec/shardpack.md, section 9.3).

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{fs, io};

use crate::error::quoted;
use crate::hash::{is_hex, unhex};
use crate::json::{Object, Value};
use crate::shard::{MANIFEST_ENTRY, ReaderOptions, ShardReader};
use crate::{Code, Error, Limits, Result, Role};

use super::layout::{FOOTER_SIZE, Footer};
use super::reader::{ShardPackReader, duplicate, no_such_key};
use super::record::StoredRecord;
use super::writer::KeySet;

pub(super) const SET_FORMAT: &str = "shardpack-set";
pub(super) const SET_SUFFIX: &str = ".shardpack-set";
pub(super) const MOST_SHARDS: usize = 32_768;
pub(super) const LONGEST_REVISION: usize = 255;
const MOST_PARTS: i64 = 65_536;
const LONGEST_FILE_NAME: usize = 255;

/// What a set file says about one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetShard {
    /// The name of the file, in the folder of the set file.
    pub name: String,
    /// The number of records.
    pub records: usize,
    /// Bytes of the file.
    pub size: u64,
    /// SHA-256 of the whole file, in lower-case hex.
    pub sha256: String,
    /// What the last bytes of the shard must be.
    pub footer: Footer,
}

/// A set of shards that a set file lists. Records are numbered across all of them. A shard is opened when it is needed, and
/// stays open. Any number of threads may use a set.
pub struct Set {
    path: PathBuf,
    limits: Limits,
    fields: Object,
    shards: Vec<SetShard>,
    /// The number of the first record of each shard.
    starts: Vec<usize>,
    len: usize,
    open: Vec<OnceLock<ShardPackReader>>,
}

impl Set {
    /// Reads a set file. No shard is looked at.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, &Limits::default())
    }

    /// Reads a set file with other limits.
    pub fn open_with(path: impl AsRef<Path>, limits: &Limits) -> Result<Self> {
        let path = path.as_ref();
        Self::read(path, limits).map_err(|error| error.with_path(Some(path)))
    }

    fn read(path: &Path, limits: &Limits) -> Result<Self> {
        let reader = ShardReader::open_with(path, ReaderOptions { limits: limits.clone(), ..Default::default() })?;
        if reader.role() != Role::MANIFEST || !reader.contains(MANIFEST_ENTRY) {
            let error = Error::new(Code::BadMetadata, "P-SET-1", "not a set file");
            return Err(error.with_expected("a manifest").with_found(format_args!("role {}", reader.role().0)));
        }
        let rows = reader.manifest()?;
        let mut fields = reader.manifest_fields()?;
        fields.remove("files");
        check_fields(&fields, rows.len())?;
        let shards = rows.iter().map(parse_row).collect::<Result<Vec<_>>>()?;
        let too_many = || Error::new(Code::SizeMismatch, "P-SET-3", "the set has more records than can be counted");
        let (mut starts, mut len) = (Vec::with_capacity(shards.len()), 0_usize);
        for shard in &shards {
            starts.push(len);
            len = len.checked_add(shard.records).ok_or_else(too_many)?;
        }
        let stated = fields.get("records").and_then(Value::as_u64);
        if stated != Some(len as u64) {
            let error = Error::new(Code::SizeMismatch, "P-SET-3", "'records' is not the sum of the shards");
            return Err(error.with_expected(len).with_found(told(fields.get("records"))));
        }
        let open = shards.iter().map(|_| OnceLock::new()).collect();
        Ok(Self { path: path.to_path_buf(), limits: limits.clone(), fields, shards, starts, len, open })
    }

    /// What the set file says besides the shards: name, revision, created, user, schema, records and others.
    pub fn fields(&self) -> &Object {
        &self.fields
    }

    /// The shards, in order.
    pub fn shards(&self) -> &[SetShard] {
        &self.shards
    }

    /// The number of records of all shards.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Opens the shard of a number, from 0 on, and checks that it is the one that the set file names (P-SET-7).
    pub fn shard(&self, number: usize) -> Result<&ShardPackReader> {
        let (Some(shard), Some(cell)) = (self.shards.get(number), self.open.get(number)) else {
            let error = Error::new(Code::EntryNotFound, "", "no such shard");
            let error = error.with_expected(format_args!("a number below {}", self.shards.len())).with_found(number);
            return Err(error.with_path(Some(&self.path)));
        };
        if let Some(reader) = cell.get() {
            return Ok(reader);
        }
        let reader = self.open_shard(shard)?;
        Ok(cell.get_or_init(|| reader)) // another thread may have been faster
    }

    fn open_shard(&self, shard: &SetShard) -> Result<ShardPackReader> {
        let path = self.folder().join(&shard.name);
        check_place(&path, self.folder()).map_err(|error| error.with_path(Some(&path)))?;
        let reader = ShardPackReader::open_with(&path, &self.limits)?;
        let footer = reader.footer();
        if *footer != shard.footer {
            let error = Error::new(Code::ReferenceMismatch, "P-SET-7", "not the shard that the set file names");
            return Err(error
                .with_expected(format_args!("{} bytes, {} records", shard.size, shard.records))
                .with_found(format_args!("{} bytes, {} records", footer.total_size, footer.record_count))
                .with_path(Some(&path)));
        }
        Ok(reader)
    }

    fn folder(&self) -> &Path {
        crate::atomic::folder_of(&self.path)
    }

    /// Opens the record of a number, counted across all shards.
    pub fn record(&self, number: usize) -> Result<StoredRecord> {
        if number >= self.len {
            let error = Error::new(Code::EntryNotFound, "", "no such record");
            let error = error.with_expected(format_args!("a number below {}", self.len)).with_found(number);
            return Err(error.with_path(Some(&self.path)));
        }
        let shard = self.starts.partition_point(|start| *start <= number).saturating_sub(1);
        let start = self.starts.get(shard).copied().unwrap_or_default();
        self.shard(shard)?.record(number.saturating_sub(start))
    }

    /// Opens the record with a key. It looks into all shards, because a key that occurs twice is an error.
    pub fn by_key(&self, key: &str) -> Result<StoredRecord> {
        let mut found = None;
        for number in 0..self.shards.len() {
            let reader = self.shard(number)?;
            if let Some(number) = reader.find(key)?
                && found.replace((reader, number)).is_some()
            {
                return Err(duplicate(key).with_path(Some(&self.path)));
            }
        }
        match found {
            Some((reader, number)) => reader.record(number),
            None => Err(no_such_key(key).with_path(Some(&self.path))),
        }
    }

    /// All records in order. A shard that cannot be opened gives an error, and the next one follows.
    pub fn records(&self) -> impl Iterator<Item = Result<StoredRecord>> {
        (0..self.shards.len()).flat_map(|number| {
            let (reader, error) = match self.shard(number) {
                Ok(reader) => (Some(reader), None),
                Err(error) => (None, Some(Err(error))),
            };
            reader.into_iter().flat_map(ShardPackReader::records).chain(error)
        })
    }

    /// Reads and checks all shards: that each is the one that the set file names, all that [`ShardPackReader::verify`]
    /// checks, that no key is in two of them, and that the folder has no other shards of this name (P-SET-8).
    pub fn verify(&self) -> Result<()> {
        ShardReader::open(&self.path)?.verify_files()?;
        let mut keys = KeySet::default();
        for number in 0..self.shards.len() {
            let reader = self.shard(number)?;
            reader.verify_each(|record| {
                if keys.insert(record.key()) { Ok(()) } else { Err(duplicate(record.key()).with_path(reader.path())) }
            })?;
        }
        self.find_extra()
    }

    /// Looks for files that are named like shards of this set, and that no set file of the folder lists (P-SET-8).
    fn find_extra(&self) -> Result<()> {
        let failed = |error| Error::io("cannot read", Some(self.folder()), error);
        let names = fs::read_dir(self.folder()).map_err(failed)?.map(|entry| Ok(entry?.file_name().into_string()));
        let names: Vec<String> =
            names.filter_map(|name| name.map(Result::ok).transpose()).collect::<io::Result<_>>().map_err(failed)?;
        // A set file that cannot be read lists nothing here; checking it shows what is wrong.
        let others = names.iter().filter(|name| name.ends_with(SET_SUFFIX));
        let others = others.filter_map(|name| Self::open_with(self.folder().join(name), &self.limits).ok());
        let listed: HashSet<String> = others.flat_map(|set| set.shards).map(|shard| shard.name).collect();
        let pattern = NamePattern::parse(self.fields.get("name").and_then(Value::as_str).unwrap_or_default());
        let number_of = |name: &str| pattern.as_ref().and_then(|pattern| pattern.number_of(name));
        let first = self.shards.first().and_then(|shard| number_of(&shard.name)).unwrap_or_default();
        for name in &names {
            if number_of(name).is_some_and(|number| number >= first) && !listed.contains(name) {
                let error = Error::new(Code::ReferenceMismatch, "P-SET-8", "no set file names this shard");
                return Err(error.with_path(Some(&self.folder().join(name))));
            }
        }
        Ok(())
    }
}

/// A value for a message.
fn told(value: Option<&Value>) -> String {
    let text = value.and_then(|value| value.canonical().ok()).unwrap_or_else(|| "nothing".to_owned());
    text.chars().take(80).collect()
}

/// Checks P-SET-1, P-SET-5 and P-SET-6.
fn check_fields(fields: &Object, rows: usize) -> Result<()> {
    let text = |field: &str| fields.get(field).and_then(Value::as_str);
    let refused = |code, rule, problem: String, expected: &str, field: &str| {
        Err(Error::new(code, rule, problem).with_expected(expected).with_found(told(fields.get(field))))
    };
    if text("format") != Some(SET_FORMAT) {
        let problem = "the manifest is not a set file".to_owned();
        return refused(Code::BadMetadata, "P-SET-1", problem, SET_FORMAT, "format");
    }
    if fields.get("version") != Some(&Value::Int(1)) {
        let problem = "the set file has an unknown version".to_owned();
        return refused(Code::UnsupportedVersion, "P-SET-1", problem, "1", "version");
    }
    if rows == 0 {
        return Err(Error::new(Code::BadMetadata, "P-SET-5", "the set has no shards"));
    }
    if rows > MOST_SHARDS {
        let error = Error::new(Code::LimitExceeded, "P-SET-5", "the set has too many shards");
        return Err(error.with_expected(format_args!("at most {MOST_SHARDS}")).with_found(rows));
    }
    let is_name = |name: &str| check_file_name(name).is_ok() && NamePattern::parse(name).is_some();
    let is_revision = |text: &str| (1..=LONGEST_REVISION).contains(&text.chars().count());
    let is_object = |field: &str| fields.get(field).is_some_and(|value| value.as_object().is_some());
    let number = |field: &str| fields.get(field).and_then(Value::as_i64);
    let is_part = match (number("part"), number("parts")) {
        (Some(part), Some(parts)) => 1 <= part && part <= parts && parts <= MOST_PARTS,
        _ => !fields.contains_key("part") && !fields.contains_key("parts"),
    };
    for (field, expected, is_right) in [
        ("name", "a file name with one number", text("name").is_some_and(is_name)),
        ("revision", "1 to 255 characters", text("revision").is_some_and(is_revision)),
        ("created", "a string", text("created").is_some()),
        ("user", "an object", is_object("user")),
        ("schema", "an object", !fields.contains_key("schema") || is_object("schema")),
        ("part", "1 to 'parts', at most 65536", is_part),
    ] {
        if !is_right {
            let problem = format!("'{field}' is not what it must be");
            return refused(Code::BadMetadata, "P-SET-6", problem, expected, field);
        }
    }
    Ok(())
}

/// Reads one row of a set file (P-SET-2 to P-SET-4).
fn parse_row(row: &Object) -> Result<SetShard> {
    let text = |field: &str| row.get(field).and_then(Value::as_str);
    let name = text("uri").unwrap_or_default(); // it is one in every manifest
    check_file_name(name)?;
    let bad = |expected: &str| {
        let problem = format!("the row of {} is incomplete", quoted(name));
        Error::new(Code::BadMetadata, "P-SET-2", problem).with_expected(expected)
    };
    let number = |field: &str| row.get(field).filter(|value| matches!(value, Value::Int(_) | Value::BigInt(_)));
    let (Some(sha256), Some(size)) = (text("sha256"), number("size")) else {
        return Err(bad("sha256 and size"));
    };
    let records = number("records").ok_or_else(|| bad("an integer under 'records'"))?;
    let footer = text("footer").filter(|text| is_hex(text, FOOTER_SIZE.saturating_mul(2))).and_then(unhex);
    let footer = Footer::parse_alone(&footer.ok_or_else(|| bad("128 lower-case hex digits under 'footer'"))?);
    let footer = footer.map_err(|error| {
        let problem = format!("the row of {} has a bad footer", quoted(name));
        Error::new(Code::BadMetadata, "P-SET-2", problem).with_source(error)
    })?;
    let stated = (size.as_u64(), records.as_u64());
    let count = usize::try_from(footer.record_count).ok();
    let (true, Some(records)) = (stated == (Some(footer.total_size), Some(footer.record_count)), count) else {
        let problem = format!("the row of {} contradicts its footer", quoted(name));
        return Err(Error::new(Code::SizeMismatch, "P-SET-3", problem)
            .with_expected(format_args!("{} bytes, {} records", footer.total_size, footer.record_count)));
    };
    Ok(SetShard { name: name.to_owned(), records, size: footer.total_size, sha256: sha256.to_owned(), footer })
}

/// Checks that a name is that of a file in the same folder (P-SET-4).
pub(super) fn check_file_name(name: &str) -> Result<()> {
    let is_scheme = |start: &str| {
        start.starts_with(|first: char| first.is_ascii_alphabetic())
            && start.chars().all(|c| c.is_ascii_alphanumeric() || "+.-".contains(c))
    };
    let reason = if name.contains('/') || name.split_once(':').is_some_and(|(start, _)| is_scheme(start)) {
        "it is not in the folder of the set file"
    } else if ["", ".", ".."].contains(&name) {
        "it is not the name of a file"
    } else if name.contains('\\') || name.contains(char::is_control) {
        "it has a backslash or a control character"
    } else if name.len() > LONGEST_FILE_NAME {
        "it is too long"
    } else {
        return Ok(());
    };
    Err(Error::new(Code::UnsafePath, "P-SET-4", format!("the name {} is unsafe: {reason}", quoted(name))))
}

/// Refuses a shard that is missing, or that a link takes out of its folder.
fn check_place(path: &Path, folder: &Path) -> Result<()> {
    let failed = |error| Error::io("cannot open", Some(path), error);
    let folder = folder.canonicalize().map_err(failed)?;
    match path.canonicalize() {
        Ok(place) if place.starts_with(&folder) => Ok(()),
        Ok(_) => {
            let problem = "a symbolic link leads out of the folder of the set file";
            Err(Error::new(Code::UnsafePath, "P-SET-4", problem))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(Error::new(Code::MissingFile, "P-SET-7", "the set file names a shard that is missing"))
        }
        Err(error) => Err(failed(error)),
    }
}

/// What the shards of a set are called, such as `train-%06d.shardpack`.
#[derive(Clone, Debug)]
pub(super) struct NamePattern {
    pub before: String,
    pub after: String,
    /// The fewest digits of the number.
    pub digits: usize,
    /// Whether a writer can use it: `%d` or `%06d`, and no other percent sign.
    pub is_plain: bool,
}

impl NamePattern {
    /// Takes a name apart that has exactly one number.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (mut parts, mut digits, mut is_plain) = (vec![String::new()], 0, true);
        let mut rest = name;
        while let Some((text, tail)) = rest.split_once('%') {
            let part = parts.last_mut()?;
            part.push_str(text);
            let width = tail.len().saturating_sub(tail.trim_start_matches(|c: char| c.is_ascii_digit()).len());
            let (number, after) = tail.split_at_checked(width)?;
            rest = if let Some(after) = tail.strip_prefix('%') {
                part.push('%');
                after
            } else if let Some(after) = after.strip_prefix('d') {
                is_plain &= number.is_empty() || (number.starts_with('0') && number.len() <= 3);
                digits = number.parse().unwrap_or(0);
                parts.push(String::new());
                after
            } else {
                is_plain = false;
                part.push('%');
                tail
            };
        }
        parts.last_mut()?.push_str(rest);
        let [before, after] = <[String; 2]>::try_from(parts).ok()?;
        Some(Self { before, after, digits, is_plain })
    }

    /// The name of the shard of a number.
    pub(super) fn name_of(&self, number: usize) -> String {
        format!("{}{number:0digits$}{}", self.before, self.after, digits = self.digits)
    }

    /// The number in the name of a shard; `None` for other names.
    fn number_of(&self, name: &str) -> Option<u64> {
        let digits = name.strip_prefix(&self.before)?.strip_suffix(&self.after)?;
        let is_number = (1..=18).contains(&digits.len()) && digits.bytes().all(|c| c.is_ascii_digit());
        digits.parse().ok().filter(|_| is_number)
    }
}
