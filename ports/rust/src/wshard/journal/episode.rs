//! From a journal to an episode (spec/journal.md, section 8).

use std::collections::HashMap;
use std::sync::Arc;

use super::read::{FLAT_BLOCKS, Journal, Recorded, with_length};
use super::runs::Runs;
use crate::json::Object;
use crate::wshard::block::Block;
use crate::wshard::channel::Channel;
use crate::wshard::episode::Episode;
use crate::wshard::label::{Interval, Label, Unit};
use crate::wshard::names::{DONE, Lane, REWARD, REWARD_EXACT, TERMINATED, TIMESTAMPS, TRUNCATED, check_id};
use crate::wshard::plan::number_steps;
use crate::wshard::timebase::regular_time;
use crate::{Code, DType, Error, Result};

impl Journal {
    /// The entries of a channel that are complete: a ragged or text channel has one fewer than offsets (J-3).
    fn entries(&self, channel: &Recorded) -> u64 {
        let offsets = channel.offsets.and_then(|offsets| self.channels.get(offsets));
        offsets.map_or(channel.held, |offsets| offsets.held.saturating_sub(1))
    }

    /// The channels that are part of the episode, without offsets: not those that their recorder had not filled (J-3).
    fn counted(&self) -> impl Iterator<Item = (usize, &Recorded)> {
        self.channels.iter().enumerate().filter(|(_, one)| one.owner.is_none() && self.entries(one) >= one.filled)
    }

    /// The number of steps that every channel has (J-3).
    fn steps(&self) -> u64 {
        let counted = self.counted().filter(|(_, one)| one.follows_steps());
        let least = counted.map(|(_, one)| self.entries(one)).min().unwrap_or(0);
        self.length.map_or(least, |length| least.min(length))
    }

    /// How many entries of each channel count, by number (J-3).
    pub(crate) fn kept(&self) -> HashMap<usize, u64> {
        let steps = self.steps();
        let mut kept: HashMap<usize, u64> = HashMap::new();
        for (number, one) in self.counted() {
            let has_final = self.length.is_some() && one.row.block.starts_with("signal/");
            let most = if one.follows_steps() { steps.saturating_add(u64::from(has_final)) } else { u64::MAX };
            kept.insert(number, self.entries(one).min(most));
        }
        for (number, one) in self.counted() {
            let clock = one.row.text("time_block");
            if !clock.is_empty() {
                let clock = self.by_block.get(clock);
                let timed = clock.and_then(|clock| kept.get(clock)).copied().unwrap_or(0);
                let count = kept.get(&number).copied().unwrap_or(0).min(timed);
                kept.insert(number, count);
                if let Some(clock) = clock {
                    kept.insert(*clock, count);
                }
            }
        }
        kept
    }

    /// How many entries each block has beyond those that count.
    pub(crate) fn cut(&self) -> Vec<(String, u64)> {
        let kept = self.kept();
        let beyond = self.counted().map(|(number, one)| {
            let mut count = self.entries(one).saturating_sub(kept.get(&number).copied().unwrap_or(0));
            let offsets = one.offsets.and_then(|offsets| self.channels.get(offsets));
            if offsets.is_some_and(|offsets| one.held > offsets.last_offset) {
                count = count.saturating_add(1); // an entry whose offset is missing (J-6)
            }
            (one.row.block.clone(), count)
        });
        beyond.filter(|(_, count)| *count > 0).collect()
    }

    /// Whether the journal becomes a chunk (J-8).
    fn is_chunk(&self) -> bool {
        self.index > 0 || self.continues
    }

    /// The recording up to where it is complete. Its channels read the journal.
    pub(crate) fn episode(&self) -> Result<Episode> {
        self.episode_from(self.first_step)
    }

    /// The episode of a chunk whose first step may have another number, because steps before it were lost.
    pub(crate) fn episode_from(&self, first_step: u64) -> Result<Episode> {
        let mut fields = with_length(self.start.as_ref().unwrap_or(&Object::new()), self.steps());
        for field in ["chunk_index", "total_chunks", "timestep_range", "length_t"] {
            fields.remove(field); // readers ignore them here
        }
        let mut ep = Episode::parse(&fields, &Object::new())?;
        ep.is_recorded = true;
        ep.metadata.extend(self.metadata.clone());
        if !self.dropped.is_empty() {
            ep.metadata.insert("dropped".into(), self.dropped.clone().into());
        }
        let kept = self.kept();
        for (number, one) in self.counted() {
            let Some(lane) = lane_of(one) else { continue };
            let block = &one.row.block;
            let channel = self.channel(one, number, &kept).map_err(|e| e.with_entry(block))?;
            if ep.lanes.insert(lane, channel).is_some() {
                return Err(
                    Error::invalid("two channels of the journal are the same part of an episode").with_entry(block)
                );
            }
        }
        ep.timebase.has_timestamps |= self.by_block.contains_key(TIMESTAMPS);
        for (name, label) in &self.labels {
            ep.labels.insert(name.clone(), self.own_label(label, ep.length).into());
        }
        if self.is_chunk() {
            self.number(&mut ep, first_step)?;
        }
        Ok(ep)
    }

    fn block(&self, number: usize, size: u64) -> Block {
        let runs = self.channels.get(number).map(|one| Arc::new(one.runs.clone()));
        runs.map_or_else(|| Block::memory([]), |runs: Arc<Runs>| Block::Runs(runs, size))
    }

