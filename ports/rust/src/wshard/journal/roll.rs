//! What a recorder writes, and how a recording continues in another file.

use std::path::Path;
use std::time::{Duration, Instant};

use super::files::{RecordingFiles, exists};
use super::frame::Kind;
use super::group::Group;
use super::recorder::{Ends, RecordOptions, Step, SyncPolicy, over};
use super::writer::JournalWriter;
use crate::json::{self, Object, Value};
use crate::shard::Codec;
use crate::wshard::fields::as_int;
use crate::wshard::names::{DONE, REWARD, TERMINATED, TRUNCATED};
use crate::{Code, Error, Result};

/// The size of a compressed channel at which a file is full: readers decompress at most 1 GiB.
const NEARLY_FULL: u64 = 3 << 28;
/// What a finished file adds for each step: its tick, `done`, and the reward in f32.
const ADDED: u64 = 4 + 1 + 4;
pub(crate) const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// The journal that is written now, and all that goes into it.
#[derive(Debug)]
pub(crate) struct Tape {
    files: RecordingFiles,
    pub(crate) options: RecordOptions,
    /// The fields of the start frame, with all channels.
    start: Object,
    /// `None` after the end.
    journal: Option<JournalWriter>,
    steps: Group,
    clocked: Vec<Group>,
    pub(crate) written: u64,
    pub(crate) durable: u64,
    /// The chunk that is recorded now, its first step, and the steps in its journal.
    index: u64,
    first_step: u64,
    in_file: u64,
    /// Notes of labels, which may reach beyond the chunk.
    labels: Vec<Object>,
    /// Whether no more steps come.
    is_final: bool,
    /// Whether the recording ends in this file, because the next cannot be opened.
    is_last: bool,
    /// Full journals that wait to become chunks.
    full: Vec<JournalWriter>,
    synced: Instant,
    /// Why nothing can be recorded any more.
    failure: Option<Error>,
}

impl Tape {
    pub(crate) fn new(
        files: RecordingFiles,
        options: RecordOptions,
        start: Object,
        journal: JournalWriter,
        steps: Group,
        clocked: Vec<Group>,
    ) -> Self {
        Self {
            files,
            options,
            start,
            journal: Some(journal),
            steps,
            clocked,
            written: 0,
            durable: 0,
            index: 0,
            first_step: 0,
            in_file: 0,
            labels: Vec::new(),
            is_final: false,
            is_last: false,
            full: Vec::new(),
            synced: Instant::now(),
            failure: None,
        }
    }

    pub(crate) fn has_rolled(&self) -> bool {
        self.index > 0
    }

    fn check_open(&self) -> Result<()> {
        match &self.failure {
            Some(failure) => Err(failure.clone()),
            None if self.journal.is_none() => Err(over()),
            None => Ok(()),
        }
    }

    /// Does a part of the work; what fails once fails from then on.
    fn attempt(&mut self, work: impl FnOnce(&mut Self, &mut JournalWriter) -> Result<()>) -> Result<()> {
        self.check_open()?;
        let Some(mut journal) = self.journal.take() else {
            return Err(over());
        };
        let result = work(self, &mut journal);
        self.journal.get_or_insert(journal);
        if let Err(e) = &result
            && e.code() == Code::IoError
        {
            self.failure = Some(e.clone());
        }
        result
    }

    // --- recording

    pub(crate) fn write_step(&mut self, step: &Step<'_>) -> Result<()> {
        self.check_open()?;
        if self.is_final || self.steps.channels.is_empty() {
            return Err(Error::invalid(
                "no step can follow the final observation, and a step needs something declared",
            ));
        }
        let values = find_values(&self.steps, step.values, false)?;
        self.check_fields(step)?;
        for (at, value) in values {
            if let Some(channel) = self.steps.channels.get_mut(at) {
                channel.add(value);
            }
        }
        let named = self.steps.named;
        for channel in self.steps.channels.iter_mut().skip(named) {
            match channel.block.as_str() {
                REWARD => channel.add(&step.reward.to_le_bytes()),
                DONE => channel.add(&[u8::from(step.done)]),
                TERMINATED => channel.add(&[u8::from(step.terminated)]),
                TRUNCATED => channel.add(&[u8::from(step.truncated)]),
                _ => channel.add(&step.timestamp_ns.to_le_bytes()),
            }
        }
        if self.options.timestamps {
            self.steps.last_time = Some(step.timestamp_ns);
        }
        self.steps.count = self.steps.count.saturating_add(1);
        self.steps.since.get_or_insert_with(Instant::now);
        self.written = self.written.saturating_add(1);
        if self.steps.is_full() { self.flush_steps() } else { Ok(()) }
    }

