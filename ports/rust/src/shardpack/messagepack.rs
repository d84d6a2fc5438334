//! MessagePack, as metadata of records has it (P-MTD-3).

use std::collections::HashSet;

use crate::{Code, Error, Result};

use super::layout::Fields;

const DEEPEST: usize = 128;

/// A value of MessagePack.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing.
    Nil,
    /// True or false.
    Bool(bool),
    /// An integer from −2⁶³ to 2⁶⁴ − 1.
    Integer(i128),
    /// A float; those of 32 bits are read as 64.
    Float(f64),
    /// A string.
    Text(String),
    /// Bytes.
    Binary(Vec<u8>),
    /// A type that only its writer understands.
    Extension(i8, Vec<u8>),
    /// Some values.
    List(Vec<Value>),
    /// Keys and values, in the order in which they are stored. A key is any value but a list or a map.
    Map(Vec<(Value, Value)>),
}

/// Reads the one value that the bytes are. `most_values` bounds the keys, values and items of all maps and lists.
pub fn decode(bytes: &[u8], most_values: u64) -> Result<Value> {
    let mut decoder = Decoder { rest: Fields(bytes), values: 0, most: most_values };
    let value = decoder.value(1)?;
    if decoder.rest.0.is_empty() { Ok(value) } else { Err(invalid("bytes follow the value")) }
}

/// Gives the shortest form of a value.
pub fn encode(value: &Value) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    append(value, 1, &mut out)?;
    Ok(out)
}

fn invalid(problem: &str) -> Error {
    Error::new(Code::BadMetadata, "P-MTD-3", format!("not valid MessagePack: {problem}"))
}

struct Decoder<'a> {
    rest: Fields<'a>,
    /// How many keys, values and items maps and lists have announced.
    values: u64,
    most: u64,
}

impl<'a> Decoder<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.rest.take().ok_or_else(ends_early)
    }

    fn bytes(&mut self, size: usize) -> Result<&'a [u8]> {
        self.rest.bytes(size).ok_or_else(ends_early)
    }

    /// Reads a size of 1, 2 or 4 bytes: the low bits of the first byte of a value, counted from `base`, tell which.
    fn size(&mut self, first: u8, base: u8) -> Result<usize> {
        Ok(match first.wrapping_sub(base) {
            0 => usize::from(u8::from_be_bytes(self.take()?)),
            1 => usize::from(u16::from_be_bytes(self.take()?)),
            _ => u32::from_be_bytes(self.take()?) as usize,
        })
    }

    /// Reads a value; `level` counts the maps and lists around it, and itself if it is one.
    fn value(&mut self, level: usize) -> Result<Value> {
        let [first] = self.take()?;
        Ok(match first {
            0x00..=0x7F | 0xE0..=0xFF => Value::Integer(i128::from(first.cast_signed())),
            0x80..=0x8F => self.map(usize::from(first & 0x0F), level)?,
            0x90..=0x9F => self.list(usize::from(first & 0x0F), level)?,
            0xA0..=0xBF => self.text(usize::from(first & 0x1F))?,
            0xC0 => Value::Nil,
            0xC1 => return Err(invalid("unknown first byte 0xc1")),
            0xC2 | 0xC3 => Value::Bool(first == 0xC3),
            0xC4..=0xC6 => {
                let size = self.size(first, 0xC4)?;
                Value::Binary(self.bytes(size)?.to_vec())
            }
            0xC7..=0xC9 => {
                let size = self.size(first, 0xC7)?;
                self.extension(size)?
            }
            0xCA => Value::Float(f64::from(f32::from_be_bytes(self.take()?))),
            0xCB => Value::Float(f64::from_be_bytes(self.take()?)),
            0xCC => Value::Integer(i128::from(u8::from_be_bytes(self.take()?))),
            0xCD => Value::Integer(i128::from(u16::from_be_bytes(self.take()?))),
            0xCE => Value::Integer(i128::from(u32::from_be_bytes(self.take()?))),
            0xCF => Value::Integer(i128::from(u64::from_be_bytes(self.take()?))),
            0xD0 => Value::Integer(i128::from(i8::from_be_bytes(self.take()?))),
            0xD1 => Value::Integer(i128::from(i16::from_be_bytes(self.take()?))),
            0xD2 => Value::Integer(i128::from(i32::from_be_bytes(self.take()?))),
            0xD3 => Value::Integer(i128::from(i64::from_be_bytes(self.take()?))),
            0xD4..=0xD8 => self.extension(1 << (first & 0x0F).wrapping_sub(4))?,
            0xD9..=0xDB => {
                let size = self.size(first, 0xD9)?;
                self.text(size)?
            }
            0xDC | 0xDD => {
                let count = self.size(first, 0xDB)?;
                self.list(count, level)?
            }
            0xDE | 0xDF => {
                let count = self.size(first, 0xDD)?;
                self.map(count, level)?
            }
        })
    }

    fn text(&mut self, size: usize) -> Result<Value> {
        let text = std::str::from_utf8(self.bytes(size)?).map_err(|_| invalid("a string is not UTF-8"))?;
        Ok(Value::Text(text.to_owned()))
    }

    fn extension(&mut self, size: usize) -> Result<Value> {
        let code = i8::from_be_bytes(self.take()?);
        Ok(Value::Extension(code, self.bytes(size)?.to_vec()))
    }

    /// Refuses what a map or a list claims to hold, before anything is made of it.
    fn expect(&mut self, values: usize, level: usize) -> Result<()> {
        if level > DEEPEST {
            return Err(too_deep());
        }
        if values > self.rest.0.len() {
            return Err(ends_early()); // each takes at least one byte
        }
        self.values = self.values.saturating_add(values as u64);
        if self.values > self.most {
            return Err(Error::new(Code::LimitExceeded, "P-MTD-3", "the MessagePack has too many values")
                .with_expected(format_args!("at most {}", self.most))
                .with_found(format_args!("at least {}", self.values)));
        }
        Ok(())
    }

    fn list(&mut self, count: usize, level: usize) -> Result<Value> {
        self.expect(count, level)?;
        (0..count).map(|_| self.value(level.saturating_add(1))).collect::<Result<_>>().map(Value::List)
    }

    fn map(&mut self, count: usize, level: usize) -> Result<Value> {
        self.expect(count.saturating_mul(2), level)?;
        let mut pairs = Vec::with_capacity(count);
        let mut seen = HashSet::with_capacity(count);
        for _ in 0..count {
            let key = self.value(level.saturating_add(1))?;
            remember_key(&key, &mut seen)?;
            pairs.push((key, self.value(level.saturating_add(1))?));
        }
        Ok(Value::Map(pairs))
    }
}

