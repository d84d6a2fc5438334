//! Lays out the lanes that are not channels: rewards, ends, clocks, residuals, labels (spec/wshard.md, sections 5 to 9).

use std::sync::Arc;

use super::block::Block;
use super::channel::{Channel, Layout};
use super::dtype::{step_bytes, times};
use super::episode::{LabelLane, Origin};
use super::label::Label;
use super::names::{
    DONE, Lane, META_PROVENANCE, META_SIDECAR, REWARD, REWARD_EXACT, STEP_BLOCKS, TERMINATED, TICKS, TIMESTAMPS,
    TRUNCATED, check_id, join_keys,
};
use super::plan::{Plan, check_row, number_steps, row_for};
use super::provenance::Provenance;
use super::residual::{Residual, ResidualKind, check_signs, packed_bytes};
use crate::json::{self, Object};
use crate::{DType, Error, Result};

impl Plan<'_> {
    // --- lanes of one value for each step

    pub(super) fn add_rewards(&mut self, channel: &Channel) -> Result<()> {
        if let Some(problem) = &channel.problem {
            let Some(origin) = self.origin.filter(|_| self.is_here(channel)) else {
                return Err(problem.clone());
            };
            for name in [REWARD, REWARD_EXACT] {
                if let Some(row) = origin.rows.get(name) {
                    self.rows.insert(name.to_owned(), row.fields.clone());
                }
                self.keep_blocks(&[name])?;
            }
            return Ok(());
        }
        self.check_flat(channel)?;
        let is_exact = channel.names.data == REWARD_EXACT; // what was exact stays exact
        if channel.dtype == DType::F32 && !is_exact {
            self.add_block(REWARD, channel.data.clone())?;
            return self.describe_reward(channel);
        }
        let rounded = self.origin.filter(|origin| is_exact && self.is_here(channel) && origin.reader.contains(REWARD));
        if let Some(origin) = rounded {
            self.add_block(REWARD, Block::entry(&origin.reader, REWARD))?;
            return self.add_channel(REWARD_EXACT, REWARD_EXACT, channel, Object::new());
        }
        let data = channel.data()?;
        let rounded = channel.dtype.rounded(&data);
        let bytes: Vec<u8> = rounded.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.add_block(REWARD, Block::memory(bytes))?;
        // Bit by bit: NaN is not equal to itself.
        let comes_back = || rounded.iter().flat_map(|value| f64::from(*value).to_le_bytes()).eq(data.iter().copied());
        if channel.dtype == DType::F64 && !is_exact && comes_back() {
            return self.describe_reward(channel);
        }
        self.add_channel(REWARD_EXACT, REWARD_EXACT, channel, Object::new())
    }

    /// Adds a row for `reward` where there is more to say than its name does.
    fn describe_reward(&mut self, channel: &Channel) -> Result<()> {
        const FIELDS_OF_EVERY_ROW: usize = 4;
        let mut fields = row_for(channel, REWARD, REWARD, self.ep.length)?;
        fields.insert("dtype".into(), DType::F32.name().into());
        let has_row = self.origin.is_some_and(|origin| origin.rows.contains_key(REWARD));
        if fields.len() == FIELDS_OF_EVERY_ROW && !has_row {
            return Ok(());
        }
        check_row(&fields)?;
        self.rows.insert(REWARD.to_owned(), fields);
        Ok(())
    }

    /// Checks that rewards, ends and clocks are one value for each step.
    fn check_flat(&self, channel: &Channel) -> Result<()> {
        let is_flat = channel.shape.is_empty() && !channel.has_own_clock() && channel.layout == Layout::Dense;
        let size = times(channel.length, channel.dtype.size() as u64);
        if is_flat && channel.length == self.ep.length && size == Some(channel.data.size()) {
            return Ok(());
        }
        let problem = "this lane is not one value for each step: store others as an observation";
        Err(Error::invalid(problem).with_expected(format_args!("{} values", self.ep.length)))
    }

    /// Plans `done`, `terminated` and `truncated` (W-END-2).
    pub(super) fn add_ends(&mut self) -> Result<()> {
        let (ended, cut) = (self.ep.lanes.get(&Lane::Terminated), self.ep.lanes.get(&Lane::Truncated));
        let is_unreadable = |channel: &&Channel| channel.problem.is_some() && self.is_here(channel);
        if ended.iter().chain(&cut).any(is_unreadable) {
            // A block that cannot be read goes back as it came, with all that belongs to it.
            return [DONE, TERMINATED, TRUNCATED].iter().try_for_each(|name| self.keep_blocks(&[name]));
        }
        let truths = |channel: Option<&Channel>, name| {
            channel.map(|channel| self.truths(channel).map_err(|e| e.with_entry(name))).transpose()
        };
        let (ends, cuts) = (truths(ended, TERMINATED)?, truths(cut, TRUNCATED)?);
        let is_done = ended.is_none_or(|ended| ended.names.data != TERMINATED);
        match (ends, cuts) {
            (None, None) => Ok(()),
            // Only one kind of end is known: done says it all.
            (Some(ends), None) if is_done => self.add_block(DONE, Block::memory(ends)),
            (ends, cuts) => {
                self.add_block(DONE, Block::memory(self.union(ends.as_deref(), cuts.as_deref())))?;
                let comes_from_done = ended.is_some_and(|ended| self.is_here(ended) && ended.names.data == DONE);
                if !comes_from_done {
                    // Without terminations, readers would take done for them.
                    let zeros = || usize::try_from(self.ep.length).map(|steps| vec![0; steps]).unwrap_or_default();
                    self.add_block(TERMINATED, Block::memory(ends.unwrap_or_else(zeros)))?;
                }
                cuts.map_or(Ok(()), |cuts| self.add_block(TRUNCATED, Block::memory(cuts)))
            }
        }
    }

    /// The bytes of an end: stored ones as they are, others as 0 and 1.
    fn truths(&self, channel: &Channel) -> Result<Vec<u8>> {
        if let Some(problem) = &channel.problem {
            return Err(problem.clone());
        }
        self.check_flat(channel)?;
        let data = channel.data()?;
        if self.is_here(channel) || matches!(channel.data, Block::Runs(..)) {
            return Ok(data.into_owned());
        }
        Ok(channel.dtype.floats(&data).into_iter().map(|value| u8::from(value != 0.0)).collect())
    }

    /// The bytes of `done`: those of the file where they still mean the same.
    fn union(&self, ends: Option<&[u8]>, cuts: Option<&[u8]>) -> Vec<u8> {
        let flag = |ends: Option<&[u8]>, t: usize| ends.and_then(|ends| ends.get(t)).is_some_and(|flag| *flag != 0);
        let length = ends.or(cuts).map_or(0, <[u8]>::len);
        let done: Vec<u8> = (0..length).map(|t| u8::from(flag(ends, t) || flag(cuts, t))).collect();
        let stored =
            self.origin.filter(|origin| origin.reader.contains(DONE)).and_then(|origin| origin.reader.read(DONE).ok());
        let means_same = |stored: &Vec<u8>| stored.iter().map(|flag| u8::from(*flag != 0)).eq(done.iter().copied());
        stored.filter(means_same).unwrap_or(done)
    }

    pub(super) fn add_clocks(&mut self) -> Result<()> {
        let ep = self.ep;
        for (lane, name, dtype) in [(Lane::Ticks, TICKS, DType::I32), (Lane::Timestamps, TIMESTAMPS, DType::I64)] {
            let Some(channel) = ep.lanes.get(&lane) else {
                continue;
            };
            if channel.problem.is_none() || !self.is_here(channel) {
                self.check_flat(channel).map_err(|e| e.with_entry(name))?;
                if channel.dtype != dtype {
                    return Err(Error::invalid(format!("the clock is not of type {}", dtype.name())).with_entry(name));
                }
            }
            self.add_block(name, channel.data.clone())?;
        }
        if self.origin.is_some() {
            return self.keep_empty();
        }
        if !ep.lanes.contains_key(&Lane::Ticks) && !ep.extras.contains_key(META_SIDECAR) {
            let first = ep.timestep_range.map_or(0, |(first, _)| first);
            let ticks: Option<Vec<u8>> = number_steps(first, ep.length);
            match ticks {
                Some(ticks) => self.add_block(TICKS, Block::memory(ticks))?,
                None if ep.chunk_index.is_some() => {} // a chunk of a long recording has none
                None => {
                    return Err(Error::invalid("time/ticks cannot count so many steps").with_rule("W-TIM-2"));
                }
            }
        }
        Ok(())
    }

    /// Keeps the empty blocks of a file, which stand for lanes that are not there; some readers want to find them.
    fn keep_empty(&mut self) -> Result<()> {
        let is_empty =
            |origin: &Origin, name| origin.reader.index_entry(name).is_some_and(|entry| entry.orig_size == 0);
        for name in STEP_BLOCKS {
            if self.origin.is_some_and(|origin| is_empty(origin, name)) && !self.entries.contains_key(name) {
                self.add_block(name, Block::memory([]))?;
            }
        }
        Ok(())
    }

    // --- residuals, labels

    pub(super) fn add_residual(&mut self, residual: &Residual) -> Result<()> {
        let values = &residual.values;
        let is_here = self.is_here(values);
        let kind = residual.kind.name();
        let block = if is_here {
            values.names.data.clone()
        } else {
            join_keys("residual", &[&residual.channel, &residual.model, kind])
        };
        let scales_block = format!("{block}/scales");
        if let Some(problem) = &values.problem {
            let Some(origin) = self.origin.filter(|_| is_here) else {
                return Err(problem.clone());
            };
            for name in [&block, &scales_block] {
                if let Some(row) = origin.rows.get(name) {
                    self.rows.insert(name.clone(), row.fields.clone());
                }
            }
            return self.keep_blocks(&[&block, &scales_block]);
        }
        if !is_here {
            check_id(&residual.channel)?;
            if !residual.model.is_empty() {
                check_id(&residual.model)?;
            }
        }
        let steps = self.ep.length;
        let row = |name: &str, dtype: DType, shape: &[u64]| {
            row_for(&Channel::new(dtype, shape, steps, Block::memory([])), name, name, steps)
        };
        let mut about = json::object([("channel", residual.channel.as_str().into()), ("type", kind.into())]);
        if !residual.model.is_empty() {
            about.insert("model".into(), residual.model.as_str().into());
        }
        if residual.kind == ResidualKind::Sign2ndDiff {
            check_signs(values.data.size(), steps)?;
            self.add_block(&block, values.data.clone())?;
            if !is_here || values.row.is_some() {
                let bytes = packed_bytes(steps);
                about.insert("length".into(), values.data.size().checked_div(bytes).unwrap_or(0).into());
                let mut fields = row(&block, DType::U8, &[bytes])?;
                fields.extend(about);
                self.rows.insert(block, fields);
            }
            return Ok(());
        }
        let windows = steps.div_ceil(residual.window.max(1));
        let sizes = step_bytes(DType::I8, &values.shape)
            .map(|step| (times(step, steps), times(step.saturating_mul(4), windows)));
        let scales = residual.scales.as_ref();
        let found = (Some(values.data.size()), scales.map(|scales| scales.data.size()));
        let Some(scales) = scales.filter(|_| residual.window > 0 && values.dtype == DType::I8 && sizes == Some(found))
        else {
            return Err(Error::invalid("the residual does not fit the episode"));
        };
        self.add_block(&block, values.data.clone())?;
        self.add_block(&scales_block, scales.data.clone())?;
        about.insert("window".into(), residual.window.into());
        let mut fields = row(&block, DType::I8, &values.shape)?;
        fields.extend(about);
        self.rows.insert(block, fields);
        let mut fields = row(&scales_block, DType::F32, &values.shape)?;
        fields.insert("length".into(), windows.into());
        self.rows.insert(scales_block, fields);
        Ok(())
    }

    pub(super) fn add_labels(&mut self) -> Result<()> {
        let ep = self.ep;
        for (key, label) in &ep.labels {
            let name = join_keys("label", &[key]);
            if let LabelLane::Stored(stored) = label
                && self.origin.is_some_and(|origin| Arc::ptr_eq(&origin.reader, &stored.reader) && stored.name == name)
            {
                self.keep_text(&name)?;
                continue;
            }
            check_id(key).map_err(|e| e.with_entry(&name))?;
            let fields = label.read()?.fields();
            let refused = |e| Error::invalid("readers would refuse the label").with_entry(&name).with_source(e);
            Label::parse(&fields).map_err(refused)?;
            self.add_json(&name, &fields)?;
        }
        Ok(())
    }

    pub(super) fn add_provenance(&mut self) -> Result<()> {
        let Some(provenance) = &self.ep.provenance else {
            let has_one = self.origin.is_some_and(|origin| origin.reader.contains(META_PROVENANCE));
            return if has_one { self.keep_text(META_PROVENANCE) } else { Ok(()) };
        };
        let fields = provenance.fields();
        let refused =
            |e| Error::invalid("readers would refuse the provenance").with_entry(META_PROVENANCE).with_source(e);
        Provenance::parse(&fields).map_err(refused)?;
        self.add_json(META_PROVENANCE, &fields)
    }
}
