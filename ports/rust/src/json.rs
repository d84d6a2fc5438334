//! The JSON of spec/registry.md: a strict subset of RFC 8259, and its canonical form.
//!
//! The text of a number decides what it is: one without fraction and exponent is an integer, exact at any length.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::error::quoted;
use crate::registry::{Code, Limits};
use crate::{Error, Result};

const MAX_DEPTH: usize = 128;
const MAX_DIGITS: usize = 4000;

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
pub fn parse_object(
    text: &[u8],
    what: &str,
    rule: &'static str,
    limits: &Limits,
) -> Result<Object> {
    check_length(text.len() as u64, what, limits)?;
    match parse(text, limits.max_json_nodes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(Error::new(
            Code::BadMetadata,
            rule,
            format!("{what} is not a JSON object"),
        )),
        Err(problem) => Err(problem.into_error(what, rule, limits)),
    }
}

/// Refuses what is too long to be parsed (S-SCH-7). Call it before a text is decompressed.
pub(crate) fn check_length(size: u64, what: &str, limits: &Limits) -> Result<()> {
    if size > limits.max_json_bytes {
        return Err(Error::new(
            Code::LimitExceeded,
            "S-SCH-7",
            format!("{what} is too long"),
        )
        .with_expected(format_args!("at most {} bytes", limits.max_json_bytes))
        .with_found(size));
    }
    Ok(())
}

// --- reading

/// Why a text is not a value.
#[derive(Debug)]
pub(crate) enum Problem {
    TooManyNodes,
    Syntax { problem: String, at: usize },
}

impl Problem {
    pub(crate) fn into_error(self, what: &str, rule: &'static str, limits: &Limits) -> Error {
        match self {
            Problem::TooManyNodes => Error::new(
                Code::LimitExceeded,
                "S-SCH-8",
                format!("{what} has too many values"),
            )
            .with_expected(format_args!("at most {}", limits.max_json_nodes)),
            Problem::Syntax { problem, at } => Error::new(
                Code::BadMetadata,
                rule,
                format!("{what} is not valid JSON: {problem} at byte {at}"),
            ),
        }
    }
}

