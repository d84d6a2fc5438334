//! What is intact of a damaged shard (spec/shardpack.md, section 12).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::shard::{FileSource, View};
use crate::{Code, Error, Limits, Result};

use super::encoder::Content;
use super::layout::{
    BLOCK_START_SIZE, FIXED_HEAD_SIZE, FixedHead, INDEX_MARKER, MARKER_AT, RECORD_MARKER, block_start, check_key,
};
use super::reader::{FIRST_READ, ShardPackReader, WINDOW};
use super::record::{Origin, StoredRecord};
use super::writer::{ShardPackWriter, WriterOptions};

/// Bounds the work on a file that is full of false markers.
const LEAST_BUDGET: u64 = 64 << 20;

/// How to recover a damaged shard.
#[derive(Clone, Debug, Default)]
pub struct RecoverOptions {
    /// What the damaged shard may ask for.
    pub limits: Limits,
    /// Whether to keep the intact entries of records that have damaged ones. [`Recovery::lost`] names the others; the new
    /// shard does not show that they were there.
    pub keep_entries: bool,
    /// How the new shard is written. Alignment, `created` and `user` are those of the damaged shard, if they are known.
    pub writer: WriterOptions,
}

/// What [`recover`] did.
#[derive(Debug, Default)]
pub struct Recovery {
    /// How many records were recovered.
    pub records: usize,
    /// What could not be recovered, in the order of the file.
    pub lost: Vec<LostPart>,
    /// Whether the offsets of the index could be followed.
    pub had_index: bool,
}

/// Something that could not be recovered.
#[derive(Debug)]
pub struct LostPart {
    /// Where it starts in the damaged file.
    pub offset: u64,
    /// Its bytes.
    pub size: u64,
    /// The key of the record, if it is known.
    pub key: Option<String>,
    /// The entry, if the rest of its record was recovered.
    pub entry: Option<String>,
    /// What is wrong with it.
    pub reason: Error,
}

/// Writes a new shard with every intact record of a damaged one, as it was stored. The input may also be the hidden file
/// that a killed writer left.
///
/// If the index is intact, its offsets are used. Otherwise the file is read from its start; after damage, the search
/// continues at the next marker with an intact head around it.
pub fn recover(input: impl AsRef<Path>, output: impl AsRef<Path>, options: RecoverOptions) -> Result<Recovery> {
    let (input, output) = (input.as_ref(), output.as_ref());
    let source = Arc::new(FileSource::open(input)?);
    if let (Ok(from), Ok(to)) = (input.canonicalize(), output.canonicalize())
        && from == to
    {
        return Err(Error::invalid("a shard cannot be recovered into itself").with_path(Some(input)));
    }
    let origin = Origin::new(Some(source), &options.limits);
    let mut saver = Saver::new(output, options);
    match open_index(&origin) {
        Ok(reader) => saver.follow_index(&reader)?,
        Err(error) if says_data_is_bad(&error) => saver.search(&origin)?,
        Err(error) => return Err(error),
    }
    saver.finish()
}

fn open_index(origin: &Arc<Origin>) -> Result<ShardPackReader> {
    let reader = ShardPackReader::from_origin(Arc::clone(origin))?;
    reader.check_offsets()?;
    Ok(reader)
}

/// Tells damage from a disk that fails, which says nothing about the data.
fn says_data_is_bad(error: &Error) -> bool {
    error.code() != Code::IoError
}

/// Writes what is found.
struct Saver {
    output: PathBuf,
    options: RecoverOptions,
    /// Starts with the first record, which decides the alignment.
    writer: Option<ShardPackWriter>,
    done: Recovery,
}

impl Saver {
    fn new(output: &Path, options: RecoverOptions) -> Self {
        Self { output: output.to_path_buf(), options, writer: None, done: Recovery::default() }
    }

