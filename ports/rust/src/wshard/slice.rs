//! A part of an episode as an episode of its own.

use super::channel::Channel;
use super::episode::Episode;
use super::join::divisor;
use super::label::{Interval, Label, Unit};
use super::names::Lane;
use super::plan::number_steps;
use super::residual::{Residual, ResidualKind};
use crate::{DType, Error, Result};

impl Episode {
    /// The steps from start up to, but not including, end, as an episode of its own; it reads from the same files.
    ///
    /// An observation after the last step stays with the step before it. Channels with a clock of their own are cut where those
    /// steps start; times stay what they were. Labels are clipped.
    pub fn slice(&self, start: u64, end: u64) -> Result<Self> {
        if start > end || end > self.length {
            let problem = Error::invalid("the steps are outside the episode");
            return Err(problem
                .with_expected(format_args!("0 to {}", self.length))
                .with_found(format_args!("{start} to {end}")));
        }
        let mut part = self.clone();
        (part.origin, part.chunk_index, part.total_chunks, part.timestep_range) = (None, None, None, None);
        part.length = end.saturating_sub(start);
        part.warnings.clear();
        if start > 0
            && !self.lanes.contains_key(&Lane::Timestamps)
            && let Some(first) = self.timebase.time_ns(start)?
        {
            part.timebase.epoch_ns = first;
        }
        let mut slicer = Slicer { ep: self, start, end, times: None };
        for (lane, channel) in &mut part.lanes {
            *channel = slicer.channel(channel).map_err(|e| e.with_entry(&lane.block_name()))?;
        }
        if start > 0
            && !self.lanes.contains_key(&Lane::Ticks)
            && let Some(ticks) = number_steps(start.cast_signed(), part.length)
        {
            part.lanes.insert(Lane::Ticks, Channel::from_bytes(DType::I32, &[], ticks));
        }
        for (key, residual) in &mut part.residuals {
            *residual = slicer.residual(residual).map_err(|e| e.with_entry(&format!("residual/{key}")))?;
        }
        for (key, label) in &mut part.labels {
            let cut = slicer.label(&label.read()?).map_err(|e| e.with_entry(&format!("label/{key}")))?;
            *label = cut.into();
        }
        Ok(part)
    }
}

struct Slicer<'a> {
    ep: &'a Episode,
    start: u64,
    end: u64,
    /// The times of the steps, once they are needed.
    times: Option<Vec<i64>>,
}

impl Slicer<'_> {
    /// The time of a step; of the end, the first time after the last step.
    fn time_of(&mut self, step: u64) -> Result<i64> {
        if self.times.is_none() {
            self.times = self.ep.times_ns()?;
        }
        let missing = || Error::invalid("the steps have no times, so channels and labels with times cannot be cut");
        let times = self.times.as_ref().ok_or_else(missing)?;
        let at = usize::try_from(step).unwrap_or(usize::MAX);
        let after_last = || times.last().map_or(i64::MIN, |last| last.saturating_add(1));
        Ok(times.get(at).copied().unwrap_or_else(after_last))
    }

    fn channel(&mut self, channel: &Channel) -> Result<Channel> {
        let length = self.ep.length;
        let Some(own) = (if channel.has_own_clock() { channel.timestamps()? } else { None }) else {
            return match channel.length {
                own if own == length => channel.window(self.start, self.end),
                own if own == length.saturating_add(1) => channel.window(self.start, self.end.saturating_add(1)),
                _ => Ok(channel.clone()), // without a time for each step: every part has all of it
            };
        };
        let (start, end) = (self.start, self.end);
        let mut border = |step: u64| -> Result<u64> {
            let time = self.time_of(step)?;
            Ok(own.partition_point(|one| *one < time) as u64)
        };
        let first = if start == 0 { 0 } else { border(start)? };
        let last = if end == length { own.len() as u64 } else { border(end)? };
        channel.window(first, last.max(first))
    }

    /// Cuts a residual, exactly.
    fn residual(&self, residual: &Residual) -> Result<Residual> {
        let mut cut = residual.clone();
        cut.steps = self.end.saturating_sub(self.start);
        if residual.kind == ResidualKind::Sign2ndDiff {
            cut.values = Channel::from_bytes(DType::U8, &[], residual.packed_part(self.start, self.end)?);
            return Ok(cut);
        }
        cut.values = residual.values.window(self.start, self.end)?;
        // Windows that start elsewhere would need other scales; smaller ones keep the same.
        if self.start.checked_rem(residual.window) != Some(0) {
            cut.window = divisor(residual.window, self.start);
        }
        let window = cut.window.max(1);
        if let (Some(mut scales), Some(data)) = (residual.scales.clone(), residual.scales_for(window)) {
            (scales.data, scales.length) = (data, residual.steps.div_ceil(window));
            let first = self.start.checked_div(window).unwrap_or(0);
            cut.scales = Some(scales.window(first, first.saturating_add(cut.steps.div_ceil(window)))?);
        }
        Ok(cut)
    }

    /// Clips the intervals of a label; what reaches beyond the episode stays with its first or last part.
    fn label(&mut self, label: &Label) -> Result<Label> {
        let (mut low, mut high) = (self.start.cast_signed(), self.end.cast_signed());
        let mut shift = low;
        if label.unit == Unit::Nanoseconds {
            (low, high, shift) = (self.time_of(self.start)?, self.time_of(self.end)?, 0);
        }
        if self.start == 0 {
            low = i64::MIN;
        }
        if self.end == self.ep.length {
            high = i64::MAX;
        }
        // Half-open; an interval without length is an event at its start.
        let is_here =
            |one: &&Interval| one.start < high && (one.end > low || (one.start == one.end && one.start == low));
        let moved = |one: &Interval| Interval {
            start: one.start.max(low).saturating_sub(shift),
            end: one.end.min(high).saturating_sub(shift),
            ..one.clone()
        };
        Ok(Label { unit: label.unit, intervals: label.intervals.iter().filter(is_here).map(moved).collect() })
    }
}
