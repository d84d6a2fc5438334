//! Reads a journal, up to where it follows the rules (spec/journal.md, sections 3 to 7).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::frame::{Frame, Frames, Kind};
use super::runs::Runs;
use super::text::TextCheck;
use crate::json::{Object, Value, parse_object};
use crate::shard::{FileSource, Filters, Source};
use crate::wshard::dtype::{each, step_bytes};
use crate::wshard::episode::Episode;
use crate::wshard::fields::{as_count, bad_metadata, wrong};
use crate::wshard::label::Label;
use crate::wshard::names::{DONE, REWARD, REWARD_EXACT, TERMINATED, TIMESTAMPS, TRUNCATED, cut};
use crate::wshard::rows::Row;
use crate::{Code, DType, Error, Limits, Result};

/// The blocks that follow the steps and are not in a lane with names.
pub(crate) const FLAT_BLOCKS: [&str; 6] = [REWARD, REWARD_EXACT, DONE, TERMINATED, TRUNCATED, TIMESTAMPS];
const LARGEST_ENTRY: u64 = u32::MAX as u64;

pub(crate) fn offsets_name(block: &str) -> String {
    format!("offsets/{block}")
}

/// One channel of a journal.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) row: Arc<Row>,
    /// The bytes of an entry; of an item if the channel is ragged or text.
    pub(crate) step: u64,
    pub(crate) runs: Runs,
    /// The offsets of a ragged or text channel, and the channel that offsets belong to, by number.
    pub(crate) offsets: Option<usize>,
    pub(crate) owner: Option<usize>,
    /// With how many entries the recorder fills the channel for the steps before it.
    pub(crate) filled: u64,
    /// The entries in all runs; the items of a ragged or text channel.
    pub(crate) held: u64,
    pub(crate) last_offset: u64,
}

impl Recorded {
    pub(crate) fn is_text(&self) -> bool {
        self.row.text("layout") == "text"
    }

    fn is_ragged(&self) -> bool {
        !self.row.is_dense()
    }

    /// Whether the channel has one entry for each step.
    pub(crate) fn follows_steps(&self) -> bool {
        let block = self.row.block.as_str();
        let is_clock = block.starts_with("time/") && !FLAT_BLOCKS.contains(&block);
        self.owner.is_none() && self.row.text("time_block").is_empty() && !is_clock
    }
}

/// What a recording holds, up to where it follows the rules.
pub(crate) struct Journal {
    pub(crate) path: Option<PathBuf>,
    frames: Frames,
    /// The rule that stopped reading before the end of the file.
    pub(crate) reason: Option<Error>,
    /// `episode` of the start frame; `None` before it was read.
    pub(crate) start: Option<Object>,
    pub(crate) channels: Vec<Recorded>,
    pub(crate) by_block: HashMap<String, usize>,
    pub(crate) labels: BTreeMap<String, Label>,
    pub(crate) metadata: Object,
    pub(crate) dropped: Object,
    /// The number of steps, once it is final.
    pub(crate) length: Option<u64>,
    pub(crate) has_end: bool,
    /// Whether another journal follows.
    pub(crate) continues: bool,
    /// The number of the chunk, and of its first step.
    pub(crate) index: u64,
    pub(crate) first_step: u64,
    /// Whether the content of runs is checked (J-RUN-4, J-RAG-4) while they are read.
    decodes: bool,
}

impl Journal {
    /// Reads the journal at a path and checks all of it; one that this process wrote can be trusted.
    pub(crate) fn open(path: &Path, decodes: bool, is_trusted: bool) -> Result<Self> {
        let source: Arc<dyn Source> = Arc::new(FileSource::open(path)?);
        let mut journal = Self::parse(source, decodes, is_trusted).map_err(|e| e.with_path(Some(path)))?;
        journal.path = Some(path.to_path_buf());
        journal.reason = journal.reason.map(|reason| reason.with_path(Some(path)));
        Ok(journal)
    }

