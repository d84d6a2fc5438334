//! How steps become times (spec/wshard.md, section 5).

use super::fields::{as_float, as_int, wrong};
use super::names::{META_EPISODE, META_WSHARD};
use crate::json::{Object, Value};
use crate::{Code, Error, Result};

const DEFAULT_RATE_HZ: f64 = 30.0;
const NANOSECONDS: f64 = 1e9;

/// How steps become times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timebase {
    /// Whether every step has a time of its own, in `time/timestamps_ns`.
    pub has_timestamps: bool,
    /// The steps per second; `None` if the rate is not known.
    pub tick_hz: Option<f64>,
    /// The time of the first step of the file.
    pub epoch_ns: i64,
}

impl Timebase {
    /// A fixed rate that starts at time 0.
    pub fn at_rate(tick_hz: f64) -> Self {
        Self { tick_hz: Some(tick_hz), ..Self::default() }
    }

    /// The type, as it is stored.
    pub fn type_name(&self) -> &'static str {
        if self.has_timestamps { "timestamps_ns" } else { "ticks" }
    }

    /// The nanoseconds of one step, at most 2**63 - 1; `None` without a rate.
    pub fn dt_ns(&self) -> Option<i64> {
        // A cast from float to integer keeps to the range of the integer.
        self.tick_hz.map(|rate| (NANOSECONDS / rate).round_ties_even() as i64)
    }

    /// The time of step t at the rate; `None` without a rate.
    pub fn time_ns(&self, t: u64) -> Result<Option<i64>> {
        self.tick_hz.map(|rate| regular_time(self.epoch_ns, t, rate)).transpose()
    }

    /// The timebase as it is stored.
    pub(crate) fn fields(&self) -> Object {
        let mut fields = Object::new();
        fields.insert("tick_hz".into(), self.tick_hz.map_or(Value::Null, Value::from));
        fields.insert("type".into(), Value::from(self.type_name()));
        if let Some(dt) = self.dt_ns() {
            fields.insert("dt_ns".into(), Value::from(dt));
        }
        if self.epoch_ns != 0 {
            fields.insert("epoch_ns".into(), Value::from(self.epoch_ns));
        }
        fields
    }

    /// The timebase that `meta/episode` and `meta/wshard` state together (W-EPI-3, W-TIM-1).
    pub(crate) fn parse(episode: &Object, wshard: &Object) -> Result<Self> {
        let mut found = Self::default();
        let mut rates = [None; 4]; // in the order of their rank
        // meta/episode comes last, so that it has the last word.
        for (fields, entry, rank) in [(wshard, META_WSHARD, 1), (episode, META_EPISODE, 0)] {
            let base = match fields.get("timebase") {
                None | Some(Value::Null) => continue,
                Some(Value::Object(base)) => base,
                other => {
                    return Err(wrong("W-EPI-3", "timebase", "an object", other).with_entry(entry));
                }
            };
            let given = |field: &str| base.get(field).filter(|value| **value != Value::Null);
            let bad = |field, expected| wrong("W-TIM-1", field, expected, base.get(field)).with_entry(entry);
            match given("type") {
                None => {}
                Some(Value::String(text)) => match text.as_str() {
                    "ticks" => found.has_timestamps = false,
                    "timestamps_ns" => found.has_timestamps = true,
                    _ => {} // an unknown type counts as absent
                },
                Some(_) => return Err(bad("type", "a string")),
            }
            if let Some(epoch) = given("epoch_ns") {
                found.epoch_ns = as_int(epoch).ok_or_else(|| bad("epoch_ns", "an integer within 2**63"))?;
            }
            let rate = match given("tick_hz") {
                None => None,
                Some(rate) => Some(as_float(rate).ok_or_else(|| bad("tick_hz", "a number"))?),
            };
            let period = match given("dt_ns") {
                None => None,
                Some(dt) => Some(as_int(dt).ok_or_else(|| bad("dt_ns", "an integer within 2**63"))?),
            };
            let stated = [rate, period.filter(|dt| *dt > 0).map(|dt| NANOSECONDS / dt as f64)];
            for (place, rate) in rates.iter_mut().skip(rank).step_by(2).zip(stated) {
                *place = rate.filter(|rate| *rate > 0.0);
            }
        }
        // A writer of today says null for a rate that it does not know; those before it left the field out (W-TIM-5).
        let base = episode.get("timebase").and_then(Value::as_object);
        let is_unknown = base.and_then(|base| base.get("tick_hz")) == Some(&Value::Null);
        let otherwise = if is_unknown { None } else { Some(DEFAULT_RATE_HZ) };
        found.tick_hz = rates.into_iter().flatten().next().or(otherwise);
        Ok(found)
    }
}

/// Entry i of a clock that starts at a time: the product, the quotient and the sum are rounded one by one.
pub(crate) fn regular_time(start: i64, i: u64, rate: f64) -> Result<i64> {
    let passed = (i as f64 * NANOSECONDS / rate).round_ties_even();
    let fits = passed.abs() < 9_223_372_036_854_775_808.0;
    fits.then(|| start.checked_add(passed as i64)).flatten().ok_or_else(overflow)
}

pub(crate) fn add_time(a: i64, b: i64) -> Result<i64> {
    a.checked_add(b).ok_or_else(overflow)
}

fn overflow() -> Error {
    Error::new(Code::BadValue, "W-TIM-2", "a time does not fit into 64 bits")
}
