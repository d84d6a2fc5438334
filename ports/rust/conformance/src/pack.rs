//! What the program can do with shards of ShardPack.

use std::fs::{self, File};
use std::path::Path;

use shard_format::hash::{hex, sha256_hex, xxh64};
use shard_format::json::{self, Object, Value};
use shard_format::shardpack::{
    self, Encoding, FileEntry, Metadata, Record, RecoverOptions, ShardPackReader, ShardPackWriter, StoredRecord,
    Stream, WriterOptions, messagepack,
};
use shard_format::{Error, Result};

use crate::{Kind, content, decimal, limits, number, text, wrong};

pub const KIND: Kind = Kind { name: "pack", features: "PKB", read, step, write, rewrite };

/// Above this number of entries, only their digest is told.
const MOST_LISTED: usize = 1000;

// --- reading

fn read(file: &Path) -> Result<Object> {
    let reader = ShardPackReader::open(file)?;
    let metadata = reader.metadata()?;
    let mut records = Vec::with_capacity(reader.len());
    for (number, record) in reader.records().enumerate() {
        let record = record?;
        // Every way to a record must give the same one.
        let places = [reader.by_key(record.key())?.offset(), reader.record(number)?.offset()];
        if places != [record.offset(); 2] {
            return Err(wrong("the same record is found at different places"));
        }
        records.push(tell_record(&record)?);
    }
    let streamed = Stream::new(open(file)?).map(|record| tell_record(&record?));
    if streamed.collect::<Result<Vec<_>>>()? != records {
        return Err(wrong("a stream gives other records"));
    }
    Ok(json::object([
        ("index_offset", decimal(reader.footer().index_offset)),
        ("metadata", metadata.into()),
        ("records", records.into()),
    ]))
}

fn open(file: &Path) -> Result<File> {
    File::open(file).map_err(|e| Error::io("cannot open", Some(file), e))
}

fn tell_record(record: &StoredRecord) -> Result<Value> {
    let (encoding, _) = record.stored_metadata();
    let metadata = match record.metadata()? {
        Metadata::Json(object) => object.into(),
        Metadata::MessagePack(value) => tell_messagepack(&value),
    };
    let mut entries = Vec::with_capacity(record.len());
    let mut lines = String::new();
    for entry in record.entries() {
        let sha256 = sha256_hex(&entry.read()?);
        lines += &format!("{}\t{sha256}\n", entry.name());
        let told = json::object([
            ("name", entry.name().into()),
            ("content_type", entry.content_type().into()),
            ("encoding", decimal(entry.encoding())),
            ("offset", decimal(entry.offset()?)),
            ("stored_size", decimal(entry.stored_size())),
            ("original_size", decimal(entry.size())),
            ("crc32c", format!("{:08x}", entry.crc32c()).into()),
            ("sha256", sha256.into()),
        ]);
        entries.push(Value::Object(told));
    }
    let entries = if entries.len() > MOST_LISTED {
        ("entries_sha256", sha256_hex(lines.as_bytes()).into())
    } else {
        ("entries", entries.into())
    };
    let told = json::object([
        ("alignment", decimal(record.alignment())),
        ("key", record.key().into()),
        ("key_hash", format!("{:016x}", xxh64(record.key().as_bytes())).into()),
        ("metadata", metadata),
        ("metadata_encoding", decimal(encoding)),
        ("offset", decimal(record.offset())),
        ("size", decimal(record.size())),
        entries,
    ]);
    Ok(told.into())
}

/// A value of MessagePack with its type.
fn tell_messagepack(value: &messagepack::Value) -> Value {
    use messagepack::Value as Packed;
    let told = match value {
        Packed::Nil => ("nil", Value::Null),
        Packed::Bool(value) => ("bool", (*value).into()),
        Packed::Integer(value) => ("int", decimal(value)),
        Packed::Float(value) => ("float64_hex", hex(&value.to_be_bytes()).into()),
        Packed::Text(text) => ("text", text.as_str().into()),
        Packed::Binary(bytes) => ("bin", hex(bytes).into()),
        Packed::Extension(code, bytes) => {
            let told = json::object([("code", decimal(code)), ("hex", hex(bytes).into())]);
            ("ext", told.into())
        }
        Packed::List(items) => ("list", items.iter().map(tell_messagepack).collect()),
        Packed::Map(pairs) => {
            let pair = |(key, value)| Value::from_iter([tell_messagepack(key), tell_messagepack(value)]);
            let pairs = pairs.iter().map(|(key, value)| pair((key, value)));
            ("map", pairs.collect())
        }
    };
    json::object([told]).into()
}