    /// Reads frames up to the first one that breaks a rule (J-2). Without a start that follows the rules, it fails (J-1).
    pub(crate) fn parse(source: Arc<dyn Source>, decodes: bool, is_trusted: bool) -> Result<Self> {
        let mut journal = Self::new(&source, decodes, is_trusted);
        journal.read(None)?;
        if decodes && let Some((offset, error)) = journal.first_bad_text()? {
            // Read again, up to there; the contents are known to be good.
            journal = Self::new(&source, false, is_trusted);
            journal.read(Some((offset, &error)))?;
        }
        match (&journal.start, journal.reason.take()) {
            (Some(_), reason) => {
                journal.reason = reason;
                Ok(journal)
            }
            (None, Some(reason)) => Err(reason),
            (None, None) => {
                Err(Error::invalid("nothing was recorded yet").with_rule("J-1").with_found("an empty file"))
            }
        }
    }

    fn new(source: &Arc<dyn Source>, decodes: bool, is_trusted: bool) -> Self {
        let mut frames = Frames::new(Arc::clone(source));
        frames.is_trusted = is_trusted;
        Self {
            path: None,
            frames,
            reason: None,
            start: None,
            channels: Vec::new(),
            by_block: HashMap::new(),
            labels: BTreeMap::new(),
            metadata: Object::new(),
            dropped: Object::new(),
            length: None,
            has_end: false,
            continues: false,
            index: 0,
            first_step: 0,
            decodes,
        }
    }

    /// Takes frames up to the first one that breaks a rule, or to one that is known to. Only a failure of the disk is an
    /// error.
    fn read(&mut self, bad: Option<(u64, &Error)>) -> Result<()> {
        loop {
            let taken = self.frames.next().and_then(|frame| match (frame, bad) {
                (Some(frame), Some((offset, error))) if frame.offset == offset => Err(error.clone()),
                (Some(frame), _) => self.take(&frame).map(|()| Some(frame)),
                (None, _) => Ok(None),
            });
            match taken {
                Ok(Some(frame)) => self.frames.accept(&frame),
                Ok(None) => return Ok(()),
                Err(error) if error.code() == Code::IoError => return Err(error),
                Err(error) => {
                    self.reason = Some(error);
                    return Ok(());
                }
            }
        }
    }

