//! Reads the strict subset.

use super::{BigInt, Object, Value};
use crate::Error;
use crate::error::quoted;
use crate::registry::{Code, Limits};

const MAX_DEPTH: usize = 128;
const MAX_DIGITS: usize = 4000;

/// Why a text is not a value.
#[derive(Debug)]
pub(crate) enum Problem {
    TooManyNodes,
    Syntax { problem: String, at: usize },
}

impl Problem {
    pub(crate) fn into_error(self, what: &str, rule: &'static str, limits: &Limits) -> Error {
        match self {
            Problem::TooManyNodes => Error::new(Code::LimitExceeded, "S-SCH-8", format!("{what} has too many values"))
                .with_expected(format_args!("at most {}", limits.max_json_nodes)),
            Problem::Syntax { problem, at } => {
                Error::new(Code::BadMetadata, rule, format!("{what} is not valid JSON: {problem} at byte {at}"))
            }
        }
    }
}

/// Reads one value with at most so many of the characters `[`, `{`, `,` and `:` outside strings.
pub(crate) fn parse(text: &[u8], max_nodes: u64) -> Result<Value, Problem> {
    let text = std::str::from_utf8(text)
        .map_err(|e| Problem::Syntax { problem: "text that is not UTF-8".to_owned(), at: e.valid_up_to() })?;
    let mut parser = Parser { text, at: 0, nodes_left: max_nodes };
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
        Err(Problem::Syntax { problem: problem.into(), at: self.at })
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
        self.nodes_left = self.nodes_left.checked_sub(1).ok_or(Problem::TooManyNodes)?;
        Ok(())
    }

    fn value(&mut self, depth: usize) -> Result<Value, Problem> {
        match self.peek() {
            Some(b'{' | b'[') if depth > MAX_DEPTH => self.fail(format!("more than {MAX_DEPTH} levels")),
            Some(b'{') => self.object(depth),
            Some(b'[') => self.list(depth),
            Some(b'"') => Ok(Value::String(self.string()?)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => {
                for (word, value) in [("true", Value::Bool(true)), ("false", Value::Bool(false)), ("null", Value::Null)]
                {
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
                if matches!(units.first(), Some(0xD800..=0xDBFF)) && self.rest().starts_with(b"\\u") {
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
        let count = self.rest().iter().take_while(|c| c.is_ascii_digit()).count();
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
            Err(_) if count > MAX_DIGITS => self.fail(format!("an integer of more than {MAX_DIGITS} digits")),
            Err(_) => Ok(Value::BigInt(BigInt(text.to_owned()))),
        }
    }
}
