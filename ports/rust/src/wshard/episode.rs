//! Episodes, and what `meta/episode` and `meta/wshard` say about them (spec/wshard.md, section 3).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::block::Block;
use super::channel::Channel;
use super::fields::{as_count, as_int, given, others, wrong};
use super::join::JoinedLabel;
use super::label::Label;
use super::names::{Lane, META_EPISODE, META_PROVENANCE, join_keys};
use super::provenance::Provenance;
use super::residual::{DEFAULT_WINDOW, Residual, ResidualKind};
use super::rows::Row;
use super::timebase::Timebase;
use crate::json::{self, Object, Value};
use crate::shard::ShardReader;
use crate::{ContentType, Error, Result};

/// The fields of `meta/episode` and of `meta/wshard` that the format defines.
pub(crate) const EPISODE_FIELDS: [&str; 10] = [
    "episode_id",
    "id",
    "env_id",
    "length_T",
    "length_t",
    "timebase",
    "metadata",
    "chunk_index",
    "total_chunks",
    "timestep_range",
];
pub(crate) const WSHARD_FIELDS: [&str; 5] = ["endianness", "format", "residual_edges", "version", "timebase"];

/// One episode: what happened step by step, and what models predicted.
///
/// [`open`](super::open) gives one that reads its arrays when they are asked for, [`Episode::new`] an empty one, and
/// [`save`](super::save) writes one.
#[derive(Clone, Debug, Default)]
pub struct Episode {
    /// The name of the episode.
    pub id: String,
    /// The environment.
    pub env_id: String,
    /// T, the number of steps.
    pub length: u64,
    /// How steps become times.
    pub timebase: Timebase,
    /// Anything that the user adds.
    pub metadata: Object,
    /// Observations, actions, rewards, ends, clocks, predictions and uncertainties.
    pub lanes: BTreeMap<Lane, Channel>,
    /// Residuals by name: the channel, the model if there is one, and the type unless that is `sign2nddiff`.
    pub residuals: BTreeMap<String, Residual>,
    /// Labels by name. [`Episode::label`] reads one.
    pub labels: BTreeMap<String, LabelLane>,
    /// The entries that belong to no lane, by name. They are written again as they are.
    pub extras: BTreeMap<String, Extra>,
    /// Which chunk of a longer episode this is.
    pub chunk_index: Option<u64>,
    /// How many chunks the longer episode has.
    pub total_chunks: Option<u64>,
    /// The first and the last step of a chunk in the longer episode.
    pub timestep_range: Option<(i64, i64)>,
    /// Whether the edges of `sign2nddiff` residuals have the value of their neighbours (`residual_edges` is `overlap`).
    pub overlaps: bool,
    /// Which recording the episode was made from. [`Episode::read_provenance`] gives what a file has.
    pub provenance: Option<Provenance>,
    /// Fields of `meta/episode` that the format does not define.
    pub fields: Object,
    /// Fields of `meta/wshard` that the format does not define.
    pub format_fields: Object,
    /// What is wrong beside the episode: sidecars that were left out.
    pub warnings: Vec<Error>,
    pub(crate) origin: Option<Arc<Origin>>,
    /// Whether the episode is that of a journal, whose recorder named it.
    pub(crate) is_recorded: bool,
}

/// The files that an episode was opened from.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) reader: Arc<ShardReader>,
    /// Chunks and sidecars.
    pub(crate) others: Vec<Arc<ShardReader>>,
    /// The descriptions, and the rows of blocks in the file.
    pub(crate) episode: Object,
    pub(crate) wshard: Object,
    pub(crate) channels: Object,
    pub(crate) rows: BTreeMap<String, Arc<Row>>,
}

/// An entry that belongs to no lane.
#[derive(Clone, Debug)]
pub struct Extra {
    /// A hint about the content.
    pub content_type: ContentType,
    pub(crate) tag_bits: u16,
    pub(crate) data: Block,
    /// The entry as a channel, if a row describes it.
    pub(crate) channel: Option<Channel>,
}

impl Extra {
    /// An entry of some bytes.
    pub fn new(data: Vec<u8>, content_type: ContentType) -> Self {
        Self { content_type, ..Self::of(Block::memory(data)) }
    }

    pub(crate) fn of(data: Block) -> Self {
        Self { content_type: ContentType::UNKNOWN, tag_bits: 0, data, channel: None }
    }

    /// The bytes of the entry.
    pub fn data(&self) -> Result<Vec<u8>> {
        Ok(self.data.read()?.into_owned())
    }

    /// The entry as a channel, if a row describes it.
    pub fn channel(&self) -> Option<&Channel> {
        self.channel.as_ref()
    }
}

