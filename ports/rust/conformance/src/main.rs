//! Answers the questions of the conformance runner; spec/vectors/README.md describes them.
//!
//! Each kind of file has a module. `KINDS` says what the program can do with it.

mod container;
mod episode;
mod episode_case;
mod journal;
mod pack;
mod recording;
mod set;

use std::io::{BufRead, Write};
use std::path::Path;
use std::process::ExitCode;

use shard_format::json::{self, Object, Value};
use shard_format::shard::ReaderOptions;
use shard_format::{Code, Error, Limits, Result, ShardReader, hash};

const USAGE: &str = "shard-conformance info | read KIND FILE | step KIND FILE CASE | stream FILE | recover FILE | verify FILE SIGNATURE KEY | write CASE OUT | rewrite KIND IN OUT | --batch";

/// What the program can do with one kind of file. A kind without features is not asked for.
pub struct Kind {
    pub name: &'static str,
    /// The letters of tests/conformance/ports.py that this kind adds.
    pub features: &'static str,
    /// What a valid file holds.
    pub read: fn(file: &Path) -> Result<Object>,
    /// Does the step of an invalid vector and those before it.
    pub step: fn(file: &Path, case: &Object) -> Result<()>,
    /// Writes a case of `canonical/`.
    pub write: fn(case: &Object, out: &Path) -> Result<()>,
    /// Reads a file and writes it again.
    pub rewrite: fn(file: &Path, out: &Path) -> Result<()>,
}

const KINDS: [&Kind; 6] = [&container::KIND, &episode::KIND, &journal::KIND, &pack::KIND, &recording::KIND, &set::KIND];

/// What a kind has where the program cannot do something with it.
pub const UNSUPPORTED: Kind = Kind {
    name: "",
    features: "",
    read: |_| Err(unsupported()),
    step: |_, _| Err(unsupported()),
    write: |_, _| Err(unsupported()),
    rewrite: |_, _| Err(unsupported()),
};

fn unsupported() -> Error {
    Error::invalid("this program cannot do that")
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments != ["--batch"] {
        let (code, told) = answer(&arguments);
        println!("{}", line(&told));
        return ExitCode::from(code);
    }
    let mut out = std::io::stdout().lock();
    for text in std::io::stdin().lock().lines().map_while(|line| line.ok()) {
        let (_, told) = answer(&batch_arguments(&text));
        if writeln!(out, "{}", line(&told)).and_then(|()| out.flush()).is_err() {
            break;
        }
    }
    ExitCode::SUCCESS
}

fn batch_arguments(text: &str) -> Vec<String> {
    let list = Value::parse(text.as_bytes());
    let list = list.as_ref().ok().and_then(Value::as_list);
    let texts = list.unwrap_or_default().iter().map(Value::as_str);
    texts.map(|text| text.unwrap_or_default().to_owned()).collect()
}

fn line(told: &Object) -> String {
    json::canonical(told).unwrap_or_else(|e| format!("{{\"error\":\"io_error\",\"rule\":\"{e}\"}}"))
}

/// The exit code and the answer of one call.
fn answer(arguments: &[String]) -> (u8, Object) {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let told = match arguments[..] {
        ["info"] => Ok(info()),
        ["read", name, file] => kind(name).and_then(|kind| (kind.read)(Path::new(file))),
        ["step", name, file, case] => kind(name)
            .and_then(|kind| (kind.step)(Path::new(file), &read_case(case)?))
            .map(|()| json::object([("done", true.into())])),
        ["stream", file] => pack::stream(Path::new(file)),
        ["recover", file] => pack::recover(Path::new(file)),
        ["verify", file, signature, key] => container::verify(file, signature, key),
        ["write", case, out] => write(case, Path::new(out)),
        ["rewrite", name, file, out] => kind(name)
            .and_then(|kind| (kind.rewrite)(Path::new(file), Path::new(out)))
            .and_then(|()| tell_written(name, Path::new(out))),
        _ => return (2, json::object([("usage", USAGE.into())])),
    };
    match told {
        Ok(told) => (0, told),
        Err(error) => {
            let code = error.code().as_str();
            let told = [("error", code.into()), ("rule", error.rule().into())];
            (1, json::object(told))
        }
    }
}

