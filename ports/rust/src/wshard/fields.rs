//! Fields of JSON objects, checked.

use std::borrow::Cow;
use std::fmt::Display;

use crate::json::{Object, Value};
use crate::{Code, Error};

/// An integer within ±(2**63 - 1).
pub(crate) fn as_int(value: &Value) -> Option<i64> {
    value.as_i64().filter(|number| *number != i64::MIN)
}

/// An integer from 0 to 2**63 - 1.
pub(crate) fn as_count(value: &Value) -> Option<u64> {
    value.as_i64().and_then(|number| u64::try_from(number).ok())
}

/// A number that a 64-bit float can hold.
pub(crate) fn as_float(value: &Value) -> Option<f64> {
    value.as_f64().filter(|number| number.is_finite())
}

/// A field that is not null.
pub(crate) fn given<'a>(fields: &'a Object, field: &str) -> Option<&'a Value> {
    fields.get(field).filter(|value| !value.is_null())
}

/// The error for a field that is not what it must be.
pub(crate) fn wrong(rule: &'static str, field: &str, expected: &str, found: Option<&Value>) -> Error {
    bad_metadata(rule, format!("'{field:.60}' is not {expected}")).with_found(short(found))
}

pub(crate) fn bad_metadata(rule: &'static str, problem: impl Into<Cow<'static, str>>) -> Error {
    Error::new(Code::BadMetadata, rule, problem)
}

pub(crate) fn size_mismatch(
    rule: &'static str,
    problem: &'static str,
    expected: impl Display,
    found: impl Display,
) -> Error {
    Error::new(Code::SizeMismatch, rule, problem).with_expected(expected).with_found(found)
}

/// Names a value in an error.
fn short(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "nothing".to_owned(),
        Some(Value::String(text)) => format!("{text:.40?}"),
        Some(Value::List(list)) => format!("a list of {}", list.len()),
        Some(Value::Object(_)) => "an object".to_owned(),
        Some(Value::Bool(flag)) => flag.to_string(),
        Some(_) => "another number".to_owned(),
    }
}

/// The fields of an object that are not known.
pub(crate) fn others(fields: &Object, known: &[&str]) -> Object {
    fields
        .iter()
        .filter(|(key, _)| !known.contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}
