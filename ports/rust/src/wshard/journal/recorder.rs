//! Records an episode step by step (spec/journal.md, section 9).

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::files::{RecordingFiles, exists};
use super::finish::{Finisher, save_recorded};
use super::frame::Kind;
use super::group::{ChannelDef, Group, Writing};
use super::recover::save_over;
use super::roll::{SYNC_INTERVAL, Tape};
use super::writer::JournalWriter;
use crate::json::{self, Object, Value};
use crate::shard::Codec;
use crate::wshard::episode::Episode;
use crate::wshard::label::{Interval, Label};
use crate::wshard::names::{DONE, REWARD, TERMINATED, TIMESTAMPS, TRUNCATED, check_id};
use crate::wshard::save::{SaveOptions, refuse_sidecars};
use crate::wshard::timebase::Timebase;
use crate::{Code, DType, Error, Result};

/// When a recorder waits for the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncPolicy {
    /// At most the last second is lost if the power fails.
    #[default]
    EverySecond,
    /// After every run: a step that [`Recorder::durable_steps`] counts survives a loss of power.
    EveryRun,
    /// The system decides. A killed process still loses nothing that was flushed.
    Never,
}

/// What to do with the journal of an earlier recording of the same name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnPartial {
    /// It is an error.
    #[default]
    Refuse,
    /// Save it beside the new recording, as `<name>.recovered-<n>.wshard`.
    Recover,
    /// Delete it, with its finished chunks.
    Discard,
}

/// Which ends every step tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ends {
    /// None.
    #[default]
    None,
    /// Whether the episode is done.
    Done,
    /// Whether it was terminated or truncated.
    Both,
}

/// What a recording is.
#[derive(Clone, Debug)]
pub struct RecordOptions {
    /// The name of the episode.
    pub episode_id: String,
    /// The environment.
    pub env_id: String,
    /// How steps become times.
    pub timebase: Timebase,
    /// Anything that you add; [`Recorder::add_metadata`] adds more.
    pub metadata: Object,
    /// The channels.
    pub channels: Vec<ChannelDef>,
    /// Whether every step has a reward.
    pub rewards: bool,
    /// Whether every step has a time.
    pub timestamps: bool,
    /// Which ends every step tells.
    pub ends: Ends,
    /// `Codec::None` or `Codec::Zstd`. With zstd, the first run of a channel decides whether that is worth it.
    pub compression: Codec,
    /// The level of zstd.
    pub level: i32,
    /// A run is written every `flush_steps` steps.
    pub flush_steps: usize,
    /// A run is written after this time, if that is earlier.
    pub flush_interval: Duration,
    /// When to wait for the disk.
    pub sync: SyncPolicy,
    /// What to do with the journal of an earlier recording.
    pub on_partial: OnPartial,
    /// Whether a finished episode of the same name is replaced; it stays until the new one is complete.
    pub overwrite: bool,
    /// The recording continues in another file after this number of steps, so that it becomes an episode in chunks.
    pub max_steps_per_file: Option<u64>,
    /// The same after this number of bytes. A file may exceed it by one run.
    pub max_bytes_per_file: Option<u64>,
}

impl RecordOptions {
    /// A recording of some channels.
    pub fn new(episode_id: &str, channels: Vec<ChannelDef>) -> Self {
        Self {
            episode_id: episode_id.to_owned(),
            env_id: String::new(),
            timebase: Timebase::default(),
            metadata: Object::new(),
            channels,
            rewards: false,
            timestamps: false,
            ends: Ends::None,
            compression: Codec::None,
            level: 3,
            flush_steps: 64,
            flush_interval: Duration::from_millis(500),
            sync: SyncPolicy::EverySecond,
            on_partial: OnPartial::Refuse,
            overwrite: false,
            max_steps_per_file: None,
            max_bytes_per_file: None,
        }
    }

    /// The content of the start frame, without channels.
    fn start(&self) -> Result<Object> {
        let mut ep = Episode::new(self.episode_id.as_str(), 0);
        (ep.env_id, ep.timebase, ep.metadata) = (self.env_id.clone(), self.timebase.clone(), self.metadata.clone());
        if self.episode_id.is_empty() || !matches!(self.compression, Codec::None | Codec::Zstd) || self.flush_steps == 0
        {
            let problem =
                "a recording needs an id and runs of at least one step, and is compressed with zstd or not at all";
            return Err(Error::invalid(problem));
        }
        let mut fields = ep.episode_fields();
        Episode::parse(&fields, &Object::new())
            .map_err(|e| Error::invalid("the options do not describe an episode").with_source(e))?;
        json::canonical(&fields)?;
        fields.remove("length_T");
        Ok(json::object([("episode", fields.into()), ("v", 1.into())]))
    }
}

