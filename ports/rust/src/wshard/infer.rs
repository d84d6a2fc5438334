//! Guesses what a block without a row holds (spec/wshard.md, section 10).

use super::channel::{Channel, Layout};
use super::dtype::{step_bytes, times};
use super::names::{LATENT_ACTION, LATENT_CODEBOOK, cut};
use super::route::Router;
use super::rows::Row;
use crate::DType;

impl Router<'_> {
    /// Guesses what a block holds: the first description that fits its size (section 10).
    pub(super) fn inferred(&self, name: &str) -> Channel {
        let mut channel = self.channel(name, DType::U8, 0);
        channel.problem = self.reader.check_size(name).err();
        let (size, steps) = (channel.data.size(), self.ep.length);
        let (lane, rest) = cut(name);
        let about = cut(rest).0;
        // The length that fits a type and a shape.
        let fits = |dtype, shape: &[u64]| {
            let step = step_bytes(dtype, shape)?;
            let may_be_more = lane != "action" && step != 0;
            let lengths = [Some(steps), may_be_more.then(|| steps.saturating_add(1))];
            lengths.into_iter().flatten().find(|length| times(*length, step) == Some(size))
        };
        let described = |row: &Row| fits(row.dtype, &row.shape).map(|length| (row.clone(), length));
        let is_action = lane == "action";
        let is_hinted = self.hints.get(name).and_then(described);
        let stands_for = || self.unplaced.get(rest).filter(|_| is_action).and_then(described);
        channel.is_inferred = is_hinted.is_none();
        channel.has_any_length = channel.is_inferred;
        if let Some((row, length)) = is_hinted.or_else(stands_for) {
            channel.describe(&row);
            (channel.length, channel.layout) = (length, Layout::Dense);
            return channel;
        }
        let whole = |dtype, shape: Vec<u64>| fits(dtype, &shape).map(|length| (dtype, shape, length));
        let columns = |dtype: DType| {
            let row = times(steps, dtype.size() as u64)?;
            let count = size.checked_div(row)?;
            whole(dtype, vec![count])
        };
        let is_omen = lane == "omen";
        let signal = format!("signal/{about}");
        let signal = self.rows.get(&signal).or_else(|| self.base_rows.and_then(|rows| rows.get(&signal)));
        let signal = signal.filter(|_| is_omen || lane == "uncert").and_then(|row| {
            let is_rounded = lane == "uncert" && !row.dtype.is_float();
            whole(if is_rounded { DType::F32 } else { row.dtype }, row.shape.clone())
        });
        let codebook =
            (is_omen && about == LATENT_CODEBOOK).then(|| whole(DType::I32, vec![]).or_else(|| columns(DType::I32)));
        let latent = (is_omen && about == LATENT_ACTION).then(|| columns(DType::F32));
        let guess = codebook.flatten().or_else(|| latent.flatten()).or(signal);
        match guess.or_else(|| whole(DType::F32, vec![])).or_else(|| columns(DType::F32)) {
            Some(found) => (channel.dtype, channel.shape, channel.length) = found,
            None => (channel.length, channel.has_time_axis) = (size, false),
        }
        channel
    }
}