    /// Saves the records that the index names. It never takes records from inside entries.
    fn follow_index(&mut self, reader: &ShardPackReader) -> Result<()> {
        self.done.had_index = true;
        let fields = match reader.metadata() {
            Err(error) if !says_data_is_bad(&error) => return Err(error),
            fields => fields.unwrap_or_default(),
        };
        // The fields may have any type.
        if let Some(user) = fields.get("user").and_then(|user| user.as_object()) {
            self.options.writer.user = user.clone();
        }
        if let Some(created) = fields.get("created").and_then(|created| created.as_str()) {
            self.options.writer.created = Some(created.to_owned());
        }
        for number in 0..reader.len() {
            match reader.record_any(number) {
                Ok(record) => self.save(&record)?,
                Err(reason) if says_data_is_bad(&reason) => {
                    let (offset, size) = reader.index.place(number).unwrap_or_default();
                    self.lose(offset, size, None, reason);
                }
                Err(error) => return Err(error),
            }
        }
        self.writer(None)?.keep_fields(fields);
        Ok(())
    }

    /// Saves the records with an intact head, from the start of the file on.
    fn search(&mut self, origin: &Arc<Origin>) -> Result<()> {
        let mut search = Search::new(origin);
        let mut position = 0;
        while position < search.size {
            let next = match search.look(position)? {
                Found::Record(record) => {
                    self.save(&record)?;
                    position.saturating_add(record.size())
                }
                Found::End => break,
                Found::Damage(reason) => {
                    let next = search.next_record(position.saturating_add(1))?;
                    self.lose(position, next.saturating_sub(position), None, origin.located(reason));
                    next
                }
            };
            position = next;
        }
        Ok(())
    }

    fn writer(&mut self, alignment: Option<u8>) -> Result<&mut ShardPackWriter> {
        if self.writer.is_none() {
            let mut options = self.options.writer.clone();
            options.alignment = alignment.unwrap_or(options.alignment);
            self.writer = Some(ShardPackWriter::create(&self.output, options)?);
        }
        self.writer.as_mut().ok_or_else(|| Error::invalid("no writer"))
    }

