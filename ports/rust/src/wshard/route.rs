//! Puts every entry of a file into the lane that it belongs to (spec/wshard.md, sections 4, 6, 10 and 16).

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::block::Block;
use super::channel::{Channel, Layout};
use super::dtype::{step_bytes, times};
use super::episode::{Episode, Extra, LabelLane, Origin, StoredLabel};
use super::fields::{bad_metadata, size_mismatch};
use super::names::{
    DONE, KNOWN_META, Lane, META_CHANNELS, META_EPISODE, META_SIDECAR, META_WSHARD, REWARD, REWARD_EXACT, STEP_BLOCKS,
    TERMINATED, TICKS, TIMESTAMPS, TRUNCATED, cut, cut_last, may_have_one_more,
};
use super::residual::{DEFAULT_WINDOW, Residual, ResidualKind, check_signs};
use super::rows::{Row, parse_rows};
use super::video::check_video;
use crate::json::{Object, Value};
use crate::shard::ShardReader;
use crate::{Code, DType, Error, Result, Role};

/// The number of steps that a file may claim without an entry of as many bytes (W-EPI-5, W-BLK-1).
const MOST_UNBACKED: u64 = 1 << 20;

/// Reads the descriptions of a file of role 5 and places its blocks. `base` is the episode of a sidecar.
pub(crate) fn open_file(reader: &Arc<ShardReader>, base: Option<&Episode>) -> Result<Episode> {
    let profile = |rule, problem: &'static str| Error::new(Code::BadProfile, rule, problem);
    if reader.role() != Role::WSHARD {
        return Err(profile("W-ROL-1", "not an episode: the file is not of role 5"));
    }
    if base.is_none() && reader.contains(META_SIDECAR) {
        return Err(profile("W-ROL-2", "this is a sidecar, which adds lanes to an episode: open the episode itself"));
    }
    if !reader.contains(META_EPISODE) {
        return Err(profile("W-ROL-2", "the episode is not described: it has no meta/episode"));
    }
    let describe = |name| {
        if reader.contains(name) { reader.read_json(name, "W-JSN-1") } else { Ok(Object::new()) }
    };
    let (episode, wshard, channels) = (describe(META_EPISODE)?, describe(META_WSHARD)?, describe(META_CHANNELS)?);
    let mut ep = Episode::parse(&episode, &wshard)?;
    if let Some(base) = base {
        ep.length = base.length;
    } else if ep.length > MOST_UNBACKED && !is_backed(reader, ep.length) {
        let problem = "the episode claims more steps than its file has bytes for";
        let expected = "at most 2**20, or an entry with a byte for each step";
        return Err(size_mismatch("W-EPI-5", problem, expected, ep.length).with_entry(META_EPISODE));
    }
    let mut rows = BTreeMap::new();
    let mut unplaced = BTreeMap::new();
    for row in parse_rows(&channels).map_err(|e| e.with_entry(META_CHANNELS))? {
        if reader.contains(&row.block) {
            rows.insert(row.block.clone(), Arc::new(row));
        } else {
            unplaced.insert(row.id.clone(), row);
        }
    }
    let mut hints = BTreeMap::new();
    add_hints(&mut hints, wshard.get("omen_channels"), "block");
    add_hints(&mut hints, episode.get("action_spaces"), "name");
    let base_rows = base.and_then(|base| base.origin.as_ref()).map(|origin| &origin.rows);
    let mut router = Router { reader, ep: &mut ep, rows: &rows, unplaced, base_rows, hints, taken: HashSet::new() };
    router.route();
    ep.origin =
        Some(Arc::new(Origin { reader: Arc::clone(reader), others: Vec::new(), episode, wshard, channels, rows }));
    Ok(ep)
}

/// Whether an entry has as many bytes as there are steps (W-EPI-5).
fn is_backed(reader: &ShardReader, steps: u64) -> bool {
    let is_long = |name: &&str| reader.index_entry(name).is_some_and(|entry| entry.orig_size >= steps);
    reader.names().filter(is_long).any(|name| reader.check_size(name).is_ok())
}

/// Rows of `omen_channels` or `action_spaces`; those that make no sense are no help.
fn add_hints(hints: &mut BTreeMap<String, Row>, listed: Option<&Value>, name_field: &str) {
    for item in listed.and_then(Value::as_list).unwrap_or_default() {
        if let Some(block) = item.get(name_field).and_then(Value::as_str).filter(|block| !block.is_empty())
            && let Ok(row) = Row::parse(item, Some(block))
        {
            hints.entry(block.to_owned()).or_insert(row);
        }
    }
}