pub fn stream(file: &Path) -> Result<Object> {
    let mut records = 0;
    let mut error_code = Value::Null;
    for record in Stream::new(open(file)?) {
        match record {
            Ok(_) => records += 1,
            Err(error) => error_code = error.code().as_str().into(),
        }
    }
    Ok(json::object([("error_code", error_code), ("records", decimal(records))]))
}

pub fn recover(file: &Path) -> Result<Object> {
    let out = std::env::temp_dir().join(format!("shard-conformance-{}", std::process::id()));
    let options = RecoverOptions {
        writer: WriterOptions { overwrite: true, sync: false, ..WriterOptions::default() },
        ..RecoverOptions::default()
    };
    let done = shardpack::recover(file, &out, options)?;
    let keys = ShardPackReader::open(&out).and_then(|reader| {
        let keys = reader.records().map(|record| Ok(record?.key().into()));
        keys.collect::<Result<Vec<Value>>>()
    });
    let _ = fs::remove_file(&out);
    let lost = done.lost.into_iter().map(|part| {
        json::object([("offset", decimal(part.offset)), ("size", decimal(part.size)), ("key", part.key.into())])
    });
    Ok(json::object([("had_index", done.had_index.into()), ("keys", keys?.into()), ("lost", lost.collect())]))
}

// --- steps of invalid vectors

fn step(file: &Path, case: &Object) -> Result<()> {
    let when = text(case, "when");
    if when == "stream" {
        return Stream::new(open(file)?).try_for_each(|record| record.map(drop));
    }
    let reader = ShardPackReader::open_with(file, &limits(case))?;
    let record = match case.get("record") {
        Some(_) => Some(reader.record(number(case, "record"))?),
        None => None,
    };
    match (when, record) {
        ("offsets", _) => reader.offsets().map(drop),
        ("lookup", _) => reader.find("first").map(drop),
        ("index_metadata", _) => reader.metadata().map(drop),
        ("key", _) => reader.by_key(text(case, "key")).map(drop),
        ("metadata", Some(record)) => record.metadata().map(drop),
        ("entry", Some(record)) => record.read_entry(text(case, "entry")).map(drop),
        _ => Ok(()),
    }
}

// --- writing

fn write(case: &Object, out: &Path) -> Result<()> {
    let list = |fields: &Object, key: &str| -> Vec<Object> {
        let items = fields.get(key).and_then(Value::as_list).unwrap_or_default();
        items.iter().filter_map(Value::as_object).cloned().collect()
    };
    let object = |fields: &Object, key: &str| -> Object {
        let found = fields.get(key).and_then(Value::as_object);
        found.cloned().unwrap_or_default()
    };
    let options = object(case, "options");
    let mut writer = ShardPackWriter::create(
        out,
        WriterOptions {
            alignment: number(&options, "alignment"),
            compression: match text(&options, "compression") {
                "zstd" => Encoding::Zstd,
                "lz4" => Encoding::Lz4,
                _ => Encoding::None,
            },
            user: object(case, "user"),
            created: Some(text(&options, "created").to_owned()),
            overwrite: true,
            sync: false,
            ..WriterOptions::default()
        },
    )?;
    for record in list(case, "records") {
        let file_entries = list(&record, "entries").into_iter().map(|entry| {
            Ok(FileEntry {
                file_name: text(&entry, "name").to_owned(),
                content_type: text(&entry, "content_type").to_owned(),
                data: content(text(&entry, "content"))?,
                compressed: true,
            })
        });
        writer.write_record(&Record {
            key: text(&record, "key").to_owned(),
            metadata: Metadata::Json(object(&record, "metadata")),
            file_entries: file_entries.collect::<Result<_>>()?,
        })?;
    }
    writer.finalize().map(drop)
}

fn rewrite(file: &Path, out: &Path) -> Result<()> {
    let reader = ShardPackReader::open(file)?;
    let fields = reader.metadata()?;
    let mut options = WriterOptions {
        overwrite: true,
        sync: false,
        created: fields.get("created").and_then(Value::as_str).map(str::to_owned),
        ..WriterOptions::default()
    };
    if let Some(user) = fields.get("user").and_then(Value::as_object) {
        options.user = user.clone();
    }
    if let Some(first) = reader.records().next() {
        options.alignment = first?.alignment();
    }
    let mut writer = ShardPackWriter::create(out, options)?;
    writer.keep_fields(fields);
    for record in reader.records() {
        writer.copy_record(&record?)?;
    }
    writer.finalize().map(drop)
}