    /// Writes a record, or says that it is lost.
    fn save(&mut self, record: &StoredRecord) -> Result<()> {
        let keep_entries = self.options.keep_entries;
        let writer = self.writer(Some(record.alignment()))?;
        let mut saved = writer.copy_record(record).map(|()| Vec::new());
        if saved.is_err() && keep_entries && !writer.has_failed() {
            saved = copy_intact_entries(writer, record);
        }
        match saved {
            Ok(lost) => self.done.lost.extend(lost),
            Err(reason) if !writer.has_failed() && says_data_is_bad(&reason) => {
                let key = check_key(record.parts().key).ok().map(str::to_owned);
                self.lose(record.offset(), record.size(), key, reason);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn lose(&mut self, offset: u64, size: u64, key: Option<String>, reason: Error) {
        self.done.lost.push(LostPart { offset, size, key, entry: None, reason });
    }

    fn finish(mut self) -> Result<Recovery> {
        self.done.records = self.writer(None)?.len();
        if let Some(writer) = self.writer {
            writer.finalize()?;
        }
        self.done.lost.sort_by_key(|part| part.offset);
        Ok(self.done)
    }
}

/// Writes the intact entries of a record, and gives the others.
fn copy_intact_entries(writer: &mut ShardPackWriter, record: &StoredRecord) -> Result<Vec<LostPart>> {
    let key = check_key(record.parts().key)?;
    record.check_no_metadata()?;
    let (mut intact, mut lost) = (Vec::new(), Vec::new());
    for entry in record.entries() {
        match Content::stored(entry) {
            Ok(content) => intact.push(content),
            Err(reason) if says_data_is_bad(&reason) => {
                let (offset, size) = match entry.offset() {
                    Ok(offset) => (offset, entry.stored_size()),
                    Err(_) => (record.offset(), 0),
                };
                let (key, entry) = (Some(key.to_owned()), Some(entry.name().to_owned()));
                lost.push(LostPart { offset, size, key, entry, reason });
            }
            Err(error) => return Err(error),
        }
    }
    let (encoding, metadata) = record.stored_metadata();
    let encoded = writer.encoder.assemble(key, intact, encoding, metadata)?;
    writer.add(&encoded)?;
    Ok(lost)
}

/// What is at a place of a damaged file.
enum Found {
    Record(StoredRecord),
    Damage(Error),
    /// The index, or zeros up to the end of the file.
    End,
}

/// Looks for records in a file without an index.
struct Search<'a> {
    origin: &'a Arc<Origin>,
    size: u64,
    /// How many bytes of heads may still be looked at.
    budget: u64,
    /// Some bytes of the file, from an offset on.
    window: Vec<u8>,
    window_at: u64,
}

impl<'a> Search<'a> {
    fn new(origin: &'a Arc<Origin>) -> Self {
        let size = origin.source.as_ref().map_or(0, |source| source.len());
        let budget = size.saturating_mul(16).saturating_add(LEAST_BUDGET);
        Self { origin, size, budget, window: Vec::new(), window_at: 0 }
    }

    fn look(&mut self, position: u64) -> Result<Found> {
        let start = self.bytes(position, BLOCK_START_SIZE as u64)?.to_vec();
        if block_start(&start).is_some_and(|(_, marker)| marker == INDEX_MARKER) {
            return Ok(Found::End); // no more records
        }
        let reason = match self.open(position) {
            Ok(record) => return Ok(Found::Record(record)),
            Err(error) if says_data_is_bad(&error) => error,
            Err(error) => return Err(error),
        };
        // Zeros are space that a writer reserved and did not use.
        let is_empty = start.iter().all(|byte| *byte == 0) && self.is_empty(position)?;
        Ok(if is_empty { Found::End } else { Found::Damage(reason) })
    }

    /// Opens the record at a position, if its head is intact.
    fn open(&mut self, position: u64) -> Result<StoredRecord> {
        let left = self.size.saturating_sub(position);
        let cut = || Error::new(Code::Truncated, "P-REC-7", "the file ends inside a record");
        let fixed = self.bytes(position, FIXED_HEAD_SIZE as u64)?;
        let (size, _) = block_start(fixed).filter(|_| fixed.len() == FIXED_HEAD_SIZE).ok_or_else(cut)?;
        if size > left {
            return Err(cut().with_expected(format_args!("at most {left}")).with_found(size));
        }
        let head = FixedHead::parse(fixed, size)?;
        self.budget = self
            .budget
            .checked_sub(head.head_size())
            .ok_or_else(|| Error::new(Code::LimitExceeded, "", "too many false heads"))?;
        let first = self.bytes(position, size.min(FIRST_READ))?.to_vec();
        StoredRecord::open_any(self.origin, position, size, View::of(first))
    }

    /// Where the next intact head starts, from a position on; the end of the file if there is none.
    fn next_record(&mut self, mut position: u64) -> Result<u64> {
        while position < self.size {
            let found = self.bytes(position, WINDOW)?;
            let (length, after) = (found.len(), found.get(MARKER_AT..).unwrap_or_default());
            let Some(at) = after.windows(RECORD_MARKER.len()).position(|four| four == RECORD_MARKER) else {
                // The last bytes may be the start of a head.
                let Some(skipped) = length.checked_sub(BLOCK_START_SIZE) else {
                    break;
                };
                position = position.saturating_add(skipped as u64).saturating_add(1);
                continue;
            };
            position = position.saturating_add(at as u64);
            match self.open(position) {
                Ok(_) => return Ok(position),
                Err(error) if says_data_is_bad(&error) => position = position.saturating_add(1),
                Err(error) => return Err(error),
            }
        }
        Ok(self.size)
    }

    /// Whether only zero bytes follow.
    fn is_empty(&mut self, mut position: u64) -> Result<bool> {
        while position < self.size {
            let found = self.bytes(position, WINDOW)?;
            if found.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            position = position.saturating_add(found.len() as u64);
        }
        Ok(true)
    }

    /// Some bytes from a position on, at most a window; fewer at the end of the file.
    fn bytes(&mut self, position: u64, most: u64) -> Result<&[u8]> {
        let end = position.saturating_add(most).min(self.size);
        let window_end = self.window_at.saturating_add(self.window.len() as u64);
        if position < self.window_at || end > window_end {
            let size = self.size.saturating_sub(position).min(WINDOW.saturating_mul(2));
            self.window = self.origin.read(position, size)?;
            self.window_at = position;
        }
        let from_window = |offset: u64| usize::try_from(offset.saturating_sub(self.window_at)).unwrap_or(usize::MAX);
        Ok(self.window.get(from_window(position)..from_window(end)).unwrap_or_default())
    }
}
