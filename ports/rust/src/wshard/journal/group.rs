//! The channels of a recording, and what waits to be written of them.

use std::time::Instant;

use super::frame::{Kind, LARGEST_RUN};
use super::read::offsets_name;
use super::runs::LARGEST_LIMITED;
use super::writer::JournalWriter;
use crate::json::{self, Object, Value};
use crate::shard::{Delta, Filters, frames};
use crate::wshard::block::Block;
use crate::wshard::channel::{Channel, Layout};
use crate::wshard::dtype::step_bytes;
use crate::wshard::names::Lane;
use crate::wshard::plan::{check_row, row_for};
use crate::{DType, Error, Result};

/// The size of a buffer that is full, however few steps it has.
const LARGEST_BUFFER: u64 = 16 << 20;
/// How many runs a file with a limit holds at least before it is full.
const RUNS_IN_FILE: u64 = 8;
/// How much of the first run of a channel is tried to compress; more tells little more.
const TRIED: u64 = 1 << 20;

/// Declares a channel of a recording.
#[derive(Clone, Debug)]
pub struct ChannelDef {
    pub(crate) lane: Lane,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<u64>,
    pub(crate) layout: Layout,
    pub(crate) has_own_clock: bool,
    pub(crate) about: Object,
}

impl ChannelDef {
    fn new(lane: Lane, dtype: DType, shape: &[u64]) -> Self {
        let shape = shape.to_vec();
        Self { lane, dtype, shape, layout: Layout::Dense, has_own_clock: false, about: Object::new() }
    }

    /// An observation; the shape is that of one step.
    pub fn signal(id: &str, dtype: DType, shape: &[u64]) -> Self {
        Self::new(Lane::Signal(id.to_owned()), dtype, shape)
    }

    /// An action; the shape is that of one step.
    pub fn action(id: &str, dtype: DType, shape: &[u64]) -> Self {
        Self::new(Lane::Action(id.to_owned()), dtype, shape)
    }

    /// An observation that is one string for each step.
    pub fn text(id: &str) -> Self {
        Self { layout: Layout::Text, ..Self::signal(id, DType::U8, &[]) }
    }

    /// Any number of items for each step, each of the type and shape.
    #[must_use]
    pub fn ragged(self) -> Self {
        Self { layout: Layout::Ragged, ..self }
    }

    /// Entries have times of their own: record them with [`write`](super::Recorder::write).
    #[must_use]
    pub fn with_own_clock(self) -> Self {
        Self { has_own_clock: true, ..self }
    }

    /// Sets a field of the channel's row, such as `unit`.
    #[must_use]
    pub fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.about.insert(field.to_owned(), value.into());
        self
    }
}

/// A channel while it is recorded.
#[derive(Debug)]
pub(crate) struct Writing {
    pub(crate) id: String,
    pub(crate) block: String,
    layout: Layout,
    dtype: DType,
    /// The bytes of an entry; of an item if the channel is ragged or text.
    entry: usize,
    row: Object,
    /// The number of its row in the journal; its offsets have the next one.
    number: u16,
    /// How to store it, once the first run has shown that: compressed or not, and with filters.
    choice: Option<(bool, Option<Filters>)>,
    /// Whether the journal knows the filters.
    is_announced: bool,
    /// The items in the current journal, and whether their first offset is there.
    items: u64,
    has_offsets: bool,
    /// What waits to be written, and the items of each entry of a ragged or text channel.
    values: Vec<u8>,
    sizes: Vec<u64>,
    /// The content that the current file has compressed.
    pub(crate) compressed: u64,
}

impl Writing {
    /// Checks a declaration.
    pub(crate) fn declared(def: &ChannelDef) -> Result<Self> {
        let block = def.lane.block_name();
        Self::of(def, &block).map_err(|e| e.with_entry(&block))
    }

    fn of(def: &ChannelDef, block: &str) -> Result<Self> {
        def.lane.check()?;
        let (Lane::Signal(id) | Lane::Action(id)) = &def.lane else {
            return Err(Error::invalid("only observations and actions are declared as channels"));
        };
        let size = step_bytes(def.dtype, &def.shape).filter(|size| (1..=u64::from(LARGEST_RUN)).contains(size));
        let entry = size.and_then(|size| usize::try_from(size).ok());
        let entry = entry.ok_or_else(|| Error::invalid("one step of this channel is empty or too large"))?;
        if !matches!(def.layout, Layout::Dense | Layout::Ragged | Layout::Text) {
            return Err(Error::invalid("this layout cannot be recorded"));
        }
        let mut channel = Channel::new(def.dtype, &def.shape, 0, Block::memory([]));
        (channel.layout, channel.about) = (def.layout.clone(), def.about.clone());
        let mut row = row_for(&channel, id, block, 0)?;
        if def.layout != Layout::Dense {
            row.insert("offsets_block".into(), offsets_name(block).into());
        }
        if def.has_own_clock {
            row.insert("time_block".into(), format!("time/{block}").into());
        }
        check_row(&row)?;
        Ok(Self { id: id.clone(), layout: def.layout.clone(), ..Self::with_row(block, def.dtype, entry, row) })
    }

