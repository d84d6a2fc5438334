//! The JSON of spec/registry.md: a strict subset of RFC 8259, and its canonical form.
//!
//! The text of a number decides what it is: one without fraction and exponent is an integer, exact at any length.

mod parse;
mod write;

use std::collections::BTreeMap;

use crate::registry::{Code, Limits};
use crate::{Error, Result};

pub(crate) use parse::parse;
pub use write::number;
pub(crate) use write::write_string;
use write::{write_object, write_value};

/// An object. Its keys are in the canonical order, that of their UTF-8 bytes.
pub type Object = BTreeMap<String, Value>;

/// A JSON value.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Value {
    /// `null`
    #[default]
    Null,
    /// `true` or `false`
    Bool(bool),
    /// An integer.
    Int(i64),
    /// An integer outside the range of `i64`.
    BigInt(BigInt),
    /// A number with a fraction or an exponent.
    Float(f64),
    /// A text.
    String(String),
    /// A list.
    List(Vec<Value>),
    /// An object.
    Object(Object),
}

/// An integer of any length, in plain decimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BigInt(String);

impl BigInt {
    /// The digits, with a sign if it is below 0.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is below 0.
    pub fn is_negative(&self) -> bool {
        self.0.starts_with('-')
    }
}

impl Value {
    /// Reads one value, with the default limits.
    pub fn parse(text: &[u8]) -> Result<Value> {
        let limits = Limits::default();
        parse(text, limits.max_json_nodes).map_err(|e| e.into_error("the text", "", &limits))
    }

    /// The canonical form. NaN and infinite numbers have none.
    pub fn canonical(&self) -> Result<String> {
        let mut out = String::new();
        write_value(&mut out, self)?;
        Ok(out)
    }

    /// Whether it is `null`.
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// The text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// The integer, if it is one that fits.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Value::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// The integer, if it is one of 0 or more that fits.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Value::Int(value) => u64::try_from(*value).ok(),
            Value::BigInt(value) => value.0.parse().ok(),
            _ => None,
        }
    }

    /// The number as a float, whether it is an integer or not.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            #[allow(clippy::cast_precision_loss)]
            Value::Int(value) => Some(*value as f64),
            Value::BigInt(value) => value.0.parse().ok(),
            Value::Float(value) => Some(*value),
            _ => None,
        }
    }

    /// The truth value, if it is one.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// The list, if it is one.
    pub fn as_list(&self) -> Option<&[Value]> {
        match self {
            Value::List(list) => Some(list),
            _ => None,
        }
    }

    /// The object, if it is one.
    pub fn as_object(&self) -> Option<&Object> {
        match self {
            Value::Object(object) => Some(object),
            _ => None,
        }
    }

    /// A field, if this is an object that has it.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.as_object()?.get(key)
    }

    /// Whether it is an integer of 0 or more, of any length.
    pub fn is_natural(&self) -> bool {
        match self {
            Value::Int(value) => *value >= 0,
            Value::BigInt(value) => !value.is_negative(),
            _ => false,
        }
    }
}

macro_rules! from {
    ($($kind:ty => |$value:ident| $made:expr),+ $(,)?) => {
        $(impl From<$kind> for Value {
            fn from($value: $kind) -> Value {
                $made
            }
        })+
    };
}

from! {
    bool => |v| Value::Bool(v),
    u8 => |v| Value::Int(i64::from(v)),
    i32 => |v| Value::Int(i64::from(v)),
    u32 => |v| Value::Int(i64::from(v)),
    i64 => |v| Value::Int(v),
    u64 => |v| i64::try_from(v).map_or_else(|_| Value::BigInt(BigInt(v.to_string())), Value::Int),
    usize => |v| Value::from(v as u64),
    f64 => |v| Value::Float(v),
    &str => |v| Value::String(v.to_owned()),
    String => |v| Value::String(v),
    Object => |v| Value::Object(v),
    Vec<Value> => |v| Value::List(v),
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Value {
        value.map_or(Value::Null, Into::into)
    }
}

impl<T: Into<Value>> FromIterator<T> for Value {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Value {
        Value::List(items.into_iter().map(Into::into).collect())
    }
}

/// An object of some fields.
pub fn object<const N: usize>(fields: [(&str, Value); N]) -> Object {
    fields.map(|(key, value)| (key.to_owned(), value)).into()
}

/// The canonical form of an object.
pub fn canonical(object: &Object) -> Result<String> {
    let mut out = String::new();
    write_object(&mut out, object)?;
    Ok(out)
}

/// Reads a text that must be an object (S-SCH-2, S-SCH-7, S-SCH-8). Errors say `what` the text is, and name the `rule`.
pub fn parse_object(text: &[u8], what: &str, rule: &'static str, limits: &Limits) -> Result<Object> {
    check_length(text.len() as u64, what, limits)?;
    match parse(text, limits.max_json_nodes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(Error::new(Code::BadMetadata, rule, format!("{what} is not a JSON object"))),
        Err(problem) => Err(problem.into_error(what, rule, limits)),
    }
}

/// Refuses what is too long to be parsed (S-SCH-7). Call it before a text is decompressed.
pub(crate) fn check_length(size: u64, what: &str, limits: &Limits) -> Result<()> {
    if size > limits.max_json_bytes {
        return Err(Error::new(Code::LimitExceeded, "S-SCH-7", format!("{what} is too long"))
            .with_expected(format_args!("at most {} bytes", limits.max_json_bytes))
            .with_found(size));
    }
    Ok(())
}