    /// The bytes of the frames that count.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.frames.position
    }

    /// The bytes after them.
    pub(crate) fn lost_bytes(&self) -> u64 {
        self.frames.source.len().saturating_sub(self.frames.position)
    }

    /// Whether the recorder has ended the recording.
    pub(crate) fn is_finished(&self) -> bool {
        self.has_end && !self.continues
    }

    /// Adds what a frame holds: all of it or, with an error, nothing.
    fn take(&mut self, frame: &Frame) -> Result<()> {
        if frame.head.kind == Kind::Run {
            return self.take_run(frame);
        }
        let limits = Limits::default();
        if u64::from(frame.head.content_size) > limits.max_json_bytes {
            return Err(Error::new(Code::LimitExceeded, "J-TXT-2", "the JSON of a frame is longer than 16 MiB"));
        }
        let fields = parse_object(&self.frames.stored(frame)?, "the content of a frame", "J-TXT-1", &limits);
        let fields = fields.map_err(|e| if e.code() == Code::LimitExceeded { e.with_rule("J-TXT-2") } else { e })?;
        if frame.head.kind == Kind::Start {
            return self.take_start(&fields);
        }
        self.take_note(&fields)?;
        self.has_end = frame.head.kind == Kind::End;
        Ok(())
    }

    // --- start

    fn take_start(&mut self, fields: &Object) -> Result<()> {
        if fields.get("v") != Some(&Value::Int(1)) {
            return Err(wrong("J-STA-1", "v", "the integer 1", fields.get("v")).with_code(Code::UnsupportedVersion));
        }
        let Some(Value::Object(episode)) = fields.get("episode") else {
            return Err(wrong("J-STA-2", "episode", "an object", fields.get("episode")));
        };
        Episode::parse(&with_length(episode, 0), &Object::new()).map_err(|e| as_rule(e, "J-STA-2"))?;
        let (index, first_step) = match fields.get("chunk") {
            None | Some(Value::Null) => (0, 0),
            Some(chunk) => {
                let count = |field| chunk.get(field).and_then(as_count);
                let bad = || bad_metadata("J-STA-3", "'chunk' does not say which part of a recording this is");
                (count("index").filter(|index| *index > 0).ok_or_else(bad)?, count("first_step").ok_or_else(bad)?)
            }
        };
        let added = self.new_channels(fields.get("channels"))?;
        (self.index, self.first_step) = (index, first_step);
        self.add_channels(added);
        self.start = Some(episode.clone());
        Ok(())
    }

    // --- channels

    /// Checks rows (J-CHN).
    fn new_channels(&self, value: Option<&Value>) -> Result<Vec<Recorded>> {
        let Some(list) = value.and_then(Value::as_list) else {
            return Err(wrong("J-CHN-1", "channels", "a list", value));
        };
        let mut added: Vec<Recorded> = Vec::new();
        let mut names = HashSet::new();
        for item in list {
            let row = Row::parse(item, None).map_err(|e| as_rule(e, "J-CHN-1"))?;
            if self.by_block.contains_key(&row.block) || !names.insert(row.block.clone()) {
                return Err(bad_metadata(
                    "J-CHN-2",
                    format!("two rows of the journal describe the block {:.80?}", row.block),
                ));
            }
            let number = self.channels.len().saturating_add(added.len());
            let mut owner = None;
            if let Some(before) = added.last_mut().filter(|before| before.is_ragged()) {
                before.offsets = Some(number);
                owner = Some((number.saturating_sub(1), before.row.block.clone()));
            }
            let Some(step) = recordable_step(&row, owner.as_ref().map(|(_, block)| block.as_str())) else {
                return Err(bad_metadata(
                    "J-CHN-3",
                    format!("the row of the block {:.80?} cannot be recorded", row.block),
                ));
            };
            added.push(Recorded {
                row: Arc::new(row),
                step,
                runs: Runs::new(&self.frames.source),
                offsets: None,
                owner: owner.map(|(number, _)| number),
                filled: 0,
                held: 0,
                last_offset: 0,
            });
        }
        match added.last() {
            Some(last) if last.is_ragged() => {
                Err(bad_metadata("J-CHN-3", format!("the offsets of {:.80?} are not the next row", last.row.block)))
            }
            _ => Ok(added),
        }
    }

    fn add_channels(&mut self, added: Vec<Recorded>) {
        for one in added {
            self.by_block.insert(one.row.block.clone(), self.channels.len());
            self.channels.push(one);
        }
    }

    // --- notes

    fn take_note(&mut self, fields: &Object) -> Result<()> {
        let object = |field| match fields.get(field) {
            None => Ok(Object::new()),
            Some(Value::Object(object)) => Ok(object.clone()),
            other => Err(wrong("J-NOT-1", field, "an object", other)),
        };
        let (metadata, dropped, filters) = (object("metadata")?, object("dropped")?, object("filters")?);
        // Those above 2**63 - 1 count as that.
        let count = |field| match fields.get(field) {
            None => Ok(None),
            Some(value) if value.is_natural() => Ok(Some(as_count(value).unwrap_or(i64::MAX as u64))),
            other => Err(wrong("J-NOT-1", field, "an integer of 0 or more", other)),
        };
        let (length, filled) = (count("length_T")?, count("filled")?);
        let continues = match fields.get("continues") {
            None => false,
            Some(Value::Bool(continues)) => *continues,
            other => return Err(wrong("J-NOT-1", "continues", "true or false", other)),
        };
        let label = self.note_label(fields)?;
        let mut added = match fields.get("channels") {
            None => Vec::new(),
            listed => self.new_channels(listed)?,
        };
        let filters = self.note_filters(&filters, &added)?;
        // From here on nothing can fail.
        added.iter_mut().for_each(|one| one.filled = filled.unwrap_or(0));
        self.add_channels(added);
        for (block, filters) in filters {
            if let Some(channel) = self.by_block.get(&block).and_then(|number| self.channels.get_mut(*number)) {
                channel.runs.filters = Some(filters);
            }
        }
        if let Some((name, label)) = label {
            let known = self.labels.entry(name).or_insert_with(|| Label { unit: label.unit, intervals: Vec::new() });
            known.intervals.extend(label.intervals);
        }
        self.length = length.or(self.length);
        self.continues = continues;
        self.metadata.extend(metadata);
        self.dropped.extend(dropped);
        Ok(())
    }

    /// An interval, and the lane that it belongs to.
    fn note_label(&self, fields: &Object) -> Result<Option<(String, Label)>> {
        let Some(interval) = fields.get("interval") else {
            return Ok(None);
        };
        let name = fields.get("label").and_then(Value::as_str).filter(|name| !name.is_empty());
        let name =
            name.ok_or_else(|| wrong("J-NOT-1", "label", "a string with something in it", fields.get("label")))?;
        let mut lane = Object::from([("intervals".to_owned(), Value::List(vec![interval.clone()]))]);
        if let Some(unit) = fields.get("unit") {
            lane.insert("unit".into(), unit.clone());
        }
        let label = Label::parse(&lane).map_err(|e| as_rule(e, "J-NOT-1"))?;
        if self.labels.get(name).is_some_and(|known| known.unit != label.unit) {
            return Err(bad_metadata("J-NOT-1", format!("the intervals of the label {name:.80?} have two units")));
        }
        Ok(Some((name.to_owned(), label)))
    }

    /// The filters of a note, by block (J-FLT).
    fn note_filters(&self, listed: &Object, added: &[Recorded]) -> Result<Vec<(String, Filters)>> {
        let mut found = Vec::new();
        for (block, list) in listed {
            let known = self.by_block.get(block).and_then(|number| self.channels.get(*number));
            let known = known.or_else(|| added.iter().find(|one| one.row.block == *block));
            let Some(known) = known.filter(|one| one.runs.list.is_empty() && one.runs.filters.is_none()) else {
                let problem = format!("a note has filters for {block:.80?}, which is unknown or has begun");
                return Err(bad_metadata("J-FLT-1", problem));
            };
            let filters = Filters::from_json(list).map_err(|e| e.with_rule("J-FLT-2").with_entry(block))?;
            let size = usize::try_from(known.step).unwrap_or(usize::MAX);
            filters.check_frame(size).map_err(|e| e.with_rule("J-FLT-3").with_entry(block))?;
            found.push((block.clone(), filters));
        }
        Ok(found)
    }

    // --- runs

    fn take_run(&mut self, frame: &Frame) -> Result<()> {
        let number = usize::from(frame.head.channel);
        let Some(channel) = self.channels.get(number) else {
            let problem = format!("a run belongs to the unknown channel {number}");
            return Err(Error::new(Code::BadHeader, "J-RUN-1", problem));
        };
        let locate = |e: Error| e.with_entry(&channel.row.block);
        channel.runs.check(&self.frames, frame, channel.step, channel.is_text(), self.decodes).map_err(locate)?;
        let mut last_offset = 0;
        if let Some(owner) = channel.owner.and_then(|owner| self.channels.get(owner)) {
            last_offset = self.check_offsets(channel, owner, frame).map_err(locate)?;
        }
        if let Some(channel) = self.channels.get_mut(number) {
            channel.last_offset = last_offset;
            channel.held = channel.held.saturating_add(u64::from(frame.head.entries));
            channel.runs.add(frame);
        }
        Ok(())
    }

    /// Checks J-RAG-1 to J-RAG-3, and gives the last offset.
    fn check_offsets(&self, channel: &Recorded, owner: &Recorded, frame: &Frame) -> Result<u64> {
        let bad = |rule, problem: String| Error::new(Code::BadValue, rule, problem);
        if frame.head.is_compressed {
            return Err(Error::new(Code::BadHeader, "J-RAG-1", "a run of offsets is compressed"));
        }
        let (mut last, mut is_first) = (channel.last_offset.cast_signed(), channel.runs.list.is_empty());
        self.frames.pieces(frame, |piece| {
            for offset in each(piece, i64::from_le_bytes) {
                if (is_first && offset != 0) || offset < last {
                    return Err(bad(
                        "J-RAG-2",
                        format!("the first offset is not 0, or offsets run backwards: {offset} after {last}"),
                    ));
                }
                (last, is_first) = (offset, false);
            }
            Ok(())
        })?;
        if last.cast_unsigned() > owner.held {
            return Err(bad("J-RAG-3", format!("an offset counts {last} items of {}", owner.held)));
        }
        Ok(last.cast_unsigned())
    }

    // --- text

    /// The first frame that completes a string that is not UTF-8 (J-RAG-4), by its offset. It goes through one channel after
    /// the other, so that each run is decoded once and one of them is in memory at a time.
    fn first_bad_text(&self) -> Result<Option<(u64, Error)>> {
        let mut first: Option<(u64, Error)> = None;
        for channel in self.channels.iter().filter(|channel| channel.is_text()) {
            if let Some(offset) = self.bad_text_of(channel)?
                && first.as_ref().is_none_or(|(before, _)| offset < *before)
            {
                let error =
                    Error::new(Code::BadValue, "J-RAG-4", "a string is not UTF-8").with_entry(&channel.row.block);
                first = Some((offset, error));
            }
        }
        Ok(first)
    }

    fn bad_text_of(&self, channel: &Recorded) -> Result<Option<u64>> {
        let Some(offsets) = channel.offsets.and_then(|offsets| self.channels.get(offsets)) else {
            return Ok(None);
        };
        let mut text = TextCheck::new(&channel.runs);
        let mut start = 0;
        for run in &offsets.runs.list {
            let end = u64::saturating_add(start, run.stored.into());
            for offset in each(&offsets.runs.read_range(start, end)?, u64::from_le_bytes) {
                if !text.is_valid_up_to(offset)? {
                    return Ok(Some(run.offset));
                }
            }
            start = end;
        }
        Ok(None)
    }
}

