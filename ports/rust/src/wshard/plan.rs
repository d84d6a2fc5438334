//! Lays out the file of an episode (spec/wshard.md, section 15).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::block::Block;
use super::channel::{Channel, Layout};
use super::dtype::{step_bytes, times};
use super::episode::{EPISODE_FIELDS, Episode, Origin, WSHARD_FIELDS};
use super::names::{
    Lane, META_CHANNELS, META_EPISODE, META_PROVENANCE, META_WSHARD, REWARD, STEP_BLOCKS, TICKS, TIMESTAMPS,
    compare_in_file, is_extra, join_keys, may_have_one_more,
};
use super::rows::{Row, is_known_field, is_own_field, row_id};
use super::video::Frame;
use crate::json::{self, Object, Value};
use crate::{ContentType, Error, Result, Role};

/// One entry of the file to be.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) content: Block,
    pub(crate) content_type: ContentType,
    pub(crate) tag_bits: u16,
    /// Texts, and pictures that are encoded already, are not compressed.
    pub(crate) is_compressible: bool,
}

pub(crate) struct Plan<'a> {
    pub(crate) ep: &'a Episode,
    /// The file whose form is kept; `None` for a new episode, and for one of several files.
    pub(crate) origin: Option<&'a Origin>,
    pub(crate) entries: BTreeMap<String, Entry>,
    /// The rows of blocks as our writers make them.
    pub(crate) rows: BTreeMap<String, Object>,
    /// The clocks of channels, by name.
    clocks: BTreeMap<String, Vec<u8>>,
}

impl<'a> Plan<'a> {
    fn new(ep: &'a Episode) -> Self {
        let origin = ep.origin.as_deref().filter(|origin| origin.reader.role() == Role::WSHARD);
        Self { ep, origin, entries: BTreeMap::new(), rows: BTreeMap::new(), clocks: BTreeMap::new() }
    }

    /// Checks an episode and gives the entries of its file, in order, without `meta/identity`.
    pub(crate) fn entries(ep: &'a Episode) -> Result<Vec<Entry>> {
        let mut plan = Self::new(ep);
        plan.check_facts()?;
        plan.add_lanes(false)?;
        plan.add_ends()?;
        plan.add_clocks()?;
        plan.add_labels()?;
        plan.add_provenance()?;
        plan.add_descriptions()?;
        Ok(plan.in_order())
    }

    /// The rows of all channels that can be saved.
    pub(crate) fn rows(ep: &'a Episode) -> BTreeMap<String, Object> {
        let mut plan = Self::new(ep);
        let _ = plan.add_lanes(true); // which leaves out what cannot be saved
        plan.rows
    }

    fn check_facts(&self) -> Result<()> {
        let ep = self.ep;
        if ep.id.is_empty() && self.origin.is_none() && !ep.is_recorded {
            return Err(Error::invalid("an episode needs an id"));
        }
        if ep.timebase.tick_hz.is_some_and(|rate| !(rate.is_finite() && rate > 0.0)) {
            return Err(Error::invalid("the rate of the timebase is not a number above 0"));
        }
        let known = ep.fields.keys().filter(|key| EPISODE_FIELDS.contains(&key.as_str()));
        let known = known.chain(ep.format_fields.keys().filter(|key| WSHARD_FIELDS.contains(&key.as_str())));
        if let Some(key) = known.into_iter().next() {
            return Err(Error::invalid(format!("fields or format_fields has '{key}', which an episode has already")));
        }
        // What is written must be what readers accept.
        let refused = |e| Error::invalid("readers would refuse the episode").with_entry(META_EPISODE).with_source(e);
        Episode::parse(&ep.episode_fields(), &Object::new()).map(drop).map_err(refused)
    }

    // --- entries

    pub(crate) fn add(&mut self, entry: Entry) -> Result<()> {
        let name = entry.name.clone();
        match self.entries.insert(name.clone(), entry) {
            None => Ok(()),
            Some(_) => Err(Error::invalid("two lanes give a block of the same name").with_entry(&name)),
        }
    }

    pub(crate) fn add_json(&mut self, name: &str, fields: &Object) -> Result<()> {
        let text = json::canonical(fields).map_err(|e| e.with_entry(name))?;
        let content = Block::memory(text.into_bytes());
        self.add(Entry {
            name: name.to_owned(),
            content,
            content_type: ContentType::JSON,
            tag_bits: 0,
            is_compressible: false,
        })
    }

    pub(super) fn add_block(&mut self, name: &str, content: Block) -> Result<()> {
        self.add(Entry {
            name: name.to_owned(),
            content,
            content_type: ContentType::UNKNOWN,
            tag_bits: 0,
            is_compressible: true,
        })
    }