fn kind(name: &str) -> Result<&'static Kind> {
    let found = KINDS.into_iter().find(|kind| kind.name == name);
    found.ok_or_else(unsupported)
}

fn info() -> Object {
    let letters = KINDS.iter().flat_map(|kind| kind.features.chars());
    json::object([
        ("features", letters.map(String::from).collect()),
        (
            "formats",
            json::object([("journal", 1.into()), ("shard", 2.into()), ("shardpack", 1.into()), ("wshard", 1.into())])
                .into(),
        ),
        ("name", "rust".into()),
        ("version", env!("CARGO_PKG_VERSION").into()),
    ])
}

/// The JSON of a vector, which may be long.
fn read_case(path: &str) -> Result<Object> {
    let text = std::fs::read(path).map_err(|e| Error::io("cannot read", Some(path.as_ref()), e))?;
    let limits = Limits { max_json_bytes: u64::MAX, max_json_nodes: u64::MAX, ..Limits::default() };
    json::parse_object(&text, "the case", "", &limits)
}

fn write(case: &str, out: &Path) -> Result<Object> {
    let case = read_case(case)?;
    let name = text(&case, "kind");
    if name == "recording" {
        let journal = recording::write(&case, out)?;
        let mut told = tell_written(name, out)?;
        told.insert("journal_sha256".to_owned(), journal.into());
        return Ok(told);
    }
    (kind(name)?.write)(&case, out)?;
    tell_written(name, out)
}

fn tell_written(kind: &str, out: &Path) -> Result<Object> {
    let data = std::fs::read(out).map_err(|e| Error::io("cannot read", Some(out), e))?;
    let mut told = json::object([("sha256", hash::sha256_hex(&data).into())]);
    if kind != "pack" {
        let identity = ShardReader::open(out)?.identity()?;
        told.insert("identity".to_owned(), identity.digest().into());
    }
    Ok(told)
}

// --- what the modules of kinds share

/// The limits that a vector lowers; all others are as usual.
pub fn limits(case: &Object) -> Limits {
    let mut limits = Limits::default();
    let Some(lowered) = case.get("limits").and_then(Value::as_object) else {
        return limits;
    };
    for (name, limit) in [
        ("max_entries", &mut limits.max_entries),
        ("max_index_bytes", &mut limits.max_index_bytes),
        ("max_string_table_bytes", &mut limits.max_string_table_bytes),
        ("max_decompressed_bytes", &mut limits.max_decompressed_bytes),
        ("max_window_bytes", &mut limits.max_window_bytes),
        ("max_json_bytes", &mut limits.max_json_bytes),
        ("max_json_nodes", &mut limits.max_json_nodes),
    ] {
        if lowered.contains_key(name) {
            *limit = number(lowered, name);
        }
    }
    limits
}

/// How to read the file of a vector that may lower limits.
pub fn reader_options(case: &Object) -> ReaderOptions {
    ReaderOptions { limits: limits(case), ..ReaderOptions::default() }
}

/// A field that is a text; empty if it is not there.
pub fn text<'a>(fields: &'a Object, key: &str) -> &'a str {
    fields.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// A field that is a number in a text, as the vectors have it; 0 if it is not there.
pub fn number<N: std::str::FromStr + Default>(fields: &Object, key: &str) -> N {
    text(fields, key).parse().unwrap_or_default()
}

/// A number as the vectors have it.
pub fn decimal(value: impl std::fmt::Display) -> Value {
    value.to_string().into()
}

/// The content that a case of `canonical/` asks for: `hex:`, `ramp:N` or `lines:N`.
pub fn content(text: &str) -> Result<Vec<u8>> {
    let (kind, value) = text.split_once(':').unwrap_or_default();
    if kind == "hex" {
        return hash::unhex(value).ok_or_else(|| Error::invalid("the case has wrong hex digits"));
    }
    let size: usize = value.parse().unwrap_or_default();
    Ok(match kind {
        "ramp" => (0..=255).cycle().take(size).collect(),
        _ => {
            let lines = (0..).flat_map(|row| format!("row {row:06}\n").into_bytes());
            lines.take(size).collect()
        }
    })
}

/// An error of the program itself, such as two readings that differ.
pub fn wrong(problem: &'static str) -> Error {
    Error::new(Code::IoError, "", problem)
}
