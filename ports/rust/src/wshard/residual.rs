//! How a channel bends, or how far a prediction was off, in few bits (spec/wshard.md, section 9).

use super::block::{Block, Repeated, to_usize};
use super::channel::{Channel, Layout};
use super::dtype::step_bytes;
use super::fields::size_mismatch;
use crate::{DType, Error, Result};

const LARGEST_CODE: f64 = 127.0;
pub(crate) const DEFAULT_WINDOW: u64 = 256;

/// What a residual stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResidualKind {
    /// One bit a step: the sign of the second difference.
    Sign2ndDiff,
    /// The value itself, or its difference to a prediction, in 8 bits.
    DeltaQ,
}

impl ResidualKind {
    /// The name, as it is stored.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sign2ndDiff => "sign2nddiff",
            Self::DeltaQ => "delta_q",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        [Self::Sign2ndDiff, Self::DeltaQ].into_iter().find(|kind| kind.name() == name)
    }
}

/// A residual of an observation, or of the observation minus a prediction.
#[derive(Clone, Debug)]
pub struct Residual {
    /// What it is about.
    pub channel: String,
    /// Whose prediction was subtracted; empty if it is about the signal itself.
    pub model: String,
    /// What is stored.
    pub kind: ResidualKind,
    /// The steps that share a scale of `delta_q`.
    pub window: u64,
    /// The stored values: packed bits of `sign2nddiff`, i8 of `delta_q`.
    pub values: Channel,
    /// One f32 for each window and dimension of `delta_q`.
    pub scales: Option<Channel>,
    /// The steps of the episode.
    pub(crate) steps: u64,
    /// Whether the edges have the value of their neighbours, instead of 0.
    pub(crate) overlaps: bool,
}

/// The bytes of one bit a step.
pub(crate) fn packed_bytes(steps: u64) -> u64 {
    steps.div_ceil(8)
}

/// Checks W-RES-1.
pub(crate) fn check_signs(size: u64, steps: u64) -> Result<()> {
    let row = packed_bytes(steps);
    if size.checked_rem(row).unwrap_or(size) == 0 {
        return Ok(());
    }
    Err(size_mismatch(
        "W-RES-1",
        "the packed signs do not fit the steps",
        format_args!("a multiple of {row} bytes"),
        size,
    ))
}

impl Residual {
    /// Computes a residual of a signal, or of signal minus omen. `overlaps` is for `residual_edges` of the episode, and
    /// `window` for `delta_q`.
    pub(crate) fn compute(
        signal: &Channel,
        omen: Option<&Channel>,
        kind: ResidualKind,
        window: u64,
        overlaps: bool,
    ) -> Result<Self> {
        if signal.layout != Layout::Dense {
            return Err(Error::invalid("only a dense channel has residuals"));
        }
        let mut x = signal.to_f64()?;
        if let Some(omen) = omen {
            let predicted = omen.to_f64()?;
            if predicted.len() != x.len() {
                return Err(Error::invalid(format!(
                    "the signal has {} values, and the prediction {}",
                    x.len(),
                    predicted.len()
                )));
            }
            x.iter_mut().zip(predicted).for_each(|(value, predicted)| *value -= predicted);
        }
        let columns = to_usize(signal.shape.iter().product())?;
        let (values, scales) = match kind {
            ResidualKind::Sign2ndDiff => {
                let packed = pack_signs(&signs(&x, columns, overlaps), columns);
                (Channel::from_bytes(DType::U8, &[], packed), None)
            }
            ResidualKind::DeltaQ => {
                let (codes, scales) = quantize(&x, columns, to_usize(window)?)?;
                let mut values = Channel::from_values(&codes, &signal.shape);
                values.length = signal.length;
                let mut scales = Channel::from_values(&scales, &signal.shape);
                scales.length = signal.length.div_ceil(window.max(1));
                (values, Some(scales))
            }
        };
        Ok(Self {
            channel: String::new(),
            model: String::new(),
            kind,
            window,
            values,
            scales,
            steps: signal.length,
            overlaps,
        })
    }