    /// Keeps a text of the origin, to the last space.
    pub(crate) fn keep_text(&mut self, name: &str) -> Result<()> {
        let Some(origin) = self.origin else {
            return Ok(());
        };
        let row = origin.reader.info(name)?.row;
        let content = Block::entry(&origin.reader, name);
        self.add(Entry {
            name: name.to_owned(),
            content,
            content_type: row.content_type,
            tag_bits: row.tag_bits,
            is_compressible: false,
        })
    }

    /// Keeps those of some blocks that the origin has, and that no other channel has kept.
    pub(super) fn keep_blocks(&mut self, names: &[&str]) -> Result<()> {
        for (i, name) in names.iter().enumerate() {
            let is_elsewhere = i > 0 && STEP_BLOCKS.contains(name);
            let Some(origin) = self.origin.filter(|origin| origin.reader.contains(name)) else {
                continue;
            };
            if !self.entries.contains_key(*name) && !is_elsewhere {
                self.add_block(name, Block::entry(&origin.reader, name))?;
            }
        }
        Ok(())
    }

    /// All entries: in the order of the origin, then by lanes and names.
    fn in_order(mut self) -> Vec<Entry> {
        let mut names: Vec<String> = self.entries.keys().cloned().collect();
        names.sort_by(|a, b| compare_in_file(a, b));
        if let Some(origin) = self.origin {
            let mut before: Vec<String> =
                origin.reader.names().filter(|name| self.entries.contains_key(*name)).map(str::to_owned).collect();
            for name in &before {
                let is_defined = !is_extra(name) && !name.starts_with("meta/");
                if let (Some(row), Some(entry)) = (origin.reader.index_entry(name), self.entries.get_mut(name))
                    && is_defined
                    && entry.is_compressible
                {
                    (entry.content_type, entry.tag_bits) = (row.content_type, row.tag_bits);
                }
            }
            let there: BTreeSet<&String> = before.iter().collect();
            let added: Vec<String> = names.iter().filter(|name| !there.contains(name)).cloned().collect();
            let last =
                before.len().saturating_sub(usize::from(before.last().is_some_and(|name| name == META_PROVENANCE)));
            before.splice(last..last, added);
            names = before;
        }
        names.iter().filter_map(|name| self.entries.remove(name)).collect()
    }

    // --- channels

    /// Plans the channels, rewards, residuals and other entries; a lenient plan leaves out what cannot be saved.
    fn add_lanes(&mut self, is_lenient: bool) -> Result<()> {
        let ep = self.ep;
        let mut lanes: Vec<(String, &Lane, &Channel)> = Vec::new();
        lanes.extend(
            ep.lanes
                .iter()
                .filter(|(lane, _)| !lane.is_of_steps())
                .map(|(lane, channel)| (lane.block_name(), lane, channel)),
        );
        lanes.sort_by(|a, b| compare_in_file(&a.0, &b.0));
        let keep = |name: &str, result: Result<()>| match result {
            Err(e) if !is_lenient => Err(e.with_entry(name)),
            _ => Ok(()),
        };
        for (name, lane, channel) in lanes {
            keep(&name, self.add_lane(lane, channel, &name))?;
        }
        if let Some(rewards) = ep.rewards() {
            keep(REWARD, self.add_rewards(rewards))?;
        }
        for (key, residual) in &ep.residuals {
            keep(&format!("residual/{key}"), self.add_residual(residual))?;
        }
        for (name, extra) in &ep.extras {
            let described = extra.channel.as_ref().filter(|channel| channel.names.data == *name);
            let planned = match described {
                Some(channel) if !name.starts_with("residual/") => {
                    self.add_channel(name, row_id(name), channel, Object::new())
                }
                _ => {
                    if let Some(row) = extra.channel.as_ref().and_then(|channel| channel.row.as_ref()) {
                        self.rows.insert(name.clone(), row.fields.clone());
                    }
                    self.add_block(name, extra.data.clone())
                }
            };
            keep(name, planned)?;
            if let Some(entry) = self.entries.get_mut(name) {
                (entry.content_type, entry.tag_bits) = (extra.content_type, extra.tag_bits);
            }
        }
        Ok(())
    }

