//! Containers.

use std::path::Path;

use ed25519_dalek::VerifyingKey;
use shard_format::json::{self, Object, Value};
use shard_format::shard::{Codec, EntryOptions, Layout, Signature, WriterOptions};
use shard_format::{ContentType, Error, Result, Role, ShardReader, ShardWriter, hash};

use crate::{Kind, content, decimal, number, reader_options, text, wrong};

pub const KIND: Kind = Kind { name: "container", features: "RZMSFLJNIGVW", read, step, write, rewrite };

/// The number of entries above which only their digest is told.
const MOST_LISTED: usize = 1000;

fn read(file: &Path) -> Result<Object> {
    let reader = ShardReader::open(file)?;
    let h = reader.header();
    let mut identity = reader.identity()?;
    let identity_2 = identity.digest();
    identity.version = 1;
    let warnings = reader.warnings()?;
    let mut told = json::object([
        (
            "header",
            json::object([
                ("version", decimal(h.version)),
                ("role", decimal(h.role.0)),
                ("flags", decimal(h.flags)),
                ("alignment", decimal(h.alignment)),
                ("compression_default", decimal(h.compression_default)),
                ("entry_count", decimal(h.entry_count)),
                ("string_table_offset", decimal(h.string_table_offset)),
                ("data_section_offset", decimal(h.data_section_offset)),
                ("schema_offset", decimal(h.schema_offset)),
                ("total_file_size", decimal(h.total_file_size)),
            ])
            .into(),
        ),
        ("identity", identity.digest().into()),
        ("identity_2", identity_2.into()),
        ("warnings", warnings.iter().map(|w| w.as_str()).collect()),
    ]);
    if let Some(schema) = reader.schema()? {
        told.insert("schema".to_owned(), schema.into());
    }
    if h.role == Role::MANIFEST {
        told.insert("manifest_files".to_owned(), reader.manifest()?.into_iter().collect());
    }
    let entries: Result<Vec<Object>> = (0..reader.len()).map(|row| entry(&reader, row)).collect();
    let entries = entries?;
    if entries.len() > MOST_LISTED {
        let line = |one: &Object| format!("{}\t{}\n", text(one, "name"), text(one, "sha256"));
        let lines: String = entries.iter().map(line).collect();
        let digest = hash::sha256_hex(lines.as_bytes());
        told.insert("entries_sha256".to_owned(), digest.into());
    } else {
        told.insert("entries".to_owned(), entries.into_iter().collect());
    }
    Ok(told)
}

fn entry(reader: &ShardReader, row: usize) -> Result<Object> {
    let info = reader.info_at(row)?;
    let data = reader.read_at(row)?;
    if reader.find(info.name) != Some(row) {
        return Err(wrong("a name is not found"));
    }
    if info.codec == Codec::None && *reader.view(info.name)? != data[..] {
        return Err(wrong("a view differs from the entry"));
    }
    let mut told = json::object([
        ("codec", info.codec.as_str().into()),
        ("content_type", decimal(info.row.content_type.0)),
        ("crc32c", format!("{:08x}", info.row.crc32c).into()),
        ("data_offset", decimal(info.row.data_offset)),
        ("disk_size", decimal(info.row.disk_size)),
        ("name", info.name.into()),
        ("name_hash", format!("{:016x}", info.row.name_hash).into()),
        ("orig_size", decimal(info.row.orig_size)),
        ("sha256", hash::sha256_hex(&data).into()),
        ("tag_bits", decimal(info.row.tag_bits)),
    ]);
    if let Some(filters) = reader.filters(info.name)? {
        let fields = |(key, value): (&String, &Value)| {
            let told = value.as_i64().map_or_else(|| value.clone(), decimal);
            (key.clone(), told)
        };
        let list = filters.to_json();
        let rows = list.as_list().unwrap_or_default().iter();
        let rows = rows.filter_map(Value::as_object);
        let rows = rows.map(|row| row.iter().map(fields).collect::<Object>());
        told.insert("filters".to_owned(), rows.collect());
    }
    if let Some(frames) = reader.seek_frames(info.name)? {
        let mut start = 0;
        let mut rows = Vec::new();
        for frame in frames {
            let mut row = json::object([
                ("compressed_size", decimal(frame.compressed_size)),
                ("decompressed_size", decimal(frame.decompressed_size)),
            ]);
            if let Some(checksum) = frame.checksum {
                row.insert("checksum".to_owned(), format!("{checksum:08x}").into());
            }
            rows.push(row);
            let end = start + u64::from(frame.decompressed_size);
            if reader.read_range(info.name, start..end)? != data[start as usize..end as usize] {
                return Err(wrong("a range differs from the whole entry"));
            }
            start = end;
        }
        told.insert("seekable_frames".to_owned(), rows.into_iter().collect());
    }
    Ok(told)
}