    /// Checks the fields of a step that are not channels.
    fn check_fields(&self, step: &Step<'_>) -> Result<()> {
        let options = &self.options;
        let undeclared = [
            (step.reward != 0.0 && !options.rewards, "a reward"),
            (step.timestamp_ns != 0 && !options.timestamps, "a time"),
            (step.done && options.ends == Ends::None, "an end"),
            ((step.terminated || step.truncated) && options.ends != Ends::Both, "an end"),
        ];
        if let Some((_, what)) = undeclared.iter().find(|(is_wrong, _)| *is_wrong) {
            return Err(Error::invalid(format!("a step has {what}, which the options do not declare")));
        }
        if options.timestamps { self.steps.check_time(step.timestamp_ns) } else { Ok(()) }
    }

    pub(crate) fn write(&mut self, channel: &str, value: &[u8], time: i64) -> Result<()> {
        self.check_open()?;
        let is_it = |group: &Group| group.channels.first().is_some_and(|one| one.id == channel || one.block == channel);
        let at = self.clocked.iter().position(is_it);
        let unknown = || Error::invalid("no channel of this name has a clock of its own").with_entry(channel);
        let group = at.and_then(|at| self.clocked.get_mut(at)).ok_or_else(unknown)?;
        let [values, times] = group.channels.as_mut_slice() else {
            return Err(unknown());
        };
        values.check(value)?;
        match group.last_time {
            Some(last) if time < last => {
                return Err(Error::invalid("time runs backwards").with_entry(channel));
            }
            _ => group.last_time = Some(time),
        }
        values.add(value);
        times.add(&time.to_le_bytes());
        group.count = group.count.saturating_add(1);
        group.since.get_or_insert_with(Instant::now);
        if group.is_full() { at.map_or(Ok(()), |at| self.flush_clocked(at)) } else { Ok(()) }
    }

    /// Says that no more steps will come, and adds the observations after the last.
    pub(crate) fn write_final(&mut self, values: &[(&str, &[u8])]) -> Result<()> {
        if self.is_final {
            return Err(Error::invalid("the final observation is recorded already"));
        }
        let found: Vec<(usize, Vec<u8>)> =
            find_values(&self.steps, values, true)?.into_iter().map(|(at, value)| (at, value.to_vec())).collect();
        self.flush_steps()?;
        self.is_final = true;
        self.attempt(|tape, journal| {
            journal.add_text(Kind::Note, &json::object([("length_T", tape.in_file.into())]))?;
            for (at, value) in found {
                if let Some(channel) = tape.steps.channels.get_mut(at) {
                    channel.add(&value);
                    channel.write(journal, 1, tape.options.compression())?;
                }
            }
            journal.flush()
        })
    }

    /// Writes a note behind everything that was flushed before.
    pub(crate) fn note(&mut self, fields: &Object) -> Result<()> {
        if fields.contains_key("interval") {
            self.labels.push(fields.clone());
            self.labels = labels_from(&self.labels, self.first_step);
        }
        self.attempt(|_, journal| {
            journal.add_text(Kind::Note, fields)?;
            journal.flush()
        })
    }

    // --- writing

    pub(crate) fn flush_all(&mut self) -> Result<()> {
        self.check_open()?;
        (0..self.clocked.len()).try_for_each(|at| self.flush_clocked(at))?;
        self.flush_steps()
    }

    fn flush_clocked(&mut self, at: usize) -> Result<()> {
        self.attempt(|tape, journal| {
            let Some(group) = tape.clocked.get_mut(at) else {
                return Ok(());
            };
            let count = std::mem::take(&mut group.count);
            group.since = None;
            if count > 0 {
                group
                    .channels
                    .iter_mut()
                    .try_for_each(|channel| channel.write(journal, count, tape.options.compression()))?;
            }
            tape.settle(journal)
        })
    }