    /// +1 and -1 for each step and dimension of a `sign2nddiff` residual, [T, D] in C order, and D; the edges are 0 if the
    /// episode pads them.
    pub fn signs(&self) -> Result<(Vec<i8>, usize)> {
        if self.kind != ResidualKind::Sign2ndDiff {
            return Err(Error::invalid("only a sign2nddiff residual has signs"));
        }
        let packed = self.values.data()?;
        let (row, steps) = (to_usize(packed_bytes(self.steps))?, to_usize(self.steps)?);
        let columns = packed.len().checked_div(row).unwrap_or(0);
        let mut signs = Vec::with_capacity(steps.saturating_mul(columns));
        for t in 0..steps {
            let is_edge = !self.overlaps && (t == 0 || t == steps.saturating_sub(1));
            signs.extend(packed.chunks(row.max(1)).map(|bits| match bit_at(bits, t) {
                _ if is_edge => 0,
                true => 1,
                false => -1,
            }));
        }
        Ok((signs, columns))
    }

    /// The signal that a `delta_q` residual was made of, within half a scale: omen + q · scale. A residual of the signal
    /// itself has no omen.
    pub fn reconstruct(&self, omen: Option<&Channel>) -> Result<Vec<f64>> {
        let Some(scales) = &self.scales else {
            return Err(Error::invalid("only a delta_q residual can be reconstructed"));
        };
        let (codes, scales) = (self.values.values::<i8>()?, scales.values::<f32>()?);
        let predicted = omen.map(Channel::to_f64).transpose()?.unwrap_or_else(|| vec![0.0; codes.len()]);
        if predicted.len() != codes.len() {
            return Err(Error::invalid("the prediction and the residual have different numbers of values"));
        }
        let columns = to_usize(self.values.shape.iter().product())?.max(1);
        let windows = codes.chunks(columns.saturating_mul(to_usize(self.window)?).max(1)).zip(scales.chunks(columns));
        let steps = windows.flat_map(|(window, scales)| window.iter().zip(scales.iter().cycle()));
        Ok(steps
            .zip(predicted)
            .map(|((code, scale), predicted)| predicted + f64::from(*code) * f64::from(*scale))
            .collect())
    }

    /// The packed bits of some of the steps.
    pub(crate) fn packed_part(&self, start: u64, end: u64) -> Result<Vec<u8>> {
        let packed = self.values.data()?;
        let row = to_usize(packed_bytes(self.steps))?.max(1);
        let (start, end) = (to_usize(start)?, to_usize(end)?);
        let rows = packed.chunks(row);
        Ok(rows.flat_map(|bits| pack_bits((start..end).map(|t| bit_at(bits, t)))).collect())
    }

    /// The dimensions of a `sign2nddiff` residual.
    pub(crate) fn dimensions(&self) -> u64 {
        self.values.data.size().checked_div(packed_bytes(self.steps)).unwrap_or(0)
    }

    /// The scales for windows of a divisor of the residual's own.
    pub(crate) fn scales_for(&self, window: u64) -> Option<Block> {
        let scales = self.scales.as_ref()?;
        let step = step_bytes(DType::F32, &scales.shape)?;
        let times = self.window.checked_div(window)?;
        let size = self.steps.div_ceil(window).checked_mul(step)?;
        Some(Block::Repeated(std::sync::Arc::new(Repeated { from: scales.data.clone(), step, times, size })))
    }
}

fn bit_at(bits: &[u8], t: usize) -> bool {
    bits.get(t / 8).is_some_and(|byte| byte >> (t % 8) & 1 == 1)
}