/// One step of a recording.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step<'a> {
    /// The bytes of every channel without a clock of its own, little-endian in C order, by the id of the channel; by its
    /// block, such as `action/arm`, if an observation and an action have the same id.
    pub values: &'a [(&'a str, &'a [u8])],
    /// The reward, if the options declare it.
    pub reward: f64,
    /// Whether the episode is done, if the options declare it.
    pub done: bool,
    /// Whether it ended in a terminal state, if the options declare ends.
    pub terminated: bool,
    /// Whether it was cut off, if the options declare ends.
    pub truncated: bool,
    /// The time, if the options declare it.
    pub timestamp_ns: i64,
}

/// Records an episode step by step.
///
/// Until [`finish`](Recorder::finish), everything is in a journal, `<path>.partial`, whose frames have checksums of their own;
/// after a crash, [`recover`](super::recover) brings it back. Steps are gathered into runs; a thread of the recorder writes
/// those that have waited long enough, syncs, and turns full journals into chunks. Dropping a recorder keeps the journal.
/// Several threads may use one.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    tape: Arc<Mutex<Tape>>,
    finisher: Arc<Mutex<Finisher>>,
    helper: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

pub(crate) fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recorder {
    /// Begins a recording for the episode at a path.
    pub fn create(path: impl AsRef<Path>, options: RecordOptions) -> Result<Self> {
        let path = path.as_ref().to_path_buf();
        let located = |e: Error| e.with_path(Some(&path));
        let mut start = options.start().map_err(located)?;
        let (mut steps, mut clocked) = groups(&options).map_err(located)?;
        let mut rows = Vec::new();
        clocked.iter_mut().try_for_each(|group| group.number(&mut rows)).map_err(located)?;
        start.insert("channels".into(), Value::List(rows.clone()));
        let in_start = rows.len();
        steps.number(&mut rows).map_err(located)?;
        check_target(&path, options.overwrite)?;
        let files = RecordingFiles { path: path.clone() };
        let mut journal = open_first(&files, &options)?;
        let begun = journal.add_text(Kind::Start, &start).and_then(|()| {
            let later = rows.get(in_start..).unwrap_or_default();
            if !later.is_empty() {
                journal.add_text(Kind::Note, &json::object([("channels", later.to_vec().into())]))?;
            }
            if options.sync == SyncPolicy::Never { journal.flush() } else { journal.sync_with_name() }
        });
        if let Err(e) = begun {
            let _ = journal.remove(); // the first error counts
            return Err(e);
        }
        start.insert("channels".into(), Value::List(rows));
        let finisher = Finisher::new(files.clone(), &options);
        let interval = options.flush_interval.min(SYNC_INTERVAL).div_f32(2.0);
        let journal_path = path.clone();
        let tape = Arc::new(Mutex::new(Tape::new(files, options, start, journal, steps, clocked)));
        let finisher = Arc::new(Mutex::new(finisher));
        let (stop, stopped) = mpsc::channel();
        let (tape_of_helper, finisher_of_helper) = (Arc::clone(&tape), Arc::clone(&finisher));
        let helper = std::thread::Builder::new().name("shard-recorder".into()).spawn(move || {
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                let full = held(&tape_of_helper).tend();
                held(&finisher_of_helper).take(full);
                let unsynced = held(&tape_of_helper).due_for_sync();
                if let Some(Err(e)) = unsynced.map(|file| file.sync_data()) {
                    let failed = Error::io("cannot record", Some(&journal_path), e);
                    held(&tape_of_helper).fail(failed);
                }
            }
        });
        let helper = helper.map_err(|e| Error::io("cannot record", Some(&path), e))?;
        Ok(Self { path, tape, finisher, helper: Some((stop, helper)) })
    }

    /// Records one step: a value for every channel without a clock of its own. If a value does not fit, the step is not
    /// recorded, the error names the channel, and you can continue.
    pub fn write_step(&self, step: &Step<'_>) -> Result<()> {
        held(&self.tape).write_step(step).map_err(|e| e.with_path(Some(&self.path)))
    }

    /// Records one entry of a channel that has a clock of its own.
    pub fn write(&self, channel: &str, value: &[u8], timestamp_ns: i64) -> Result<()> {
        held(&self.tape).write(channel, value, timestamp_ns).map_err(|e| e.with_path(Some(&self.path)))
    }

    /// Records observations after the last step. No step can follow.
    pub fn write_final(&self, values: &[(&str, &[u8])]) -> Result<()> {
        held(&self.tape).write_final(values).map_err(|e| e.with_path(Some(&self.path)))
    }

    /// Adds an interval to a label, in steps of the whole recording.
    pub fn annotate(&self, label: &str, interval: Interval) -> Result<()> {
        check_id(label)?;
        let lane = Label { intervals: vec![interval], ..Label::default() };
        let fields = lane.fields();
        Label::parse(&fields)?;
        let interval = fields.get("intervals").and_then(Value::as_list).and_then(<[Value]>::first).cloned();
        let note = json::object([
            ("interval", interval.unwrap_or_default()),
            ("label", label.into()),
            ("unit", lane.unit.name().into()),
        ]);
        held(&self.tape).note(&note)
    }

    /// Merges an object into the metadata of the episode, key by key.
    pub fn add_metadata(&self, metadata: Object) -> Result<()> {
        held(&self.tape).note(&json::object([("metadata", metadata.into())]))
    }

    /// Returns when everything recorded so far is in the journal, so that a kill cannot lose it.
    pub fn flush(&self) -> Result<()> {
        held(&self.tape).flush_all()
    }

    /// The steps recorded so far.
    pub fn steps_written(&self) -> u64 {
        held(&self.tape).written
    }

    /// The steps that survive if the process is killed now.
    pub fn durable_steps(&self) -> u64 {
        held(&self.tape).durable
    }

    /// Makes the episode, removes the journal, and gives the file to open: the path, or the manifest of a recording in
    /// several files. If that fails, the journal stays for [`recover`](super::recover).
    pub fn finish(mut self) -> Result<PathBuf> {
        self.stop();
        let mut tape = held(&self.tape);
        tape.flush_all()?;
        tape.end()?;
        let overwrite = tape.options.overwrite;
        let full = tape.take_journals();
        if !tape.has_rolled() {
            check_target(&self.path, overwrite)?;
            let options = SaveOptions { sync: tape.options.sync != SyncPolicy::Never, ..SaveOptions::default() };
            for journal in full {
                save_recorded(&journal, |episode| save_over(&self.path, episode, &options))?;
                journal.remove()?;
            }
            return Ok(self.path.clone());
        }
        let manifest = held(&self.finisher).finish_all(full)?;
        if overwrite && exists(&self.path) {
            refuse_sidecars(&self.path)?;
            std::fs::remove_file(&self.path).map_err(|e| Error::io("cannot remove", Some(&self.path), e))?; // the chunks replace it
        }
        Ok(manifest)
    }

    /// Stops recording and deletes the journal and the finished chunks.
    pub fn abort(mut self) -> Result<()> {
        self.stop();
        let mut tape = held(&self.tape);
        let has_rolled = tape.has_rolled();
        let full = tape.take_journals();
        let mut finisher = held(&self.finisher);
        if has_rolled { finisher.remove(full) } else { full.into_iter().try_for_each(JournalWriter::remove) }
    }

    /// Stops the helper.
    fn stop(&mut self) {
        if let Some((stop, helper)) = self.helper.take() {
            drop(stop);
            let _ = helper.join(); // it does not panic
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if self.helper.is_some() {
            self.stop();
            let _ = held(&self.tape).flush_all(); // nobody is there to tell
        }
    }
}