pub(super) struct Router<'a> {
    pub(super) reader: &'a Arc<ShardReader>,
    pub(super) ep: &'a mut Episode,
    /// Rows of blocks in the file.
    pub(super) rows: &'a BTreeMap<String, Arc<Row>>,
    /// Rows of other blocks, by id.
    pub(super) unplaced: BTreeMap<String, Row>,
    /// The rows of a sidecar's episode.
    pub(super) base_rows: Option<&'a BTreeMap<String, Arc<Row>>>,
    /// The descriptions that older writers keep elsewhere.
    pub(super) hints: BTreeMap<String, Row>,
    /// The blocks that belong to a channel: its clock, its offsets, its frames, its scales.
    pub(super) taken: HashSet<String>,
}

impl Router<'_> {
    fn route(&mut self) {
        let mut extras = Vec::new();
        let names: Vec<String> = self.reader.names().map(str::to_owned).collect();
        for name in names {
            let is_exact = name == REWARD_EXACT && self.rows.contains_key(&name);
            if KNOWN_META.contains(&name.as_str()) || STEP_BLOCKS.contains(&name.as_str()) || is_exact {
                continue;
            }
            if !self.place(&name) {
                extras.push(name);
            }
        }
        self.place_steps();
        // All others first: which blocks belong to a channel is only known then.
        let described: Vec<_> =
            extras.iter().map(|name| self.rows.get(name).cloned().map(|row| self.described(&row))).collect();
        for (name, channel) in extras.into_iter().zip(described) {
            if self.taken.contains(&name) {
                continue;
            }
            let (content_type, tag_bits) = self
                .reader
                .index_entry(&name)
                .map_or_else(Default::default, |entry| (entry.content_type, entry.tag_bits));
            let data = self.block(&name);
            self.ep.extras.insert(name, Extra { content_type, tag_bits, data, channel });
        }
    }

    fn block(&self, name: &str) -> Block {
        Block::entry(self.reader, name)
    }

    /// Puts a block into its lane; false if it belongs to none, or if another block has claimed its place.
    fn place(&mut self, name: &str) -> bool {
        let row = self.rows.get(name).cloned();
        if let Some(lane) = Lane::of(name, row.as_deref()) {
            if self.ep.lanes.contains_key(&lane) {
                return false;
            }
            let channel = match &row {
                Some(row) => self.described(row),
                None => self.inferred(name),
            };
            self.ep.lanes.insert(lane, channel);
            return true;
        }
        match cut(name) {
            ("label", id) if !id.is_empty() => {
                let stored = StoredLabel { reader: Arc::clone(self.reader), name: name.to_owned() };
                self.ep.labels.insert(id.to_owned(), LabelLane::Stored(stored));
                true
            }
            ("residual", rest) if !rest.is_empty() => {
                if name.strip_suffix("/scales").is_some_and(|base| self.reader.contains(base)) {
                    return true; // comes with its residual
                }
                let Some(residual) = self.residual(name, row.as_ref()) else {
                    return false;
                };
                let key = rest.strip_suffix("/sign2nddiff").unwrap_or(rest).to_owned();
                self.ep.residuals.insert(key, residual);
                true
            }
            _ => false,
        }
    }

    pub(super) fn channel(&self, name: &str, dtype: DType, length: u64) -> Channel {
        let mut channel = Channel::new(dtype, &[], length, self.block(name));
        channel.names.data = name.to_owned();
        channel.path = self.reader.path().map(Arc::from);
        channel
    }

    /// Makes the channel of a row. What is wrong with its block is told when the channel is read.
    fn described(&mut self, row: &Arc<Row>) -> Channel {
        let stated = row.count("length");
        let mut channel = self.channel(&row.block, row.dtype, stated.unwrap_or(self.ep.length));
        channel.row = Some(Arc::clone(row));
        channel.describe(row);
        // Memory may be made for the claimed size only after the second check.
        channel.problem = self.measure(&mut channel, row).and_then(|()| self.reader.check_size(&row.block)).err();
        channel.has_any_length = stated.is_some_and(|length| length != self.ep.length);
        let clock = row.text("time_block");
        if !clock.is_empty() {
            clock.clone_into(&mut channel.names.times);
            let block = self.find(clock, "W-TIM-3").and_then(|block| {
                if times(8, channel.length) == Some(block.size()) {
                    return Ok(block);
                }
                let problem = "the clock of a channel has another length than the channel";
                Err(size_mismatch(
                    "W-TIM-3",
                    problem,
                    format_args!("{} times of 8 bytes", channel.length),
                    block.size(),
                ))
            });
            channel.times = Some(block);
        }
        channel
    }

    /// A block that a channel needs, and that is no extra entry then.
    fn find(&mut self, name: &str, rule: &'static str) -> Result<Block> {
        if !self.reader.contains(name) {
            let problem = format!("the block {name:.80?}, which this one needs, is not in the file");
            return Err(Error::new(Code::BadProfile, rule, problem));
        }
        self.taken.insert(name.to_owned());
        Ok(self.block(name))
    }

    /// Checks the sizes of a channel's blocks.
    fn measure(&mut self, channel: &mut Channel, row: &Row) -> Result<()> {
        match &channel.layout {
            Layout::Dense => self.measure_dense(channel, row.count("length").is_some()),
            Layout::Text if channel.dtype != DType::U8 || !channel.shape.is_empty() => {
                Err(bad_metadata("W-RAG-5", "a text channel is not described as u8 of shape []"))
            }
            Layout::Text | Layout::Ragged => self.measure_ragged(channel, row),
            Layout::Video => self.measure_video(channel, row),
            Layout::Other(name) => {
                let problem = format!("the channel has the layout {name:.80?}, which this version does not know");
                Err(Error::new(Code::UnknownLayout, "W-CHN-7", problem).with_expected("dense, text, ragged or video"))
            }
        }
    }

    fn measure_dense(&self, channel: &mut Channel, is_stated: bool) -> Result<()> {
        let (steps, found) = (self.ep.length, channel.data.size());
        let one_more = steps.saturating_add(1);
        let step = step_bytes(channel.dtype, &channel.shape);
        if step == Some(0) && channel.length > MOST_UNBACKED && channel.length != steps && channel.length != one_more {
            return Err(size_mismatch(
                "W-BLK-1",
                "the channel claims a length without any bytes",
                "at most 2**20",
                channel.length,
            ));
        }
        let size = |length| step.and_then(|step| times(length, step));
        if size(channel.length) == Some(found) {
            return Ok(());
        }
        let may_be_more = !is_stated && may_have_one_more(&channel.names.data) && step != Some(0);
        if may_be_more && size(one_more) == Some(found) {
            channel.length = one_more;
            return Ok(());
        }
        let expected =
            size(channel.length).map_or_else(|| "a size within 2**63".to_owned(), |size| format!("{size} bytes"));
        Err(size_mismatch(
            "W-BLK-1",
            "the block has another size than its description",
            expected,
            format_args!("{found} bytes"),
        ))
    }

    fn measure_ragged(&mut self, channel: &mut Channel, row: &Row) -> Result<()> {
        let Some(item) = step_bytes(channel.dtype, &channel.shape) else {
            return Err(size_mismatch("W-RAG-3", "an item has too many bytes", "a size within 2**63", "more"));
        };
        row.text("offsets_block").clone_into(&mut channel.names.offsets);
        let offsets = self.find(&channel.names.offsets, "W-RAG-1")?;
        let (count, found) = (offsets.size(), channel.data.size());
        channel.offsets = Some(offsets);
        if count.checked_sub(8) != times(8, channel.length) {
            let expected = format_args!("one more than {} offsets of 8 bytes", channel.length);
            return Err(size_mismatch("W-RAG-1", "the offsets have another length than the channel", expected, count));
        }
        if found.checked_rem(item).unwrap_or(found) != 0 {
            let expected = format_args!("a multiple of {item} bytes");
            return Err(size_mismatch("W-RAG-3", "the block is not a whole number of items", expected, found));
        }
        Ok(())
    }

    fn measure_video(&mut self, channel: &mut Channel, row: &Row) -> Result<()> {
        check_video(channel.dtype, &channel.shape, channel.text("content_type"))?;
        channel.check_extradata()?;
        row.text("offsets_block").clone_into(&mut channel.names.offsets);
        let offsets = self.find(&channel.names.offsets, "W-VID-1")?;
        let size = offsets.size();
        channel.offsets = Some(offsets);
        if size < 8 || size % 8 != 0 {
            let expected = "8 bytes for each, and at least one";
            return Err(size_mismatch("W-VID-1", "the offsets of a video are not whole integers", expected, size));
        }
        let Some(name) = row.fields.get("frames_block").and_then(Value::as_str) else {
            return Ok(());
        };
        name.clone_into(&mut channel.names.frames);
        let frames = self.find(name, "W-VID-2")?;
        let found = frames.size();
        channel.frames = Some(frames);
        let wanted = times(2, size.saturating_sub(8));
        if wanted != Some(found) {
            let problem = "the frames of a video are not two integers for each packet";
            return Err(size_mismatch("W-VID-2", problem, wanted.unwrap_or(u64::MAX), found));
        }
        Ok(())
    }

    // --- lanes of one block

    fn place_steps(&mut self) {
        let rewards = match self.rows.get(REWARD_EXACT).cloned() {
            Some(exact) => Some(self.described(&exact)),
            None => self.steps(REWARD, DType::F32, "W-END-1").map(|mut rewards| {
                // reward is f32 [T] whatever its row says; the row may say what the numbers mean.
                if let Some(row) = self.rows.get(REWARD) {
                    rewards.describe(row);
                    (rewards.dtype, rewards.shape, rewards.layout) = (DType::F32, Vec::new(), Layout::Dense);
                    rewards.about.remove("horizon");
                    rewards.about.remove("start_ns");
                    rewards.row = Some(Arc::clone(row));
                }
                rewards
            }),
        };
        let ends = self.steps(TERMINATED, DType::Bool, "W-END-1").or_else(|| self.steps(DONE, DType::Bool, "W-END-1"));
        let found = [
            (Lane::Reward, rewards),
            (Lane::Terminated, ends),
            (Lane::Truncated, self.steps(TRUNCATED, DType::Bool, "W-END-1")),
            (Lane::Ticks, self.steps(TICKS, DType::I32, "W-TIM-2")),
            (Lane::Timestamps, self.steps(TIMESTAMPS, DType::I64, "W-TIM-2")),
        ];
        for (lane, channel) in found {
            if let Some(channel) = channel {
                self.ep.lanes.insert(lane, channel);
            }
        }
    }

    /// A block with one value for each step; `None` if it is absent or empty.
    fn steps(&self, name: &str, dtype: DType, rule: &'static str) -> Option<Channel> {
        let size = self.reader.index_entry(name)?.orig_size;
        let mut channel = self.channel(name, dtype, self.ep.length);
        channel.problem = self.reader.check_size(name).err();
        if times(self.ep.length, dtype.size() as u64) != Some(size) {
            let expected = format_args!("{} values of {}", self.ep.length, dtype.name());
            channel.problem =
                Some(size_mismatch(rule, "the block does not have one value for each step", expected, size));
        }
        (size > 0).then_some(channel)
    }

    /// The residual of a block; `None` if its type is not known.
    fn residual(&mut self, name: &str, row: Option<&Arc<Row>>) -> Option<Residual> {
        let said = |field, otherwise: &str| match row.map_or("", |row| row.text(field)) {
            "" => otherwise.to_owned(),
            text => text.to_owned(),
        };
        let (channel, kind) = cut_last(cut(name).1);
        let (channel, model) = (said("channel", channel), said("model", ""));
        let kind = ResidualKind::parse(&said("type", kind)).filter(|_| !channel.is_empty())?;
        let mut values = self.channel(name, DType::U8, self.ep.length);
        values.row = row.cloned();
        let window = row.and_then(|row| row.count("window")).unwrap_or(DEFAULT_WINDOW);
        let mut scales = None;
        let checked = match kind {
            ResidualKind::Sign2ndDiff => {
                values.length = values.data.size();
                check_signs(values.data.size(), self.ep.length)
            }
            ResidualKind::DeltaQ => self.delta(&mut values, window).map(|found| scales = Some(found)),
        };
        values.problem = checked.and_then(|()| self.reader.check_size(name)).err();
        Some(Residual {
            channel,
            model,
            kind,
            window,
            values,
            scales,
            steps: self.ep.length,
            overlaps: self.ep.overlaps,
        })
    }

    /// Checks the sizes of a `delta_q` block, and gives its scales (W-RES-2).
    fn delta(&mut self, values: &mut Channel, window: u64) -> Result<Channel> {
        let Some(row) = values.row.clone() else {
            return Err(Error::new(Code::BadProfile, "W-RES-2", "a delta_q block has no row"));
        };
        values.describe(&row);
        if values.dtype != DType::I8 {
            return Err(size_mismatch("W-RES-2", "a delta_q block has another type", "i8", values.dtype.name()));
        }
        let name = format!("{}/scales", values.names.data);
        let block = self.find(&name, "W-RES-2")?;
        let size = |dtype, length| step_bytes(dtype, &values.shape).and_then(|step| times(length, step));
        let (wanted, found) = (size(DType::I8, values.length), values.data.size());
        if wanted != Some(found) {
            let problem = "a delta_q block does not have one value for each of the signal";
            return Err(size_mismatch("W-RES-2", problem, wanted.unwrap_or(u64::MAX), found));
        }
        let windows = values.length.div_ceil(window.max(1));
        let wanted = size(DType::F32, windows);
        if wanted != Some(block.size()) {
            return Err(size_mismatch(
                "W-RES-2",
                "the scales do not fit the windows",
                wanted.unwrap_or(u64::MAX),
                block.size(),
            ));
        }
        self.reader.check_size(&name)?;
        let mut scales = self.channel(&name, DType::F32, windows);
        scales.shape.clone_from(&values.shape);
        Ok(scales)
    }
}