    fn add_lane(&mut self, lane: &Lane, channel: &Channel, name: &str) -> Result<()> {
        let own = &channel.names.data;
        let own_row = self.origin.and_then(|origin| origin.rows.get(own)).map(Arc::as_ref);
        let is_same = self.is_here(channel) && Lane::of(own, own_row).as_ref() == Some(lane);
        let block = if is_same { own.clone() } else { name.to_owned() };
        if !is_same {
            lane.check()?;
        }
        let mut about = Object::new();
        let id = match lane {
            Lane::Signal(id) | Lane::Action(id) => id.as_str(),
            _ => &block,
        };
        if !matches!(lane, Lane::Signal(_) | Lane::Action(_)) && Lane::of(&block, None).as_ref() != Some(lane) {
            let (channel, model, kind) = match lane {
                Lane::Uncert { channel, model, kind } => (channel.as_str(), model.as_str(), kind.as_str()),
                Lane::Omen { channel, model } => (channel.as_str(), model.as_str(), ""),
                _ => ("", "", ""),
            };
            let keys =
                [("channel", channel), ("model", model), ("type", kind)].into_iter().filter(|(_, key)| !key.is_empty());
            about.extend(keys.map(|(field, key)| (field.to_owned(), Value::from(key))));
        }
        self.add_channel(&block, id, channel, about)
    }

    /// Whether a channel is still the block of the file that the episode was loaded from.
    pub(super) fn is_here(&self, channel: &Channel) -> bool {
        self.holds(&channel.data, &channel.names.data)
    }

    pub(super) fn holds(&self, block: &Block, name: &str) -> bool {
        self.origin.is_some_and(|origin| block.is_entry(&origin.reader, name))
    }

    /// Plans the blocks of a channel and its row.
    pub(super) fn add_channel(&mut self, block: &str, id: &str, channel: &Channel, about: Object) -> Result<()> {
        let is_here = self.is_here(channel) && channel.names.data == block;
        if channel.problem.is_some() || matches!(channel.times, Some(Err(_))) {
            if let Some(row) = channel.row.as_ref().filter(|_| is_here) {
                // It goes back as it came, with the blocks that belong to it.
                self.rows.insert(block.to_owned(), row.fields.clone());
                let names = &channel.names;
                return self.keep_blocks(&[block, &names.offsets, &names.frames, &names.times]);
            }
            let clock = channel.times.as_ref().and_then(|times| times.as_ref().err());
            if let Some(problem) = channel.problem.as_ref().or(clock) {
                return Err(channel.locate(problem.clone()));
            }
        }
        self.check_length(block, channel)?;
        let mut fields = row_for(channel, id, block, self.ep.length)?;
        fields.extend(about);
        if channel.layout != Layout::Dense {
            self.add_index(block, channel, &mut fields, is_here)?;
        }
        if let Some(Ok(times)) = &channel.times {
            let name = self.add_own_clock(block, channel, times, is_here)?;
            fields.insert("time_block".into(), name.into());
        }
        self.add_block(block, channel.data.clone())?;
        if let Some(entry) = self.entries.get_mut(block) {
            entry.is_compressible = channel.layout != Layout::Video;
        }
        if is_here && channel.is_inferred {
            return Ok(()); // a guess is not a description
        }
        if !(is_here && channel.row.is_some()) {
            check_row(&fields)?;
        }
        self.rows.insert(block.to_owned(), fields);
        Ok(())
    }

    fn check_length(&self, block: &str, channel: &Channel) -> Result<()> {
        let steps = self.ep.length;
        let is_half_clock = channel.start_ns().is_some() && channel.sampling_rate_hz().is_none();
        if is_half_clock && channel.row.is_none() {
            return Err(Error::invalid("a regular clock needs a rate: set sampling_rate_hz together with start_ns"));
        }
        if channel.layout == Layout::Dense {
            let wanted = step_bytes(channel.dtype, &channel.shape).and_then(|step| times(channel.length, step));
            if wanted != Some(channel.data.size()) {
                return Err(Error::invalid("the data does not have the size that its type, shape and length make")
                    .with_expected(format_args!(
                        "{} times {} {:?}",
                        channel.length,
                        channel.dtype.name(),
                        channel.shape
                    ))
                    .with_found(format_args!("{} bytes", channel.data.size())));
            }
        }
        let is_more = channel.length == steps.saturating_add(1) && (may_have_one_more(block) || is_extra(block));
        if channel.has_own_clock() || channel.length == steps || is_more || channel.has_any_length {
            return Ok(());
        }
        let problem = "the channel has another length than the episode, and no clock of its own";
        Err(Error::invalid(problem).with_expected(steps).with_found(channel.length))
    }