/// A label of an episode, in memory or still in its file.
#[derive(Clone, Debug)]
pub enum LabelLane {
    /// In memory.
    Here(Label),
    /// In a file.
    #[doc(hidden)]
    Stored(StoredLabel),
    /// In the chunks of an episode.
    #[doc(hidden)]
    Joined(Arc<JoinedLabel>),
}

/// A label that is still in its file.
#[derive(Clone, Debug)]
pub struct StoredLabel {
    pub(crate) reader: Arc<ShardReader>,
    pub(crate) name: String,
}

impl From<Label> for LabelLane {
    fn from(label: Label) -> Self {
        Self::Here(label)
    }
}

impl LabelLane {
    /// Reads the label (W-LAB).
    pub fn read(&self) -> Result<Label> {
        match self {
            Self::Here(label) => Ok(label.clone()),
            Self::Stored(stored) => {
                let fields = stored.reader.read_json(&stored.name, "W-LAB-1")?;
                Label::parse(&fields).map_err(|e| e.with_path(stored.reader.path()).with_entry(&stored.name))
            }
            Self::Joined(joined) => joined.read(),
        }
    }
}

impl Episode {
    /// An episode without channels.
    pub fn new(id: impl Into<String>, length: u64) -> Self {
        Self { id: id.into(), length, ..Self::default() }
    }

    /// Puts a channel into a lane.
    #[must_use]
    pub fn with(mut self, lane: Lane, channel: Channel) -> Self {
        self.lanes.insert(lane, channel);
        self
    }

    /// The observation of an id.
    pub fn observation(&self, id: &str) -> Option<&Channel> {
        self.lanes.get(&Lane::Signal(id.to_owned()))
    }

    /// The action of an id.
    pub fn action(&self, id: &str) -> Option<&Channel> {
        self.lanes.get(&Lane::Action(id.to_owned()))
    }

    /// A model's prediction of a channel.
    pub fn omen(&self, channel: &str, model: &str) -> Option<&Channel> {
        self.lanes.get(&Lane::Omen { channel: channel.to_owned(), model: model.to_owned() })
    }

    /// The uncertainty of a prediction.
    pub fn uncert(&self, channel: &str, model: &str, kind: &str) -> Option<&Channel> {
        let (channel, model, kind) = (channel.to_owned(), model.to_owned(), kind.to_owned());
        self.lanes.get(&Lane::Uncert { channel, model, kind })
    }

    /// The rewards.
    pub fn rewards(&self) -> Option<&Channel> {
        self.lanes.get(&Lane::Reward)
    }

    /// Reads a label; `None` if there is none of that name.
    pub fn label(&self, name: &str) -> Result<Option<Label>> {
        self.labels.get(name).map(LabelLane::read).transpose()
    }

    /// The times of the steps in nanoseconds; `None` if the episode knows neither timestamps nor a rate.
    pub fn times_ns(&self) -> Result<Option<Vec<i64>>> {
        match (self.lanes.get(&Lane::Timestamps), self.timebase.tick_hz) {
            (Some(times), _) => times.values().map(Some),
            (None, None) => Ok(None),
            (None, Some(_)) => (0..self.length).map(|t| self.timebase.time_ns(t)).collect(),
        }
    }

    /// Computes a residual of an observation, or of the observation minus a model's prediction. `window` is the number of
    /// steps that share a scale of `delta_q`; `None` for 256.
    pub fn add_residual(
        &mut self,
        channel: &str,
        model: Option<&str>,
        kind: ResidualKind,
        window: Option<u64>,
    ) -> Result<()> {
        let missing = || Error::invalid(format!("there is no observation {channel:?}, or no prediction of it"));
        // The observation after the last step has no residual.
        let cut = |found: &Channel| {
            if found.length > self.length { found.window(0, self.length) } else { Ok(found.clone()) }
        };
        let signal = cut(self.observation(channel).ok_or_else(missing)?)?;
        let omen = model.map(|model| cut(self.omen(channel, model).ok_or_else(missing)?)).transpose()?;
        let window = window.unwrap_or(DEFAULT_WINDOW);
        let mut found = Residual::compute(&signal, omen.as_ref(), kind, window, self.overlaps)?;
        found.channel = channel.to_owned();
        found.model = model.unwrap_or("").to_owned();
        let kind = if kind == ResidualKind::DeltaQ { kind.name() } else { "" };
        self.residuals.insert(join_keys(channel, &[&found.model, kind]), found);
        Ok(())
    }

