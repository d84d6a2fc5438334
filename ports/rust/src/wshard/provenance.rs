//! Which recording an episode was made from (spec/wshard.md, section 13).

use std::collections::BTreeMap;

use super::fields::{bad_metadata, wrong};
use crate::Result;
use crate::hash::is_sha256_hex;
use crate::json::{Object, Value, object};

const LARGEST_EXACT: u64 = (1 << 53) - 1;

/// Which recording an episode was made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provenance {
    /// The state before the first step; empty or 64 hex digits.
    pub start_state: String,
    /// The state after the last step; empty or 64 hex digits.
    pub end_state: String,
    /// The identity of the episode before; empty or 64 hex digits.
    pub prev_identity: String,
    /// The name of the run.
    pub run_id: String,
    /// The epoch of the run.
    pub epoch: i64,
    /// The first number of the source's sequence.
    pub first_seq: i64,
    /// The last number of the source's sequence.
    pub last_seq: i64,
    /// Anything about the source.
    pub source: BTreeMap<String, String>,
}

impl Provenance {
    /// Checks W-PRV-1.
    pub(crate) fn parse(fields: &Object) -> Result<Self> {
        let bad = |field, expected| wrong("W-PRV-1", field, expected, fields.get(field));
        let text = |field| {
            let text = fields.get(field).and_then(Value::as_str).ok_or_else(|| bad(field, "a string"))?;
            Ok(text.to_owned())
        };
        let state = |field| {
            let found: Result<String> = text(field);
            match found {
                Ok(text) if !text.is_empty() && !is_sha256_hex(&text) => {
                    Err(bad(field, "empty or 64 lower-case hex digits"))
                }
                found => found,
            }
        };
        let number = |field| {
            let number =
                fields.get(field).and_then(Value::as_i64).filter(|number| number.unsigned_abs() <= LARGEST_EXACT);
            number.ok_or_else(|| bad(field, "an integer within 2**53"))
        };
        let source =
            fields.get("source").and_then(Value::as_object).ok_or_else(|| bad("source", "an object of strings"))?;
        let source = source.iter().map(|(key, value)| {
            let text = value.as_str().ok_or_else(|| bad("source", "an object of strings"))?;
            Ok((key.clone(), text.to_owned()))
        });
        let found = Self {
            start_state: state("start_state")?,
            end_state: state("end_state")?,
            prev_identity: state("prev_identity")?,
            run_id: text("run_id")?,
            epoch: number("epoch")?,
            first_seq: number("first_seq")?,
            last_seq: number("last_seq")?,
            source: source.collect::<Result<_>>()?,
        };
        if fields.get("v") != Some(&Value::Int(1)) {
            return Err(bad("v", "1"));
        }
        if fields.len() != found.fields().len() {
            return Err(bad_metadata("W-PRV-1", "meta/provenance has a field that it must not have"));
        }
        Ok(found)
    }

    /// The provenance as it is stored.
    pub(crate) fn fields(&self) -> Object {
        let source =
            self.source.iter().map(|(key, value)| (key.clone(), Value::from(value.as_str()))).collect::<Object>();
        object([
            ("end_state", self.end_state.as_str().into()),
            ("epoch", self.epoch.into()),
            ("first_seq", self.first_seq.into()),
            ("last_seq", self.last_seq.into()),
            ("prev_identity", self.prev_identity.as_str().into()),
            ("run_id", self.run_id.as_str().into()),
            ("source", source.into()),
            ("start_state", self.start_state.as_str().into()),
            ("v", 1.into()),
        ])
    }
}