fn ends_early() -> Error {
    invalid("it ends too early")
}

fn too_deep() -> Error {
    invalid("more than 128 levels of nesting")
}

/// Refuses a key that is a list or a map, or that the map has already.
fn remember_key(key: &Value, seen: &mut HashSet<Vec<u8>>) -> Result<()> {
    if matches!(key, Value::List(_) | Value::Map(_)) {
        return Err(invalid("a key is a list or a map"));
    }
    if seen.insert(encode(key)?) { Ok(()) } else { Err(invalid("a key occurs twice in one map")) }
}

// --- writing

fn append(value: &Value, level: usize, out: &mut Vec<u8>) -> Result<()> {
    match value {
        Value::Nil => out.push(0xC0),
        Value::Bool(value) => out.push(if *value { 0xC3 } else { 0xC2 }),
        Value::Integer(value) => append_integer(*value, out)?,
        Value::Float(value) => {
            out.push(0xCB);
            out.extend(value.to_be_bytes());
        }
        Value::Text(text) => {
            append_size(text.len(), Some((0xA0, 32)), [Some(0xD9), Some(0xDA), Some(0xDB)], out)?;
            out.extend(text.as_bytes());
        }
        Value::Binary(bytes) => {
            append_size(bytes.len(), None, [Some(0xC4), Some(0xC5), Some(0xC6)], out)?;
            out.extend(bytes);
        }
        Value::Extension(code, bytes) => {
            match bytes.len() {
                1 => out.push(0xD4),
                2 => out.push(0xD5),
                4 => out.push(0xD6),
                8 => out.push(0xD7),
                16 => out.push(0xD8),
                size => append_size(size, None, [Some(0xC7), Some(0xC8), Some(0xC9)], out)?,
            }
            out.extend(code.to_be_bytes());
            out.extend(bytes);
        }
        Value::List(_) | Value::Map(_) if level > DEEPEST => return Err(too_deep()),
        Value::List(items) => {
            append_size(items.len(), Some((0x90, 16)), [None, Some(0xDC), Some(0xDD)], out)?;
            for item in items {
                append(item, level.saturating_add(1), out)?;
            }
        }
        Value::Map(pairs) => {
            append_size(pairs.len(), Some((0x80, 16)), [None, Some(0xDE), Some(0xDF)], out)?;
            let mut seen = HashSet::with_capacity(pairs.len());
            for (key, value) in pairs {
                remember_key(key, &mut seen)?;
                append(key, level.saturating_add(1), out)?;
                append(value, level.saturating_add(1), out)?;
            }
        }
    }
    Ok(())
}

fn append_integer(value: i128, out: &mut Vec<u8>) -> Result<()> {
    if let (-32..=127, Ok(small)) = (value, i8::try_from(value)) {
        out.extend(small.to_be_bytes());
        return Ok(());
    }
    // The last bytes of the number in two's complement are its shortest form.
    let (first, width) = match value {
        0..=0xFF => (0xCC, 1),
        0x100..=0xFFFF => (0xCD, 2),
        0x1_0000..=0xFFFF_FFFF => (0xCE, 4),
        0x1_0000_0000..=0xFFFF_FFFF_FFFF_FFFF => (0xCF, 8),
        -0x80..0 => (0xD0, 1),
        -0x8000..0 => (0xD1, 2),
        -0x8000_0000..0 => (0xD2, 4),
        -0x8000_0000_0000_0000..0 => (0xD3, 8),
        _ => return Err(invalid("an integer needs more than 64 bits")),
    };
    out.push(first);
    out.extend(value.to_be_bytes().into_iter().skip(16_usize.saturating_sub(width)));
    Ok(())
}

/// Writes a size in its smallest form: in the first byte if it is below a bound, or after one of three first bytes.
fn append_size(size: usize, fixed: Option<(u8, usize)>, forms: [Option<u8>; 3], out: &mut Vec<u8>) -> Result<()> {
    if let (Some((base, bound)), Ok(small)) = (fixed, u8::try_from(size))
        && size < bound
    {
        out.push(base | small);
        return Ok(());
    }
    let [one, two, four] = forms;
    if let (Some(first), Ok(size)) = (one, u8::try_from(size)) {
        out.extend([first, size]);
    } else if let (Some(first), Ok(size)) = (two, u16::try_from(size)) {
        out.push(first);
        out.extend(size.to_be_bytes());
    } else if let (Some(first), Ok(size)) = (four, u32::try_from(size)) {
        out.push(first);
        out.extend(size.to_be_bytes());
    } else {
        return Err(invalid("it is too large"));
    }
    Ok(())
}