/// Verifies a signature file with a trusted key.
pub fn verify(file: &str, signature: &str, key: &str) -> Result<Object> {
    let key = hash::unhex(key)
        .and_then(|bytes| <[u8; 32]>::try_from(bytes).ok())
        .and_then(|bytes| VerifyingKey::from_bytes(&bytes).ok())
        .ok_or_else(|| Error::invalid("not an Ed25519 key"))?;
    let signature = Signature::read(signature)?;
    let identity = ShardReader::open(file)?.verify_signature(&signature, &key)?;
    Ok(json::object([("identity", identity.digest().into()), ("version", decimal(identity.version))]))
}

fn step(file: &Path, case: &Object) -> Result<()> {
    let reader = ShardReader::open_with(file, reader_options(case))?;
    let entry = text(case, "entry");
    match text(case, "when") {
        "read" => reader.read(entry).map(drop),
        "range" => {
            let start: u64 = number(case, "start");
            let end = start.saturating_add(number(case, "length"));
            reader.read_range(entry, start..end).map(drop)
        }
        "schema" => reader.schema().map(drop),
        "manifest" => reader.manifest().map(drop),
        "identity" => reader.verify_identity().map(drop),
        "verify" => reader.verify(),
        _ => Ok(()),
    }
}

fn write(case: &Object, out: &Path) -> Result<()> {
    let empty = Object::new();
    let options = case.get("options").and_then(Value::as_object);
    let options = options.unwrap_or(&empty);
    let entries = case.get("entries").and_then(Value::as_list);
    let entries: Vec<&Object> = entries.unwrap_or_default().iter().filter_map(Value::as_object).collect();
    let layout = match text(options, "layout") {
        "reserved" => Layout::Reserved(number(options, "max_entries")),
        "declared" => Layout::Declared(entries.iter().map(|one| text(one, "name").to_owned()).collect()),
        _ => Layout::Moved,
    };
    let options = WriterOptions {
        role: Role(number(options, "role")),
        alignment: number(options, "alignment"),
        compression: Codec::parse(text(options, "compression")).unwrap_or_default(),
        layout,
        identity: options.get("identity").and_then(Value::as_bool) == Some(true),
        schema: case.get("schema").and_then(Value::as_object).cloned(),
        ..WriterOptions::default()
    };
    let mut writer = ShardWriter::create(out, options)?;
    for one in entries {
        let given = EntryOptions {
            content_type: ContentType(number(one, "content_type")),
            tag_bits: number(one, "tag_bits"),
            ..EntryOptions::default()
        };
        writer.write_with(text(one, "name"), &content(text(one, "content"))?, &given)?;
    }
    writer.finish()
}

fn rewrite(file: &Path, out: &Path) -> Result<()> {
    let reader = ShardReader::open(file)?;
    let options = WriterOptions {
        role: reader.role(),
        alignment: reader.header().alignment,
        schema: reader.schema()?,
        ..WriterOptions::default()
    };
    let mut writer = ShardWriter::create(out, options)?;
    for name in reader.names() {
        writer.copy(&reader, name)?;
    }
    writer.finish()
}
