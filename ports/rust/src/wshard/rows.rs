//! Rows of `meta/channels`: descriptions of blocks (spec/wshard.md, section 3).

use std::collections::HashSet;

use super::fields::{as_count, as_float, as_int, bad_metadata, given, wrong};
use super::names::cut;
use crate::DType;
use crate::json::{Object, Value};
use crate::{Error, Result};

const MOST_DIMENSIONS: usize = 31;
const MOST_BESIDE_ZERO: u64 = (1 << 31) - 1;
const A_NAME: &str = "a string with something in it";

/// A checked row: the description of one block.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) block: String,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<u64>,
    /// The whole row, as stored.
    pub(crate) fields: Object,
}

/// What a field of a row must be, if it is there.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Every row has it, or it says where the blocks of the channel are: a channel keeps these in fields of its own.
    Own,
    Text,
    /// A text that a channel keeps in a field of its own.
    OwnText,
    OwnCount,
    OwnPositive,
    Positive,
    Integer,
    Rate,
    Object,
}

/// The one list of the fields of a row (W-CHN-2), in the order in which they are checked. Others belong to other programs.
const FIELDS: [(&str, Kind); 23] = [
    ("channel", Kind::OwnText),
    ("content_type", Kind::Text),
    ("description", Kind::Text),
    ("dtype", Kind::Own),
    ("extradata", Kind::Text),
    ("frames_block", Kind::OwnText),
    ("horizon", Kind::Positive),
    ("id", Kind::Own),
    ("layout", Kind::OwnText),
    ("length", Kind::OwnCount),
    ("lossy", Kind::Object),
    ("modality", Kind::Text),
    ("model", Kind::OwnText),
    ("offsets_block", Kind::OwnText),
    ("sampling_rate_hz", Kind::Rate),
    ("semantics", Kind::Text),
    ("shape", Kind::Own),
    ("signal_block", Kind::Own),
    ("start_ns", Kind::Integer),
    ("time_block", Kind::OwnText),
    ("type", Kind::OwnText),
    ("unit", Kind::Text),
    ("window", Kind::OwnPositive),
];

impl Kind {
    fn is_own(self) -> bool {
        matches!(self, Self::Own | Self::OwnText | Self::OwnCount | Self::OwnPositive)
    }

    /// What is expected, if a value is something else.
    fn expects(self, value: &Value) -> Option<&'static str> {
        let (fits, expected) = match self {
            Self::Own => (true, ""),
            Self::Text | Self::OwnText => (value.as_str().is_some(), "a string"),
            Self::OwnCount => (as_count(value).is_some(), "an integer of 0 or more"),
            Self::Positive | Self::OwnPositive => (as_count(value).is_some_and(|n| n > 0), "an integer above 0"),
            Self::Integer => (as_int(value).is_some(), "an integer within 2**63"),
            Self::Rate => (as_float(value).is_some_and(|rate| rate > 0.0), "a number above 0"),
            Self::Object => (value.as_object().is_some(), "an object"),
        };
        (!fits).then_some(expected)
    }
}

/// Whether a channel keeps this field of its row in a field of its own.
pub(crate) fn is_own_field(field: &str) -> bool {
    FIELDS.iter().any(|(name, kind)| *name == field && kind.is_own())
}

/// Whether the format defines this field of a row.
pub(crate) fn is_known_field(field: &str) -> bool {
    FIELDS.iter().any(|(name, _)| *name == field)
}

impl Row {
    /// A field that is a string; "" if it is absent.
    pub(crate) fn text(&self, field: &str) -> &str {
        self.fields.get(field).and_then(Value::as_str).unwrap_or("")
    }

    /// A field that is an integer of 0 or more.
    pub(crate) fn count(&self, field: &str) -> Option<u64> {
        self.fields.get(field).and_then(as_count)
    }

    /// Whether the row says nothing of another layout.
    pub(crate) fn is_dense(&self) -> bool {
        matches!(self.fields.get("layout").and_then(Value::as_str), None | Some("dense"))
    }