/// The sign of (2·x[t] - x[t-1]) - x[t+1] of each dimension, [T, D]; each operation is rounded on its own.
fn signs(x: &[f64], columns: usize, overlaps: bool) -> Vec<i8> {
    let rows: Vec<&[f64]> = x.chunks_exact(columns.max(1)).collect();
    let mut found = vec![0; x.len()];
    for (at, three) in rows.windows(3).enumerate() {
        let [before, here, after] = three else {
            continue;
        };
        let out = found.chunks_exact_mut(columns.max(1)).nth(at.saturating_add(1)).unwrap_or_default();
        for (((sign, here), before), after) in out.iter_mut().zip(*here).zip(*before).zip(*after) {
            let bend = (2.0 * here - before) - after;
            *sign = i8::from(bend > 0.0).wrapping_sub(i8::from(bend < 0.0));
        }
    }
    if overlaps && rows.len() > 2 {
        let last = x.len().saturating_sub(columns);
        found.copy_within(columns..columns.saturating_mul(2), 0);
        found.copy_within(last.saturating_sub(columns)..last, last);
    }
    found
}

/// One bit for each step that is above 0, least significant bit first, dimension after dimension.
fn pack_signs(signs: &[i8], columns: usize) -> Vec<u8> {
    (0..columns)
        .flat_map(|column| pack_bits(signs.iter().skip(column).step_by(columns.max(1)).map(|sign| *sign > 0)))
        .collect()
}

fn pack_bits(bits: impl Iterator<Item = bool>) -> Vec<u8> {
    let mut packed = Vec::new();
    for (t, bit) in bits.enumerate() {
        if t % 8 == 0 {
            packed.push(0);
        }
        if let Some(byte) = packed.last_mut() {
            *byte |= u8::from(bit) << (t % 8);
        }
    }
    packed
}

/// Codes and scales of differences, [T, D] in windows of steps.
fn quantize(d: &[f64], columns: usize, window: usize) -> Result<(Vec<i8>, Vec<f32>)> {
    if window == 0 {
        return Err(Error::invalid("a window has at least one step"));
    }
    if d.iter().any(|value| !value.is_finite()) {
        return Err(Error::invalid("a difference is NaN or infinite: it cannot be quantised"));
    }
    let mut codes = Vec::with_capacity(d.len());
    let mut all = Vec::new();
    for part in d.chunks(columns.saturating_mul(window).max(1)) {
        let scales: Vec<f32> = (0..columns)
            .map(|column| part.iter().skip(column).step_by(columns).fold(0.0, |peak: f64, value| peak.max(value.abs())))
            .map(scale_for)
            .collect();
        if scales.iter().any(|scale| scale.is_infinite()) {
            return Err(Error::invalid("a difference is too large for 32-bit scales"));
        }
        codes.extend(
            part.iter()
                .zip(scales.iter().cycle())
                .map(|(value, scale)| (value / f64::from(*scale)).round_ties_even() as i8),
        );
        all.extend(scales);
    }
    Ok((codes, all))
}

/// max|d| / 127, rounded up to a 32-bit float; 1 if all differences are 0.
fn scale_for(peak: f64) -> f32 {
    if peak == 0.0 {
        return 1.0;
    }
    let scale = (peak / LARGEST_CODE) as f32;
    if f64::from(scale) * LARGEST_CODE < peak { scale.next_up() } else { scale }
}

/// The packed bits of the residuals of several parts, dimension by dimension.
#[derive(Debug)]
pub(crate) struct JoinedSigns {
    pub(crate) parts: Vec<Residual>,
    pub(crate) steps: u64,
    pub(crate) dimensions: u64,
}

impl JoinedSigns {
    pub(crate) fn size(&self) -> u64 {
        packed_bytes(self.steps).saturating_mul(self.dimensions)
    }

    pub(crate) fn read(&self) -> Result<Vec<u8>> {
        let stored = self
            .parts
            .iter()
            .map(|part| Ok((part.values.data.read()?, to_usize(part.steps)?)))
            .collect::<Result<Vec<_>>>()?;
        let mut packed = Vec::new();
        for d in 0..to_usize(self.dimensions)? {
            let bits = stored.iter().flat_map(|(bits, steps)| {
                let row = bits.chunks(steps.div_ceil(8).max(1)).nth(d).unwrap_or_default();
                (0..*steps).map(move |t| bit_at(row, t))
            });
            packed.extend(pack_bits(bits));
        }
        Ok(packed)
    }
}