    /// A channel of the first entries of its runs.
    fn channel(&self, one: &Recorded, number: usize, kept: &HashMap<usize, u64>) -> Result<Channel> {
        let count = kept.get(&number).copied().unwrap_or(0);
        let mut items = count;
        let mut index = None;
        if let Some((offsets, held)) = one.offsets.and_then(|at| Some((at, self.channels.get(at)?.held))) {
            let block = match held {
                0 => Block::integers(&[0]),
                _ => self.block(offsets, count.saturating_add(1).saturating_mul(8)),
            };
            let last = block.read_range(block.size().saturating_sub(8), block.size())?;
            items = last.first_chunk().map_or(0, |last| u64::from_le_bytes(*last));
            index = Some((block, format!("offsets/{}", one.row.block)));
        }
        let mut channel =
            Channel::new(one.row.dtype, &one.row.shape, count, self.block(number, items.saturating_mul(one.step)));
        channel.describe(&one.row);
        channel.path = self.path.as_deref().map(Arc::from);
        channel.names.data.clone_from(&one.row.block);
        if let Some((block, name)) = index {
            (channel.offsets, channel.names.offsets) = (Some(block), name);
        }
        let clock = one.row.text("time_block");
        if FLAT_BLOCKS.contains(&one.row.block.as_str()) {
            check_flat(one)?;
        } else if !clock.is_empty() {
            let found = self.counted().find(|(_, found)| found.row.block == clock);
            let found = found.filter(|(_, found)| found.row.dtype == DType::I64 && found.row.shape.is_empty());
            let Some((at, _)) = found else {
                return Err(Error::invalid(format!(
                    "the clock {clock:.80?} is not in the journal, or not one i64 for each entry"
                )));
            };
            channel.times = Some(Ok(self.block(at, count.saturating_mul(8))));
            clock.clone_into(&mut channel.names.times);
        }
        Ok(channel)
    }

    /// Says which part of a recording an episode is (J-8).
    fn number(&self, ep: &mut Episode, first_step: u64) -> Result<()> {
        ep.chunk_index = Some(self.index);
        ep.timestep_range = step_range(first_step, ep.length);
        if ep.timestep_range.is_none() || step_range(self.first_step, ep.length).is_none() {
            return Err(Error::new(Code::BadValue, "J-8", "the steps of this chunk cannot be numbered"));
        }
        if let Some(rate) = ep.timebase.tick_hz
            && self.first_step > 0
            && !ep.lanes.contains_key(&Lane::Timestamps)
        {
            ep.timebase.epoch_ns = regular_time(ep.timebase.epoch_ns, self.first_step, rate)?;
        }
        if first_step != self.first_step
            && let Some(ticks) = number_steps(self.first_step.cast_signed(), ep.length)
        {
            ep.lanes.insert(Lane::Ticks, Channel::from_bytes(DType::I32, &[], ticks)); // steps that were lost leave a gap
        }
        Ok(())
    }

    /// Intervals from the start of a chunk, cut where the next one starts (J-8).
    fn own_label(&self, label: &Label, steps: u64) -> Label {
        if label.unit != Unit::Steps || !self.is_chunk() {
            return label.clone();
        }
        let (first, steps) = (self.first_step.cast_signed(), steps.cast_signed());
        let moved = |at: i64| at.saturating_sub(first).max(-i64::MAX);
        let mut own: Vec<Interval> = Vec::new();
        for one in &label.intervals {
            let mut one = Interval { start: moved(one.start), end: moved(one.end), ..one.clone() };
            if self.continues {
                if one.start >= steps {
                    continue; // the next journal has it
                }
                one.end = one.end.min(steps);
            }
            own.push(one);
        }
        Label { unit: label.unit, intervals: own }
    }
}

/// The first and the last step of a chunk; one without steps has no last one. `None` if they cannot be numbered.
pub(crate) fn step_range(first: u64, length: u64) -> Option<(i64, i64)> {
    let end = i64::try_from(first.checked_add(length)?).ok()?;
    let first = i64::try_from(first).ok()?;
    Some((first, end.saturating_sub(1).max(first)))
}

/// Where a channel belongs; `None` for a clock, which comes with its channel, if one names it.
fn lane_of(one: &Recorded) -> Option<Lane> {
    match one.row.block.as_str() {
        REWARD | REWARD_EXACT => Some(Lane::Reward),
        DONE | TERMINATED => Some(Lane::Terminated),
        TRUNCATED => Some(Lane::Truncated),
        TIMESTAMPS => Some(Lane::Timestamps),
        block if block.starts_with("time/") => None,
        block => Lane::of(block, Some(&one.row)),
    }
}

/// Reports a block of the steps that cannot be saved because its recorder broke J-CHN-4.
fn check_flat(one: &Recorded) -> Result<()> {
    let row = &one.row;
    let is_right = match row.block.as_str() {
        REWARD | REWARD_EXACT => true,
        TIMESTAMPS => row.dtype == DType::I64,
        _ => matches!(row.dtype, DType::Bool | DType::U8),
    };
    if is_right && row.shape.is_empty() && row.text("time_block").is_empty() {
        return check_id(&row.id);
    }
    Err(Error::invalid("this is not one value for each step").with_rule("J-CHN-4"))
}
