//! Writes the canonical form.

use std::fmt::Write;

use super::{Object, Value};
use crate::{Error, Result};

pub(super) fn write_value(out: &mut String, value: &Value) -> Result<()> {
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

pub(super) fn write_object(out: &mut String, object: &Object) -> Result<()> {
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
        start.parse::<u64>().map(|n| n.saturating_add(1).to_string())
    } else {
        Ok(start.to_owned())
    };
    match even {
        Ok(even)
            if even.len() == digits.len()
                && format!("0.{even}e{}", exact_exponent.saturating_add(1)).parse() == Ok(value) =>
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
