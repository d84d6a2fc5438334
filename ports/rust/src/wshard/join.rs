//! Episodes that follow one another in time, as one (spec/wshard.md, section 11).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::block::Block;
use super::channel::{Channel, Layout};
use super::episode::{Episode, LabelLane};
use super::label::{Interval, Label, Unit};
use super::names::Lane;
use super::residual::{JoinedSigns, Residual, ResidualKind};
use super::timebase::add_time;
use crate::json;
use crate::{Code, DType, Error, Result};

fn discontinuity(problem: impl Into<String>) -> Error {
    Error::new(Code::ChunkDiscontinuity, "W-CHK-8", problem.into())
}

/// Gives episodes that follow one another in time, and have the same channels, as one. Nothing is copied until it is read.
/// Facts and metadata are those of the first.
pub fn join(parts: &[Episode]) -> Result<Episode> {
    let first = parts.first().ok_or_else(|| Error::invalid("there is nothing to join"))?;
    let mut joined = first.clone();
    (joined.origin, joined.chunk_index, joined.total_chunks, joined.timestep_range) = (None, None, None, None);
    joined.length = parts.iter().fold(0, |sum, part| sum.saturating_add(part.length));
    joined.lanes = join_lanes(parts)?;
    joined.residuals = join_residuals(parts, joined.length)?;
    let names: BTreeSet<&String> = parts.iter().flat_map(|part| part.labels.keys()).collect();
    joined.labels = names
        .into_iter()
        .map(|name| (name.clone(), LabelLane::Joined(Arc::new(JoinedLabel::new(parts, name)))))
        .collect();
    for part in parts {
        for (name, extra) in &part.extras {
            joined.extras.entry(name.clone()).or_insert_with(|| extra.clone());
        }
    }
    Ok(joined)
}

fn join_lanes(parts: &[Episode]) -> Result<BTreeMap<Lane, Channel>> {
    let lanes: BTreeSet<&Lane> = parts.iter().flat_map(|part| part.lanes.keys()).collect();
    let mut joined = BTreeMap::new();
    for lane in lanes {
        let found: Vec<(&Channel, u64)> =
            parts.iter().filter_map(|part| Some((part.lanes.get(lane)?, part.length))).collect();
        // A part without steps has nothing to say about those that have one value each.
        let is_whole =
            parts.iter().all(|part| part.lanes.contains_key(lane) || (lane.is_of_steps() && part.length == 0));
        if !is_whole && *lane == Lane::Ticks {
            continue;
        }
        if !is_whole {
            return Err(discontinuity(format!("some parts have {:.80?}, and others do not", lane.block_name())));
        }
        let found = if *lane == Lane::Reward {
            same_rewards(&found)
        } else {
            found.into_iter().map(|(c, n)| (c.clone(), n)).collect()
        };
        joined.insert(lane.clone(), join_channels(found).map_err(|e| e.with_entry(&lane.block_name()))?);
    }
    Ok(joined)
}

/// Gives rewards one type: parts in which f32 holds them exactly are stored so, whatever the others need.
fn same_rewards(parts: &[(&Channel, u64)]) -> Vec<(Channel, u64)> {
    let exact = parts.iter().map(|(part, _)| part).find(|part| part.dtype == DType::F64);
    let widen = |(part, length): &(&Channel, u64)| {
        let Some(exact) = exact.filter(|_| part.dtype == DType::F32 && part.problem.is_none() && part.shape.is_empty())
        else {
            return ((*part).clone(), *length);
        };
        let mut wide = (*exact).clone();
        wide.data = Block::Widened(Arc::new(part.data.clone()));
        (wide.length, wide.problem) = (part.length, None);
        wide.path.clone_from(&part.path);
        (wide, *length)
    };
    parts.iter().map(widen).collect()
}

/// What the parts of a channel must have in common.
fn form(channel: &Channel) -> impl PartialEq {
    let rate = if channel.times.is_none() && channel.start_ns().is_some() { channel.sampling_rate_hz() } else { None };
    let is_video = channel.layout == Layout::Video;
    let codec = is_video.then(|| (channel.text("content_type").to_owned(), channel.text("extradata").to_owned()));
    (
        channel.layout.clone(),
        channel.dtype,
        channel.shape.clone(),
        channel.times.is_some(),
        channel.has_own_clock(),
        rate,
        codec,
    )
}