    /// Writes the steps that wait, in several files if they do not fit into one.
    fn flush_steps(&mut self) -> Result<()> {
        while self.steps.count > 0 {
            let room = self.room();
            let count = self.steps.count.min(room);
            if self.is_roll_due(count) {
                self.roll()?;
            }
            self.attempt(|tape, journal| {
                for channel in &mut tape.steps.channels {
                    channel.write(journal, count, tape.options.compression())?;
                }
                tape.in_file = tape.in_file.saturating_add(count as u64);
                tape.steps.count = tape.steps.count.saturating_sub(count);
                Ok(())
            })?;
        }
        self.steps.since = None;
        self.attempt(Self::settle)
    }

    /// Hands what was written to the system and, if every run is synced, to the disk.
    fn settle(&mut self, journal: &mut JournalWriter) -> Result<()> {
        journal.flush()?;
        if self.options.sync == SyncPolicy::EveryRun {
            journal.sync()?;
        }
        self.durable = self.first_step.saturating_add(self.in_file);
        Ok(())
    }

    /// The journal, if it is time to sync it. The caller does that without holding up those who record.
    pub(crate) fn due_for_sync(&mut self) -> Option<std::fs::File> {
        let is_due = self.options.sync == SyncPolicy::EverySecond && self.synced.elapsed() >= SYNC_INTERVAL;
        let file = self.journal.as_mut().filter(|journal| is_due && journal.is_unsynced)?.sync_handle()?;
        self.synced = Instant::now();
        Some(file)
    }

    /// Keeps why nothing can be recorded any more.
    pub(crate) fn fail(&mut self, error: Error) {
        self.failure.get_or_insert(error);
    }

    /// Writes what has waited long enough, and gives the full journals.
    pub(crate) fn tend(&mut self) -> Vec<JournalWriter> {
        let interval = self.options.flush_interval.div_f32(2.0);
        let is_due = |group: &Group| group.since.is_some_and(|since| since.elapsed() >= interval);
        // An error stays, and the next call of the recorder tells it.
        for at in 0..self.clocked.len() {
            if self.clocked.get(at).is_some_and(is_due) {
                let _ = self.flush_clocked(at);
            }
        }
        if is_due(&self.steps) {
            let _ = self.flush_steps();
        }
        let _ = self.attempt(Self::settle);
        std::mem::take(&mut self.full)
    }