/// The size of an entry, or of an item, of a row that can be recorded (J-CHN-3). `owner` is the block of a ragged channel
/// whose offsets must be this row's.
fn recordable_step(row: &Row, owner: Option<&str>) -> Option<u64> {
    let (lane, _) = cut(&row.block);
    let has_name = matches!(lane, "signal" | "action");
    let is_flat = row.shape.is_empty();
    let is_placed = match owner {
        Some(owner) => {
            row.block == offsets_name(owner) && row.text("time_block").is_empty() && row.dtype == DType::I64 && is_flat
        }
        None => {
            let is_clock = row.block.starts_with("time/");
            FLAT_BLOCKS.contains(&row.block.as_str())
                || is_clock
                || (has_name && row.block == format!("{lane}/{}", row.id))
        }
    };
    let offsets = row.text("offsets_block");
    let is_known = match row.text("layout") {
        _ if row.is_dense() => offsets.is_empty(),
        "ragged" => has_name && offsets == offsets_name(&row.block),
        "text" => has_name && offsets == offsets_name(&row.block) && row.dtype == DType::U8 && is_flat,
        _ => false,
    };
    let is_given = |field| row.fields.get(field).is_some_and(|value| !value.is_null());
    let step = step_bytes(row.dtype, &row.shape).filter(|step| (1..=LARGEST_ENTRY).contains(step))?;
    (is_placed && is_known && !is_given("length") && !is_given("start_ns")).then_some(step)
}

/// `meta/episode` of a start frame, which has no length of its own.
pub(crate) fn with_length(episode: &Object, steps: u64) -> Object {
    let mut fields = episode.clone();
    fields.insert("length_T".into(), steps.into());
    fields
}

/// Which rule of the journal an error about a description breaks.
fn as_rule(error: Error, rule: &'static str) -> Error {
    error.with_rule(rule).with_code(Code::BadMetadata)
}