/// Makes one channel of those of several parts, each with the steps of its part.
fn join_channels(mut parts: Vec<(Channel, u64)>) -> Result<Channel> {
    let Some((first, steps)) = parts.first().cloned() else {
        return Err(Error::invalid("there is nothing to join"));
    };
    let fits = |part: &Channel, steps: u64| {
        part.has_own_clock() || part.length == steps || part.length == steps.saturating_add(1)
    };
    if !fits(&first, steps) {
        return Ok(first); // without a time for each step, so that every part has all of it
    }
    let mut joined = first.clone();
    (joined.row, joined.length, joined.index) = (None, 0, Arc::default());
    let last = parts.len().saturating_sub(1);
    for (i, (part, steps)) in parts.iter_mut().enumerate() {
        if let Some(problem) = &part.problem {
            joined.problem = Some(part.locate(problem.clone())); // told when the channel is read
            joined.length = joined.length.saturating_add(*steps);
            continue;
        }
        if form(part) != form(&first) {
            return Err(discontinuity(format!("part {i} has the channel in another form")));
        }
        if !fits(part, *steps) {
            return Err(discontinuity(format!("part {i} has {} entries for {steps} steps", part.length)));
        }
        if !part.has_own_clock() && part.length > *steps && i < last {
            *part = part.window(0, *steps)?; // the next part starts with this observation
        }
        joined.length = joined.length.saturating_add(part.length);
    }
    if joined.problem.is_some() {
        return Ok(joined);
    }
    joined.data = Block::join(parts.iter().map(|(part, _)| part.data.clone()));
    if first.times.is_some() {
        let times = parts.iter().filter_map(|(part, _)| part.times.clone()).collect::<Result<Vec<_>>>();
        joined.times = Some(times.map(Block::join));
    }
    if first.layout != Layout::Dense {
        (joined.offsets, joined.frames) = (None, None);
        joined.parts = parts.into_iter().map(|(part, _)| part).collect();
    }
    Ok(joined)
}

// --- residuals

fn join_residuals(parts: &[Episode], steps: u64) -> Result<BTreeMap<String, Residual>> {
    let Some(first) = parts.first() else {
        return Ok(BTreeMap::new());
    };
    let mut joined = BTreeMap::new();
    for (i, part) in parts.iter().enumerate() {
        let is_same = |(key, one): (&String, &Residual)| {
            part.residuals
                .get(key)
                .is_some_and(|other| (one.kind, &one.channel, &one.model) == (other.kind, &other.channel, &other.model))
        };
        if part.residuals.len() != first.residuals.len() || !first.residuals.iter().all(is_same) {
            return Err(discontinuity(format!("part {i} has other residuals than the first")));
        }
    }
    for key in first.residuals.keys() {
        let found: Vec<&Residual> = parts.iter().filter_map(|part| part.residuals.get(key)).collect();
        if let Some(residual) = join_residual(&found, steps) {
            joined.insert(key.clone(), residual);
        }
    }
    Ok(joined)
}

/// Makes one residual of those of several parts. What is wrong with one of them is told when it is read.
fn join_residual(parts: &[&Residual], steps: u64) -> Option<Residual> {
    let mut joined = (*parts.first()?).clone();
    (joined.steps, joined.values.row, joined.values.index) = (steps, None, Arc::default());
    let broken =
        parts.iter().find_map(|part| part.values.problem.as_ref().map(|problem| part.values.locate(problem.clone())));
    if broken.is_some() {
        joined.values.problem = broken;
        return Some(joined);
    }
    let filled: Vec<&Residual> = parts.iter().copied().filter(|part| part.steps > 0).collect();
    let Some(first) = filled.first() else {
        return Some(joined);
    };
    if joined.kind == ResidualKind::Sign2ndDiff {
        let dimensions = first.dimensions();
        if filled.iter().any(|part| part.dimensions() != dimensions) {
            joined.values.problem = Some(discontinuity("the parts of a residual have different dimensions"));
            return Some(joined);
        }
        let signs = JoinedSigns { parts: filled.into_iter().cloned().collect(), steps, dimensions };
        joined.values.length = signs.size();
        joined.values.data = Block::Signs(Arc::new(signs));
        return Some(joined);
    }
    if filled.iter().any(|part| part.values.shape != first.values.shape) {
        joined.values.problem = Some(discontinuity("the parts of a residual have different shapes"));
        return Some(joined);
    }
    // All but the last part must be whole windows.
    let window = filled.iter().fold(0, |window, part| divisor(window, part.window));
    let window = filled.iter().rev().skip(1).fold(window, |window, part| divisor(window, part.steps));
    joined.values.data = Block::join(filled.iter().map(|part| part.values.data.clone()));
    joined.values.length = steps;
    joined.values.shape.clone_from(&first.values.shape);
    let mut scales = first.scales.clone()?;
    scales.data = Block::join(filled.iter().filter_map(|part| part.scales_for(window)));
    (scales.length, scales.row) = (steps.div_ceil(window.max(1)), None);
    (joined.window, joined.scales) = (window, Some(scales));
    Some(joined)
}