    /// Adds the end frame of the recording.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.attempt(|_, journal| {
            journal.add_text(Kind::End, &Object::new())?;
            journal.flush()
        })
    }

    /// All journals that are open, in order. Nothing can be recorded any more.
    pub(crate) fn take_journals(&mut self) -> Vec<JournalWriter> {
        let mut journals = std::mem::take(&mut self.full);
        journals.extend(self.journal.take());
        journals
    }

    // --- the next file

    /// How many steps may be written at once: those that fit into this file, or into the next.
    fn room(&self) -> usize {
        let most = self.options.max_steps_per_file.unwrap_or(u64::MAX).max(1);
        let left = most.saturating_sub(self.in_file);
        let room = if left > 0 && !self.is_last { left } else { most };
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    fn is_roll_due(&self, count: usize) -> bool {
        if self.in_file == 0 || self.is_last {
            return false; // every chunk starts with a step
        }
        let steps = self.in_file.saturating_add(count as u64);
        let position = self.journal.as_ref().map_or(0, |journal| journal.position);
        let bytes = position.saturating_add(self.steps.bytes()).saturating_add(steps.saturating_mul(ADDED));
        self.options.max_steps_per_file.is_some_and(|most| steps > most)
            || self.options.max_bytes_per_file.is_some_and(|most| bytes > most)
            || self.steps.channels.iter().any(|channel| channel.compressed >= NEARLY_FULL)
    }

    /// Continues in the next journal, which exists before the current one gets its end (J-9). If it cannot be opened, the
    /// recording stays where it is.
    fn roll(&mut self) -> Result<()> {
        let (index, first_step) = (self.index.saturating_add(1), self.first_step.saturating_add(self.in_file));
        let Ok(next) = self.open_next(index, first_step) else {
            self.is_last = true;
            return Ok(());
        };
        self.attempt(|tape, journal| {
            journal.add_text(Kind::End, &json::object([("continues", true.into())]))?;
            if tape.options.sync == SyncPolicy::EveryRun { journal.sync() } else { journal.flush() }
        })?;
        self.full.extend(self.journal.replace(next));
        for group in self.clocked.iter_mut().chain([&mut self.steps]) {
            group.channels.iter_mut().for_each(super::group::Writing::move_on);
        }
        (self.index, self.first_step, self.in_file) = (index, first_step, 0);
        self.labels = labels_from(&self.labels, first_step);
        Ok(())
    }

    /// Makes the next journal, with its start frame and the labels that reach into it.
    fn open_next(&self, index: u64, first_step: u64) -> Result<JournalWriter> {
        let names = self.files.names();
        let taken =
            names.existing().filter(|_| index == 1).or_else(|| Some(names.chunk(index)).filter(|path| exists(path)));
        let in_the_way = |path: &Path| Error::invalid("a file is in the way").with_path(Some(path));
        if let Some(path) = taken {
            return Err(in_the_way(&path));
        }
        let mut journal = JournalWriter::open(&self.files.journal(index))?;
        if journal.old_size()? > 0 {
            return Err(in_the_way(&journal.path));
        }
        let mut start = self.start.clone();
        let chunk = json::object([("first_step", first_step.into()), ("index", index.into())]);
        start.insert("chunk".into(), chunk.into());
        let mut begin = || {
            journal.add_text(Kind::Start, &start)?;
            labels_from(&self.labels, first_step).iter().try_for_each(|note| journal.add_text(Kind::Note, note))?;
            if self.options.sync == SyncPolicy::Never { journal.flush() } else { journal.sync_with_name() }
        };
        match begin() {
            Ok(()) => Ok(journal),
            Err(e) => {
                let _ = journal.remove(); // the first error counts
                Err(e)
            }
        }
    }
}

impl RecordOptions {
    /// The level of zstd, if runs are compressed.
    fn compression(&self) -> Option<i32> {
        (self.compression == Codec::Zstd).then_some(self.level)
    }
}

/// The channels that values belong to. All named channels need one, except in a final observation, which has only signals.
fn find_values<'v>(group: &Group, values: &[(&str, &'v [u8])], is_final: bool) -> Result<Vec<(usize, &'v [u8])>> {
    let named = group.channels.get(..group.named).unwrap_or_default();
    let mut found = Vec::with_capacity(values.len());
    for (at, channel) in named.iter().enumerate() {
        let is_unique = || named.iter().filter(|other| other.id == channel.id).count() == 1;
        let is_it = |key: &str| key == channel.block || (key == channel.id && is_unique());
        // Values are usually in the order of the channels.
        let here = values.get(at).filter(|(key, _)| is_it(key));
        match here.or_else(|| values.iter().find(|(key, _)| is_it(key))) {
            Some((_, value)) if !is_final || channel.block.starts_with("signal/") => {
                channel.check(value)?;
                found.push((at, *value));
            }
            None if !is_final => {
                return Err(Error::invalid("a step lacks a channel").with_entry(&channel.block));
            }
            _ => {}
        }
    }
    if found.len() != values.len() {
        return Err(Error::invalid("there is a value for a channel that was not declared, or two for one"));
    }
    Ok(found)
}

/// The notes of labels that reach a step, without the part before it.
fn labels_from(labels: &[Object], step: u64) -> Vec<Object> {
    let step = step.cast_signed();
    let mut found = Vec::new();
    for note in labels {
        let mut note = note.clone();
        if let Some(Value::Object(interval)) = note.get_mut("interval") {
            let at = |field| interval.get(field).and_then(as_int).unwrap_or(0);
            let (start, end) = (at("start"), at("end"));
            if end <= step && start < step {
                continue;
            }
            interval.insert("start".into(), start.max(step).into());
        }
        found.push(note);
    }
    found
}