/// The channels of the steps, and those with clocks of their own.
fn groups(options: &RecordOptions) -> Result<(Group, Vec<Group>)> {
    let group = |channels, named| Group::new(channels, named, options.flush_steps, options.max_bytes_per_file);
    let (mut channels, mut clocked): (Vec<Writing>, Vec<Group>) = (Vec::new(), Vec::new());
    let mut names = std::collections::HashSet::new();
    for def in &options.channels {
        let channel = Writing::declared(def)?;
        if !names.insert(channel.block.clone()) {
            return Err(Error::invalid("a channel is declared twice").with_entry(&channel.block));
        }
        if def.has_own_clock {
            let clock = Writing::flat(&format!("time/{}", channel.block), DType::I64);
            clocked.push(group(vec![channel, clock], 1));
        } else {
            channels.push(channel);
        }
    }
    let named = channels.len();
    let fields = [
        (options.rewards, REWARD, DType::F64),
        (options.ends == Ends::Done, DONE, DType::Bool),
        (options.ends == Ends::Both, TERMINATED, DType::Bool),
        (options.ends == Ends::Both, TRUNCATED, DType::Bool),
        (options.timestamps, TIMESTAMPS, DType::I64),
    ];
    channels.extend(
        fields.iter().filter(|(is_there, _, _)| *is_there).map(|(_, block, dtype)| Writing::flat(block, *dtype)),
    );
    Ok((group(channels, named), clocked))
}

/// Refuses to replace a finished episode without being told to, or one with sidecars.
fn check_target(path: &Path, overwrite: bool) -> Result<()> {
    if !exists(path) {
        return Ok(());
    }
    if !overwrite || path.is_dir() {
        let problem = "a finished episode exists here; record to another path, or set overwrite";
        return Err(Error::invalid(problem).with_path(Some(path)));
    }
    refuse_sidecars(path)
}

/// Opens and locks the first journal, and deals with what an earlier recording has left.
fn open_first(files: &RecordingFiles, options: &RecordOptions) -> Result<JournalWriter> {
    let mut journal = JournalWriter::open(&files.journal(0))?;
    let old = journal.old_size()?;
    match files.resolve_earlier(options.on_partial, options.sync != SyncPolicy::Never).and_then(|()| journal.clear()) {
        Ok(()) => Ok(journal),
        Err(e) => {
            if old == 0 {
                let _ = journal.remove(); // the first error counts
            }
            Err(e)
        }
    }
}

/// The error of everything that is asked of a recording after its end.
pub(crate) fn over() -> Error {
    Error::new(Code::Closed, "", "the recording is over")
}