    /// A field of a step that has no name of its own.
    pub(crate) fn flat(block: &str, dtype: DType) -> Self {
        let row = [
            ("dtype", dtype.name().into()),
            ("id", block.into()),
            ("shape", Value::List(Vec::new())),
            ("signal_block", block.into()),
        ];
        Self::with_row(block, dtype, dtype.size(), json::object(row))
    }

    fn with_row(block: &str, dtype: DType, entry: usize, row: Object) -> Self {
        Self {
            id: block.to_owned(),
            block: block.to_owned(),
            layout: Layout::Dense,
            dtype,
            entry,
            row,
            number: 0,
            choice: None,
            is_announced: false,
            items: 0,
            has_offsets: false,
            values: Vec::new(),
            sizes: Vec::new(),
            compressed: 0,
        }
    }

    fn is_ragged(&self) -> bool {
        self.layout != Layout::Dense
    }

    /// Whether a value fits the channel.
    pub(crate) fn check(&self, value: &[u8]) -> Result<()> {
        let fits = match self.layout {
            Layout::Dense => value.len() == self.entry,
            Layout::Text => value.len() <= LARGEST_LIMITED as usize / 2 && std::str::from_utf8(value).is_ok(),
            _ => value.len().checked_rem(self.entry) == Some(0) && value.len() <= LARGEST_RUN as usize / 2,
        };
        if fits {
            return Ok(());
        }
        let expected = match self.layout {
            Layout::Dense => format!("{} bytes", self.entry),
            Layout::Text => "UTF-8 of at most 32 MiB".to_owned(),
            _ => format!("a multiple of {} bytes, at most 512 MiB", self.entry),
        };
        let problem = Error::invalid("a value does not fit its channel").with_entry(&self.block);
        Err(problem.with_expected(expected).with_found(format_args!("{} bytes", value.len())))
    }

    pub(crate) fn add(&mut self, value: &[u8]) {
        self.values.extend_from_slice(value);
        if self.is_ragged() {
            self.sizes.push(value.len().checked_div(self.entry).unwrap_or(0) as u64);
        }
    }

    /// Forgets what the journal knew: another one follows.
    pub(crate) fn move_on(&mut self) {
        (self.items, self.has_offsets, self.is_announced, self.compressed) = (0, false, false, 0);
    }

    /// Writes the first entries that wait, as the next run.
    pub(crate) fn write(&mut self, journal: &mut JournalWriter, count: usize, compression: Option<i32>) -> Result<()> {
        let items: u64 = self.sizes.iter().take(count).sum();
        let items = if self.is_ragged() { usize::try_from(items).unwrap_or(usize::MAX) } else { count };
        let rest = self.values.split_off(items.saturating_mul(self.entry).min(self.values.len()));
        let content = std::mem::replace(&mut self.values, rest);
        if !content.is_empty() {
            self.add_run(journal, &content, items, compression).map_err(|e| e.with_entry(&self.block))?;
        }
        if !self.is_ragged() {
            return Ok(());
        }
        // The items are there: now where each entry ends (J-RAG).
        let mut offsets = Vec::new();
        if !self.has_offsets {
            self.has_offsets = true;
            offsets.extend(0u64.to_le_bytes());
        }
        for size in self.sizes.drain(..count.min(self.sizes.len())) {
            self.items = self.items.saturating_add(size);
            offsets.extend(self.items.to_le_bytes());
        }
        let entries = u32::try_from(offsets.len() / 8).unwrap_or(u32::MAX);
        journal.add_run(self.number.saturating_add(1), entries, &offsets, None)
    }