    /// Plans the offsets and frames of a ragged, text or video channel.
    fn add_index(&mut self, block: &str, channel: &Channel, fields: &mut Object, is_here: bool) -> Result<()> {
        let names = &channel.names;
        if is_here {
            for (field, name, stored) in
                [("offsets_block", &names.offsets, &channel.offsets), ("frames_block", &names.frames, &channel.frames)]
            {
                if let Some(stored) = stored {
                    fields.insert(field.into(), name.as_str().into());
                    if !self.entries.contains_key(name) {
                        self.add_block(name, stored.clone())?; // two channels may share it
                    }
                }
            }
            return Ok(());
        }
        let index = channel.check()?;
        let offsets = join_keys("offsets", &[block]);
        fields.insert("offsets_block".into(), offsets.as_str().into());
        self.add_block(&offsets, Block::integers(&index.offsets))?;
        let is_plain = index.frames == Frame::plain(index.frames.len() as u64);
        // A plain block of frames that the channel had stays.
        if channel.layout == Layout::Video && !(is_plain && channel.frames.is_none()) {
            let frames = join_keys("frames", &[block]);
            fields.insert("frames_block".into(), frames.as_str().into());
            self.add_block(&frames, Block::integers(&Frame::table(&index.frames)))?;
        }
        Ok(())
    }

    /// Plans the clock of a channel and gives its name. Channels with equal timestamps share one.
    fn add_own_clock(&mut self, block: &str, channel: &Channel, clock: &Block, is_here: bool) -> Result<String> {
        let data = clock.read()?.into_owned();
        if Some(data.len() as u64) != times(channel.length, 8) {
            let problem = "the channel has another number of timestamps than entries";
            return Err(Error::invalid(problem).with_expected(channel.length).with_found(data.len() / 8));
        }
        let mut name = join_keys("time", &[block]);
        let own = &channel.names.times;
        if is_here && self.holds(clock, own) {
            // Shared or not, as its file has it.
            let steps = self.ep.lanes.get(&Lane::Timestamps);
            if own == TIMESTAMPS && steps.is_some_and(|steps| self.holds(&steps.data, own))
                || self.clocks.get(own) == Some(&data)
            {
                return Ok(own.clone());
            }
            if own != TICKS && own != TIMESTAMPS && !self.entries.contains_key(own) {
                name.clone_from(own);
            }
        } else if let Some((known, _)) = self.clocks.iter().find(|(_, times)| **times == data) {
            return Ok(known.clone());
        }
        let base = name.clone();
        let mut number = 2u64;
        while self.entries.contains_key(&name) {
            name = format!("{base}/{number}");
            number = number.saturating_add(1);
        }
        self.add_block(&name, Block::memory(data.clone()))?;
        self.clocks.insert(name.clone(), data);
        Ok(name)
    }

    fn add_descriptions(&mut self) -> Result<()> {
        let Some(origin) = self.origin else {
            let rows = super::rewrite::row_list(&self.rows, self.rows.keys());
            self.add_json(META_WSHARD, &self.ep.wshard_fields())?;
            self.add_json(META_EPISODE, &self.ep.episode_fields())?;
            return self.add_json(META_CHANNELS, &json::object([("channels", rows.into())]));
        };
        super::rewrite::keep_descriptions(self, origin)
    }
}

/// The row that a writer stores for a channel, without the names of its other blocks.
pub(crate) fn row_for(channel: &Channel, id: &str, block: &str, steps: u64) -> Result<Object> {
    if let Some(field) = channel.about.keys().find(|field| is_own_field(field)) {
        return Err(Error::invalid(format!("the channel has the field '{field}' already")));
    }
    let is_empty =
        |field: &str, value: &Value| is_known_field(field) && (value.is_null() || value.as_str() == Some(""));
    let about = channel.about.iter().filter(|(field, value)| !is_empty(field, value));
    let mut fields: Object = about.map(|(field, value)| (field.clone(), value.clone())).collect();
    fields.extend(json::object([
        ("dtype", channel.dtype.name().into()),
        ("id", id.into()),
        ("shape", channel.shape.iter().copied().collect()),
        ("signal_block", block.into()),
    ]));
    if channel.length != steps {
        fields.insert("length".into(), channel.length.into());
    }
    if channel.layout != Layout::Dense {
        fields.insert("layout".into(), channel.layout.name().into());
    }
    Ok(fields)
}

/// Makes sure that readers accept a row.
pub(crate) fn check_row(fields: &Object) -> Result<()> {
    let refused = |e| Error::invalid("readers would refuse the description of the channel").with_source(e);
    Row::parse(&Value::Object(fields.clone()), None).map(drop).map_err(refused)
}

/// `time/ticks` of steps from a first one on; `None` if they do not fit.
pub(crate) fn number_steps(first: i64, count: u64) -> Option<Vec<u8>> {
    let first = i32::try_from(first).ok().filter(|first| *first >= 0)?;
    let end = i32::try_from(count).ok().and_then(|count| first.checked_add(count))?;
    Some((first..end).flat_map(i32::to_le_bytes).collect())
}