pub(crate) fn divisor(mut a: u64, mut b: u64) -> u64 {
    while let Some(rest) = a.checked_rem(b) {
        (a, b) = (b, rest);
    }
    a
}

// --- labels

/// The label of an episode in chunks, which is joined when it is asked for.
#[derive(Debug)]
pub struct JoinedLabel {
    parts: Vec<LabelPart>,
}

#[derive(Debug)]
struct LabelPart {
    label: Option<LabelLane>,
    length: u64,
    /// The clock of the part: its timestamps, or the time of its first step.
    timestamps: Option<Channel>,
    start_ns: Option<i64>,
}

/// What both halves of an interval have in common that was cut at a border: where it is cut, and all that is said.
type Half = (i64, String);

fn half(interval: &Interval, at: i64) -> Result<Half> {
    let plain = Label { unit: Unit::Steps, intervals: vec![Interval { start: 0, end: 0, ..interval.clone() }] };
    Ok((at, json::canonical(&plain.fields())?))
}

impl JoinedLabel {
    fn new(parts: &[Episode], name: &str) -> Self {
        let part = |ep: &Episode| LabelPart {
            label: ep.labels.get(name).cloned(),
            length: ep.length,
            timestamps: ep.lanes.get(&Lane::Timestamps).cloned(),
            start_ns: ep.timebase.tick_hz.map(|_| ep.timebase.epoch_ns),
        };
        Self { parts: parts.iter().map(part).collect() }
    }

    pub(crate) fn read(&self) -> Result<Label> {
        let mut joined: Option<Label> = None;
        let mut start = 0u64;
        // The last interval of each kind by where it ends: to search all of them takes too long.
        let mut ending: HashMap<Half, usize> = HashMap::new();
        for part in &self.parts {
            let begin = start.cast_signed();
            start = start.saturating_add(part.length);
            let Some(label) = &part.label else { continue };
            let label = label.read()?;
            let all = joined.get_or_insert_with(|| Label { unit: label.unit, intervals: Vec::new() });
            if all.unit != label.unit {
                return Err(discontinuity("the parts count a label in different units"));
            }
            let (border, shift) = match label.unit {
                Unit::Steps => (Some(begin), begin),
                Unit::Nanoseconds => (part.first_time()?, 0),
            };
            for mut one in label.intervals {
                (one.start, one.end) = (add_time(one.start, shift)?, add_time(one.end, shift)?);
                let is_cut = border == Some(one.start) && one.start < one.end;
                let before = if is_cut { ending.remove(&half(&one, one.start)?) } else { None };
                let end = half(&one, one.end)?;
                let at = match before.and_then(|at| Some((at, all.intervals.get_mut(at)?))) {
                    Some((at, before)) => {
                        before.end = one.end;
                        at
                    }
                    None => {
                        all.intervals.push(one);
                        all.intervals.len().saturating_sub(1)
                    }
                };
                ending.insert(end, at);
            }
        }
        Ok(joined.unwrap_or_default())
    }
}

impl LabelPart {
    /// The time of the first step; `None` if there is none.
    fn first_time(&self) -> Result<Option<i64>> {
        match &self.timestamps {
            _ if self.length == 0 => Ok(None),
            Some(times) => Ok(times.window(0, 1)?.values::<i64>()?.first().copied()),
            None => Ok(self.start_ns),
        }
    }
}