    /// What the file says about its recording (W-PRV-1).
    pub fn read_provenance(&self) -> Result<Option<Provenance>> {
        let Some(origin) =
            self.origin.as_ref().filter(|origin| self.provenance.is_none() && origin.reader.contains(META_PROVENANCE))
        else {
            return Ok(self.provenance.clone());
        };
        let fields = origin.reader.read_json(META_PROVENANCE, "W-PRV-1")?;
        let found = Provenance::parse(&fields);
        found.map(Some).map_err(|e| e.with_path(origin.reader.path()).with_entry(META_PROVENANCE))
    }

    /// An episode of what `meta/episode` and `meta/wshard` state (W-EPI-1 to W-EPI-4, W-TIM-1).
    pub(crate) fn parse(episode: &Object, wshard: &Object) -> Result<Self> {
        let mut found = Self::default();
        found.parse_fields(episode).map_err(|e| e.with_entry(META_EPISODE))?;
        found.timebase = Timebase::parse(episode, wshard)?;
        found.overlaps = wshard.get("residual_edges").and_then(Value::as_str) == Some("overlap");
        found.fields = others(episode, &EPISODE_FIELDS);
        found.format_fields = others(wshard, &WSHARD_FIELDS);
        Ok(found)
    }

    fn parse_fields(&mut self, fields: &Object) -> Result<()> {
        let text = |value: Option<&Value>, field| match value {
            Some(Value::String(text)) => Ok(text.clone()),
            other => Err(wrong("W-EPI-1", field, "a string", other)),
        };
        self.id = text(fields.get("episode_id").or_else(|| fields.get("id")), "episode_id")?;
        if fields.contains_key("env_id") {
            self.env_id = text(fields.get("env_id"), "env_id")?;
        }
        let length = fields.get("length_T").or_else(|| fields.get("length_t"));
        let bad_length = || wrong("W-EPI-2", "length_T", "an integer from 0 to 2**63 - 1", length);
        self.length = length.and_then(as_count).ok_or_else(bad_length)?;
        match given(fields, "metadata") {
            None => {}
            Some(Value::Object(metadata)) => self.metadata = metadata.clone(),
            other => return Err(wrong("W-EPI-3", "metadata", "an object", other)),
        }
        let count = |field| match given(fields, field) {
            None => Ok(None),
            Some(value) => {
                as_count(value).map(Some).ok_or_else(|| wrong("W-EPI-4", field, "an integer of 0 or more", Some(value)))
            }
        };
        (self.chunk_index, self.total_chunks) = (count("chunk_index")?, count("total_chunks")?);
        if let (Some(index), Some(total @ 1..)) = (self.chunk_index, self.total_chunks)
            && index >= total
        {
            return Err(wrong("W-EPI-4", "chunk_index", "below total_chunks", fields.get("chunk_index")));
        }
        if let Some(value) = given(fields, "timestep_range") {
            let range = as_pair(value).filter(|(first, last)| first <= last);
            let range = range
                .ok_or_else(|| wrong("W-EPI-4", "timestep_range", "a list of two integers in order", Some(value)))?;
            // [0, 0] is what some writers store where nothing was set.
            self.timestep_range = (range != (0, 0) || self.length == 1).then_some(range);
        }
        Ok(())
    }

    /// `meta/episode` as it is stored.
    pub(crate) fn episode_fields(&self) -> Object {
        let mut fields = self.fields.clone();
        let mut set = |field: &str, value: Value| fields.insert(field.to_owned(), value);
        set("env_id", self.env_id.as_str().into());
        set("episode_id", self.id.as_str().into());
        set("length_T", self.length.into());
        set("timebase", self.timebase.fields().into());
        if !self.metadata.is_empty() {
            set("metadata", self.metadata.clone().into());
        }
        if let Some(index) = self.chunk_index {
            set("chunk_index", index.into());
        }
        if let Some(total) = self.total_chunks {
            set("total_chunks", total.into());
        }
        if let Some((first, last)) = self.timestep_range {
            set("timestep_range", [first, last].into_iter().collect());
        }
        fields
    }

    /// `meta/wshard` as it is stored.
    pub(crate) fn wshard_fields(&self) -> Object {
        let edges = if self.overlaps { "overlap" } else { "pad" };
        let mut fields = self.format_fields.clone();
        fields.extend(json::object([
            ("endianness", "little".into()),
            ("format", "W-SHARD".into()),
            ("residual_edges", edges.into()),
            ("version", "0.1".into()),
        ]));
        fields
    }
}

/// Two integers.
pub(crate) fn as_pair(value: &Value) -> Option<(i64, i64)> {
    match value.as_list()? {
        [first, last] => Some((as_int(first)?, as_int(last)?)),
        _ => None,
    }
}
