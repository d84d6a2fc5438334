//! Labelled intervals (spec/wshard.md, section 7).

use super::fields::{as_float, as_int, given, others, wrong};
use crate::Result;
use crate::json::{Object, Value};

/// What the ends of intervals count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// Steps of the episode.
    #[default]
    Steps,
    /// Nanoseconds.
    Nanoseconds,
}

impl Unit {
    /// The name, as it is stored.
    pub fn name(self) -> &'static str {
        match self {
            Self::Steps => "steps",
            Self::Nanoseconds => "ns",
        }
    }
}

/// A part of an episode with a text, half-open.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Interval {
    /// The first step or time.
    pub start: i64,
    /// The end, which does not belong to it.
    pub end: i64,
    /// What is said about it.
    pub text: String,
    /// Who said so; may be empty.
    pub source: String,
    /// `None` if nobody stated one.
    pub confidence: Option<f64>,
    /// Fields that the format does not define.
    pub fields: Object,
}

/// A lane of labelled intervals.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Label {
    /// What the intervals count.
    pub unit: Unit,
    /// The intervals, in the order in which they were given.
    pub intervals: Vec<Interval>,
}

impl Label {
    /// Checks W-LAB-1 and W-LAB-2.
    pub(crate) fn parse(fields: &Object) -> Result<Self> {
        let unit = match fields.get("unit") {
            None => Unit::Steps,
            Some(Value::String(text)) if text == "steps" => Unit::Steps,
            Some(Value::String(text)) if text == "ns" => Unit::Nanoseconds,
            other => return Err(wrong("W-LAB-2", "unit", "steps or ns", other)),
        };
        let list = fields.get("intervals").and_then(Value::as_list);
        let list = list.ok_or_else(|| wrong("W-LAB-1", "intervals", "a list", fields.get("intervals")))?;
        let intervals = list.iter().map(Interval::parse).collect::<Result<_>>()?;
        Ok(Self { unit, intervals })
    }

    /// The label as it is stored.
    pub(crate) fn fields(&self) -> Object {
        let list = self.intervals.iter().map(|one| Value::Object(one.fields())).collect();
        Object::from_iter([
            ("intervals".to_owned(), Value::List(list)),
            ("unit".to_owned(), Value::from(self.unit.name())),
        ])
    }
}

impl Interval {
    pub(crate) fn parse(value: &Value) -> Result<Self> {
        let row = value.as_object().ok_or_else(|| wrong("W-LAB-1", "an interval", "an object", Some(value)))?;
        let bad = |field, expected| wrong("W-LAB-1", field, expected, row.get(field));
        let number = |field| row.get(field).and_then(as_int).ok_or_else(|| bad(field, "an integer within 2**63"));
        let (start, end) = (number("start")?, number("end")?);
        if start > end {
            return Err(bad("start", "at or before its end"));
        }
        let text = row.get("text").and_then(Value::as_str).ok_or_else(|| bad("text", "a string"))?;
        let source = match row.get("source") {
            None => "",
            Some(source) => source.as_str().ok_or_else(|| bad("source", "a string"))?,
        };
        let confidence = match given(row, "confidence") {
            None => None,
            Some(value) => Some(as_float(value).ok_or_else(|| bad("confidence", "a number"))?),
        };
        let fields = others(row, &["start", "end", "text", "source", "confidence"]);
        Ok(Self { start, end, text: text.to_owned(), source: source.to_owned(), confidence, fields })
    }

    fn fields(&self) -> Object {
        let mut fields = self.fields.clone();
        fields.insert("end".into(), Value::from(self.end));
        fields.insert("start".into(), Value::from(self.start));
        fields.insert("text".into(), Value::from(self.text.as_str()));
        if !self.source.is_empty() {
            fields.insert("source".into(), Value::from(self.source.as_str()));
        }
        if let Some(confidence) = self.confidence {
            fields.insert("confidence".into(), Value::from(confidence));
        }
        fields
    }
}