    /// Checks one row (W-CHN-1 to W-CHN-4, W-CHN-8). In older files the block is the key of the row.
    pub(crate) fn parse(value: &Value, key: Option<&str>) -> Result<Self> {
        let Some(fields) = value.as_object() else {
            return Err(wrong("W-CHN-1", "a row", "an object", Some(value)));
        };
        let (id, block) = match key {
            Some(block) => (row_id(block).to_owned(), block.to_owned()),
            None => {
                let id = fields.get("id").and_then(Value::as_str).unwrap_or("").to_owned();
                let block = match given(fields, "signal_block") {
                    None => format!("signal/{id}"),
                    Some(Value::String(block)) => block.clone(),
                    other => return Err(wrong("W-CHN-2", "signal_block", "a string", other)),
                };
                (id, block)
            }
        };
        if id.is_empty() {
            return Err(wrong("W-CHN-2", "id", A_NAME, fields.get("id")));
        }
        Self::check(id, &block, fields).map_err(|e| e.with_entry(&block))
    }

    fn check(id: String, block: &str, fields: &Object) -> Result<Self> {
        let dtype = fields.get("dtype").and_then(Value::as_str).and_then(DType::parse);
        let dtype = dtype.ok_or_else(|| wrong("W-CHN-3", "dtype", "a known data type", fields.get("dtype")))?;
        let shape = parse_shape(fields.get("shape"))?;
        for (field, kind) in FIELDS {
            if let Some(value) = given(fields, field)
                && let Some(expected) = kind.expects(value)
            {
                return Err(wrong("W-CHN-2", field, expected, Some(value)));
            }
        }
        let row = Self { id, block: block.to_owned(), dtype, shape, fields: fields.clone() };
        if let Some(horizon) = row.count("horizon")
            && (row.shape.first() != Some(&horizon) || !row.is_dense())
        {
            return Err(bad_metadata(
                "W-CHN-8",
                "a row with a horizon is not dense, or its shape does not start with that number",
            ));
        }
        Ok(row)
    }
}

/// The id in the row of a block: its name, in `signal/` and `action/` without the prefix.
pub(crate) fn row_id(block: &str) -> &str {
    match cut(block) {
        ("signal" | "action", rest) if block.contains('/') => rest,
        _ => block,
    }
}

/// Reads the shape of one step (W-CHN-2, W-CHN-4).
fn parse_shape(value: Option<&Value>) -> Result<Vec<u64>> {
    let bad = |rule, expected| -> Error { wrong(rule, "shape", expected, value) };
    let list = match value {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::List(list)) => list,
        Some(_) => return Err(bad("W-CHN-2", "a list of integers of 0 or more")),
    };
    if !list.iter().all(Value::is_natural) {
        return Err(bad("W-CHN-2", "a list of integers of 0 or more"));
    }
    let shape: Option<Vec<u64>> = list.iter().map(as_count).collect();
    let shape = shape.ok_or_else(|| bad("W-CHN-4", "a list of integers below 2**63"))?;
    if shape.len() > MOST_DIMENSIONS {
        return Err(bad("W-CHN-4", "a list of at most 31 integers"));
    }
    let others = shape.iter().filter(|size| **size != 0).try_fold(1u64, |product, size| product.checked_mul(*size));
    if shape.contains(&0) && others.is_none_or(|product| product > MOST_BESIDE_ZERO) {
        return Err(bad("W-CHN-4", "at most 2**31 - 1 in all beside its 0"));
    }
    Ok(shape)
}

/// Reads `meta/channels` (W-CHN).
pub(crate) fn parse_rows(fields: &Object) -> Result<Vec<Row>> {
    let Some(listed) = fields.get("channels") else {
        return fields
            .iter()
            .filter(|(block, _)| *block != "modality_groups")
            .map(|(block, value)| Row::parse(value, Some(block)))
            .collect();
    };
    let Some(list) = listed.as_list() else {
        return Err(wrong("W-CHN-1", "channels", "a list", Some(listed)));
    };
    let mut seen = HashSet::new();
    let mut rows = Vec::new();
    for value in list {
        let row = Row::parse(value, None)?;
        if !seen.insert(row.block.clone()) {
            return Err(bad_metadata("W-CHN-5", format!("two rows describe the block {:.80?}", row.block)));
        }
        rows.push(row);
    }
    Ok(rows)
}