    fn add_run(
        &mut self,
        journal: &mut JournalWriter,
        content: &[u8],
        entries: usize,
        compression: Option<i32>,
    ) -> Result<()> {
        let entries = u32::try_from(entries).unwrap_or(u32::MAX);
        let choice = match (self.choice, compression) {
            (Some(choice), _) => choice,
            (None, None) => (false, None),
            (None, Some(level)) => self.choose(content, level)?,
        };
        self.choice = Some(choice);
        let (true, filters) = choice else {
            return journal.add_run(self.number, entries, content, None);
        };
        if let Some(filters) = filters.filter(|_| !self.is_announced) {
            let listed = Object::from([(self.block.clone(), filters.to_json())]);
            journal.add_text(Kind::Note, &json::object([("filters", listed.into())]))?;
            self.is_announced = true;
        }
        let mut stored = Vec::new();
        frames::append_frame(&mut stored, content, compression.unwrap_or(3), filters.as_ref())?;
        self.compressed = self.compressed.saturating_add(content.len() as u64);
        journal.add_run(self.number, entries, content, Some(&stored))
    }

    /// Tries on the first run how to store the channel. Noise does not compress (S-CMP-10). A camera sees little change from
    /// step to step, so that differences compress better.
    fn choose(&self, content: &[u8], level: i32) -> Result<(bool, Option<Filters>)> {
        let held = content.len().checked_div(self.entry).unwrap_or(0);
        let is_small = self.entry <= LARGEST_LIMITED as usize / 2;
        let is_camera = matches!(self.dtype, DType::U8 | DType::U16) && !self.is_ragged() && held > 1 && is_small;
        // Differences need two steps.
        let least = if is_camera { 2 } else { 1 };
        let entries = usize::try_from(TRIED).unwrap_or(0).checked_div(self.entry).unwrap_or(0).max(least).min(held);
        let tried = content.get(..entries.saturating_mul(self.entry)).unwrap_or(content);
        let size = |filters: Option<&Filters>| {
            let mut out = Vec::new();
            frames::append_frame(&mut out, tried, level, filters).map(|()| out.len())
        };
        let plain = size(None)?;
        let mut best = (plain, None);
        if is_camera {
            let delta = Delta { order: 1, width: self.dtype.size(), row: self.entry };
            let filters = Filters { delta: Some(delta), planes: None };
            let smaller = size(Some(&filters))?;
            if smaller < plain {
                best = (smaller, Some(filters));
            }
        }
        let is_worth_it = best.0 < tried.len().saturating_mul(9) / 10;
        Ok((is_worth_it, best.1.filter(|_| is_worth_it)))
    }
}

/// Channels that are filled together.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) channels: Vec<Writing>,
    /// How many of the channels have values by name; the others are fields of steps.
    pub(crate) named: usize,
    /// How many entries a run holds, and how many bytes.
    pub(crate) most: usize,
    largest: u64,
    /// The entries that wait, and since when.
    pub(crate) count: usize,
    pub(crate) since: Option<Instant>,
    pub(crate) last_time: Option<i64>,
}

impl Group {
    pub(crate) fn new(channels: Vec<Writing>, named: usize, flush_steps: usize, max_bytes: Option<u64>) -> Self {
        let largest = max_bytes.map_or(LARGEST_BUFFER, |most| (most / RUNS_IN_FILE).clamp(1, LARGEST_BUFFER));
        let step =
            channels.iter().filter(|one| !one.is_ragged()).fold(1u64, |sum, one| sum.saturating_add(one.entry as u64));
        let most = usize::try_from(largest.checked_div(step).unwrap_or(1)).unwrap_or(usize::MAX);
        Self { channels, named, most: flush_steps.min(most).max(1), largest, count: 0, since: None, last_time: None }
    }

    /// Gives the channels their numbers in the journal, and adds their rows to others.
    pub(crate) fn number(&mut self, rows: &mut Vec<Value>) -> Result<()> {
        for channel in &mut self.channels {
            let too_many = |_| Error::invalid("too many channels for a journal");
            channel.number = u16::try_from(rows.len().saturating_add(1)).map_err(too_many)?.saturating_sub(1);
            rows.push(channel.row.clone().into());
            if channel.is_ragged() {
                rows.push(Writing::flat(&offsets_name(&channel.block), DType::I64).row.into());
            }
        }
        Ok(())
    }

    pub(crate) fn is_full(&self) -> bool {
        let ragged = self.channels.iter().filter(|one| one.is_ragged()).map(|one| one.values.len() as u64).sum::<u64>();
        self.count >= self.most || ragged >= self.largest
    }

    /// The bytes that wait.
    pub(crate) fn bytes(&self) -> u64 {
        self.channels.iter().map(|one| one.values.len() as u64).sum()
    }

    pub(crate) fn check_time(&self, time: i64) -> Result<()> {
        match self.last_time {
            Some(last) if time < last => Err(Error::invalid("time runs backwards")
                .with_expected(format_args!("at least {last}"))
                .with_found(time)),
            _ => Ok(()),
        }
    }
}