/// Reads one value with at most so many of the characters `[`, `{`, `,` and `:` outside strings.
pub(crate) fn parse(text: &[u8], max_nodes: u64) -> Result<Value, Problem> {
    let text = std::str::from_utf8(text).map_err(|e| Problem::Syntax {
        problem: "text that is not UTF-8".to_owned(),
        at: e.valid_up_to(),
    })?;
    let mut parser = Parser {
        text,
        at: 0,
        nodes_left: max_nodes,
    };
    parser.space();
    let value = parser.value(1)?;
    parser.space();
    match parser.peek() {
        None => Ok(value),
        Some(_) => parser.fail("something after the value"),
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    nodes_left: u64,
}

impl<'a> Parser<'a> {
    #[cold]
    fn fail<T>(&self, problem: impl Into<String>) -> Result<T, Problem> {
        Err(Problem::Syntax {
            problem: problem.into(),
            at: self.at,
        })
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip(&mut self, count: usize) {
        self.at = self.at.saturating_add(count);
    }

    fn rest(&self) -> &'a [u8] {
        self.text.as_bytes().get(self.at..).unwrap_or_default()
    }

    /// The text from an earlier place to here.
    fn since(&self, start: usize) -> &'a str {
        self.text.get(start..self.at).unwrap_or_default()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.skip(1);
        }
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.skip(usize::from(found));
        found
    }

    fn node(&mut self) -> Result<(), Problem> {
        self.nodes_left = self
            .nodes_left
            .checked_sub(1)
            .ok_or(Problem::TooManyNodes)?;
        Ok(())
    }

    fn value(&mut self, depth: usize) -> Result<Value, Problem> {
        match self.peek() {
            Some(b'{' | b'[') if depth > MAX_DEPTH => {
                self.fail(format!("more than {MAX_DEPTH} levels"))
            }
            Some(b'{') => self.object(depth),
            Some(b'[') => self.list(depth),
            Some(b'"') => Ok(Value::String(self.string()?)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => {
                for (word, value) in [
                    ("true", Value::Bool(true)),
                    ("false", Value::Bool(false)),
                    ("null", Value::Null),
                ] {
                    if self.rest().starts_with(word.as_bytes()) {
                        self.skip(word.len());
                        return Ok(value);
                    }
                }
                self.fail("no value")
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, Problem> {
        let mut found = Object::new();
        self.node()?;
        self.skip(1);
        self.space();
        if self.eat(b'}') {
            return Ok(Value::Object(found));
        }
        loop {
            self.space();
            if self.peek() != Some(b'"') {
                return self.fail("no key");
            }
            let key = self.string()?;
            self.space();
            if !self.eat(b':') {
                return self.fail("no colon");
            }
            self.node()?;
            self.space();
            let value = self.value(depth.saturating_add(1))?;
            // Appending is fast: canonical text has its keys in order.
            if let Some((key, _)) = found.get_key_value(&key) {
                return self.fail(format!("the key {} twice in one object", quoted(key)));
            }
            found.insert(key, value);
            self.space();
            if self.eat(b'}') {
                return Ok(Value::Object(found));
            }
            if !self.eat(b',') {
                return self.fail("no comma or brace");
            }
            self.node()?;
        }
    }

    fn list(&mut self, depth: usize) -> Result<Value, Problem> {
        let mut found = Vec::new();
        self.node()?;
        self.skip(1);
        self.space();
        if self.eat(b']') {
            return Ok(Value::List(found));
        }
        loop {
            self.space();
            found.push(self.value(depth.saturating_add(1))?);
            self.space();
            if self.eat(b']') {
                return Ok(Value::List(found));
            }
            if !self.eat(b',') {
                return self.fail("no comma or bracket");
            }
            self.node()?;
        }
    }

    fn string(&mut self) -> Result<String, Problem> {
        self.skip(1);
        let mut out = String::new();
        loop {
            let start = self.at;
            let plain = |&c: &u8| c != b'"' && c != b'\\' && c >= 0x20;
            self.skip(self.rest().iter().take_while(|c| plain(c)).count());
            let piece = self.since(start);
            match self.peek() {
                Some(b'"') => {
                    self.skip(1);
                    out.push_str(piece);
                    return Ok(out);
                }
                Some(b'\\') => {
                    out.push_str(piece);
                    self.skip(1);
                    out.push(self.escape()?);
                }
                Some(_) => return self.fail("a control character in a string"),
                None => return self.fail("a string without an end"),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Problem> {
        let Some(letter) = self.peek() else {
            return self.fail("half an escape");
        };
        self.skip(1);
        Ok(match letter {
            b'"' | b'\\' | b'/' => char::from(letter),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let mut units = vec![self.hex()?];
                if matches!(units.first(), Some(0xD800..=0xDBFF)) && self.rest().starts_with(b"\\u")
                {
                    self.skip(2);
                    units.push(self.hex()?);
                }
                let mut decoded = char::decode_utf16(units);
                match (decoded.next(), decoded.next()) {
                    (Some(Ok(found)), None) => found,
                    _ => return self.fail("a lone surrogate"),
                }
            }
            _ => return self.fail("an unknown escape"),
        })
    }

    fn hex(&mut self) -> Result<u16, Problem> {
        let start = self.at;
        self.skip(4);
        let digits = self.since(start);
        match u16::from_str_radix(digits, 16) {
            Ok(unit) if digits.len() == 4 && !digits.starts_with('+') => Ok(unit),
            _ => self.fail("an escape without four hex digits"),
        }
    }

    fn digits(&mut self) -> usize {
        let count = self
            .rest()
            .iter()
            .take_while(|c| c.is_ascii_digit())
            .count();
        self.skip(count);
        count
    }

    fn number(&mut self) -> Result<Value, Problem> {
        let start = self.at;
        self.eat(b'-');
        let leading = self.peek();
        let count = self.digits();
        if count == 0 || (leading == Some(b'0') && count > 1) {
            return self.fail("not a number");
        }
        let mut is_float = false;
        if self.eat(b'.') {
            is_float = true;
            if self.digits() == 0 {
                return self.fail("not a number");
            }
        }
        if self.eat(b'e') || self.eat(b'E') {
            is_float = true;
            let _ = self.eat(b'+') || self.eat(b'-');
            if self.digits() == 0 {
                return self.fail("not a number");
            }
        }
        let text = self.since(start);
        if is_float {
            return match text.parse::<f64>() {
                Ok(value) if value.is_finite() => Ok(Value::Float(value)),
                _ => self.fail("a number beyond 64-bit floats"),
            };
        }
        match text.parse::<i64>() {
            Ok(value) => Ok(Value::Int(value)),
            Err(_) if count > MAX_DIGITS => {
                self.fail(format!("an integer of more than {MAX_DIGITS} digits"))
            }
            Err(_) => Ok(Value::BigInt(BigInt(text.to_owned()))),
        }
    }
}

// --- writing

fn write_value(out: &mut String, value: &Value) -> Result<()> {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Int(value) => {
            let _ = write!(out, "{value}"); // writing to a string cannot fail
        }
        Value::BigInt(value) => out.push_str(&value.0),
        Value::Float(value) if value.is_finite() => out.push_str(&number(*value)),
        Value::Float(value) => return Err(Error::invalid(format!("{value} is not a JSON number"))),
        Value::String(text) => write_string(out, text),
        Value::List(list) => {
            out.push('[');
            for (i, item) in list.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_value(out, item)?;
            }
            out.push(']');
        }
        Value::Object(object) => write_object(out, object)?,
    }
    Ok(())
}

fn write_object(out: &mut String, object: &Object) -> Result<()> {
    out.push('{');
    for (i, (key, value)) in object.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        write_string(out, key);
        out.push(':');
        write_value(out, value)?;
    }
    out.push('}');
    Ok(())
}

/// Writes a text with the escapes of the canonical form.
pub(crate) fn write_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// The canonical form of a finite float: as ECMAScript prints it.
pub fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let sign = if value < 0.0 { "-" } else { "" };
    let (digits, exponent) = shortest_digits(value.abs());
    let count = i32::try_from(digits.len()).unwrap_or_default();
    let point = exponent.saturating_add(1); // the value is 0.digits × 10^point
    let zeros = |count: i32| "0".repeat(usize::try_from(count).unwrap_or_default());
    let split = |at: i32| digits.split_at_checked(usize::try_from(at).unwrap_or_default());
    if (count..=21).contains(&point) {
        return format!("{sign}{digits}{}", zeros(point.saturating_sub(count)));
    }
    if (-5..=0).contains(&point) {
        return format!("{sign}0.{}{digits}", zeros(point.saturating_neg()));
    }
    let in_digits = (1..=21).contains(&point);
    let (whole, fraction) = split(if in_digits { point } else { 1 }).unwrap_or((&digits, ""));
    let mut out = format!("{sign}{whole}");
    if !fraction.is_empty() {
        out.push('.');
        out.push_str(fraction);
    }
    if !in_digits {
        let _ = write!(out, "e{exponent:+}");
    }
    out
}

/// The fewest digits that read back as the same float, and the exponent of the first of them.
fn shortest_digits(value: f64) -> (String, i32) {
    let (digits, exponent) = digits_of(&format!("{value:e}"));
    // Rust does not say which of two equally close decimals it prints; the canonical one has an even last digit. They are
    // equally close if the exact value goes on with a single 5.
    let (longer, _) = digits_of(&format!("{value:.*e}", digits.len()));
    let Some(start) = longer.strip_suffix('5') else {
        return (digits, exponent);
    };
    const MOST_DIGITS: usize = 767; // that a float can have
    let (exact, exact_exponent) = digits_of(&format!("{value:.MOST_DIGITS$e}"));
    let is_tie = exact.trim_end_matches('0') == longer;
    let is_odd = |text: &str| text.bytes().last().is_some_and(|c| c % 2 == 1);
    if !is_tie || !is_odd(&digits) {
        return (digits, exponent);
    }
    // One candidate is the start itself, the other is one above it.
    let even = if is_odd(start) {
        start
            .parse::<u64>()
            .map(|n| n.saturating_add(1).to_string())
    } else {
        Ok(start.to_owned())
    };
    match even {
        Ok(even)
            if even.len() == digits.len()
                && format!("0.{even}e{}", exact_exponent.saturating_add(1)).parse()
                    == Ok(value) =>
        {
            (even, exact_exponent)
        }
        _ => (digits, exponent),
    }
}

/// Takes a number such as `1.25e-7` apart.
fn digits_of(text: &str) -> (String, i32) {
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    (mantissa.replace('.', ""), exponent.parse().unwrap_or(0))
}
