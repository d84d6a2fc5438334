//! Packs: what is written is read, in every way; damage is told and bounded; writers leave nothing half-written.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use shard_format::hash::crc32c;
use shard_format::json::{self, Object, Value};
use shard_format::shardpack::*;
use shard_format::{Code, Limits, Result};

/// A folder that goes with its handle.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("shard-packs-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> = names
            .map(|one| one.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn vectors(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../spec/vectors")
        .join(folder)
}

fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(vectors(folder))
        .unwrap()
        .map(|one| one.unwrap().path());
    let mut found: Vec<_> = all
        .filter(|path| path.to_str().unwrap().ends_with(ending))
        .collect();
    found.sort();
    assert!(!found.is_empty(), "no vectors in {folder}");
    found
}

fn case(path: &Path) -> Object {
    let text = fs::read(path.with_extension("json")).unwrap();
    Value::parse(&text).unwrap().as_object().unwrap().clone()
}

/// Memory that a writer writes to.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Memory {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

impl Write for Memory {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn options() -> WriterOptions {
    WriterOptions {
        created: Some("2024-01-01T00:00:00Z".to_owned()),
        sync: false,
        ..WriterOptions::default()
    }
}

fn packed(records: &[Record], options: WriterOptions) -> Result<Vec<u8>> {
    let memory = Memory::default();
    let mut writer = ShardPackWriter::to_stream(memory.clone(), options)?;
    records
        .iter()
        .try_for_each(|record| writer.write_record(record))?;
    writer.finalize()?;
    Ok(memory.bytes())
}

fn open(bytes: &[u8]) -> Result<ShardPackReader> {
    ShardPackReader::from_source(Arc::new(Arc::<[u8]>::from(bytes)), &Limits::default())
}

fn record(key: &str, entries: &[(&str, &[u8])]) -> Record {
    let file_entries = entries
        .iter()
        .map(|(name, data)| FileEntry::new(*name, *data))
        .collect();
    Record {
        key: key.to_owned(),
        file_entries,
        ..Record::default()
    }
}

/// A record whose entries do not say how they are stored.
fn plain(mut record: Record) -> Record {
    record
        .file_entries
        .iter_mut()
        .for_each(|entry| entry.compressed = false);
    record
}

// --- properties

fn any_json() -> impl Strategy<Value = Object> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e9..1e9_f64).prop_map(|number| Value::from(number + 0.25)),
        ".{0,8}".prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::List),
            prop::collection::btree_map(".{0,4}", inner, 0..4).prop_map(Value::Object),
        ]
    });
    prop::collection::btree_map(".{0,6}", value, 0..4)
}

fn any_messagepack() -> impl Strategy<Value = messagepack::Value> {
    use messagepack::Value as Packed;
    let integer = prop_oneof![
        any::<i64>().prop_map(i128::from),
        any::<u64>().prop_map(i128::from),
        -200..200_i128
    ];
    let key = prop_oneof![
        Just(Packed::Nil),
        any::<bool>().prop_map(Packed::Bool),
        integer.prop_map(Packed::Integer),
        ".{0,40}".prop_map(Packed::Text),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(Packed::Binary),
        (any::<i8>(), prop::collection::vec(any::<u8>(), 0..20))
            .prop_map(|(code, data)| Packed::Extension(code, data)),
    ];
    let float = any::<f64>()
        .prop_filter("equal to itself", |value| !value.is_nan())
        .prop_map(Packed::Float);
    let value = prop_oneof![key.clone(), float].prop_recursive(3, 24, 6, {
        let key = key.clone();
        move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..18).prop_map(Packed::List),
                unique_map(prop::collection::vec((key.clone(), inner), 0..20)),
            ]
        }
    });
    unique_map(prop::collection::vec((key, value), 0..6))
}

fn unique_map(
    pairs: impl Strategy<Value = Vec<(messagepack::Value, messagepack::Value)>>,
) -> impl Strategy<Value = messagepack::Value> {
    pairs.prop_map(|pairs| {
        let unique: BTreeMap<Vec<u8>, _> = pairs
            .into_iter()
            .map(|pair| (messagepack::encode(&pair.0).unwrap(), pair))
            .collect();
        messagepack::Value::Map(unique.into_values().collect())
    })
}

fn any_record() -> impl Strategy<Value = Record> {
    let metadata = prop_oneof![
        any_json().prop_map(Metadata::Json),
        any_messagepack()
            .prop_filter("an empty map reads as no metadata", |map| *map
                != messagepack::Value::Map(Vec::new()))
            .prop_map(Metadata::MessagePack),
    ];
    let data = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..600),
        (any::<u8>(), 0..5000_usize).prop_map(|(byte, size)| vec![byte; size]),
    ];
    let name = "[a-zäπ.]{1,6}(\\.(txt|jpg|npy))?";
    let entries = prop::collection::btree_map(name, (data, any::<bool>()), 0..4);
    ("[a-z/ü]{1,8}", metadata, entries).prop_map(|(key, metadata, entries)| {
        let entry = |(name, (data, is_typed)): (String, (Vec<u8>, bool))| {
            let mut entry = FileEntry::new(name, data);
            if !is_typed {
                entry.content_type.clear();
            }
            entry
        };
        Record {
            key,
            metadata,
            file_entries: entries.into_iter().map(entry).collect(),
        }
    })
}

fn any_records() -> impl Strategy<Value = Vec<Record>> {
    prop::collection::vec(any_record(), 0..6).prop_map(|records| {
        let unique: BTreeMap<String, Record> = records
            .into_iter()
            .map(|record| (record.key.clone(), record))
            .collect();
        unique.into_values().rev().collect()
    })
}

fn any_options() -> impl Strategy<Value = WriterOptions> {
    let encodings = [Encoding::None, Encoding::Lz4, Encoding::Zstd];
    (
        prop::sample::select(vec![1, 8, 64]),
        prop::sample::select(encodings.to_vec()),
        any_json(),
    )
        .prop_map(|(alignment, compression, user)| WriterOptions {
            alignment,
            compression,
            user,
            ..options()
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, rng_seed: prop::test_runner::RngSeed::Fixed(18), ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read_by_number_by_key_and_as_a_stream(records in any_records(), options in any_options()) {
        let bytes = packed(&records, options.clone()).unwrap();
        let reader = open(&bytes).unwrap();
        reader.verify().unwrap();
        prop_assert_eq!(reader.metadata().unwrap()["user"].clone(), Value::Object(options.user));
        prop_assert_eq!(reader.len(), records.len());
        let wanted: Vec<_> = records.iter().cloned().map(plain).collect();
        let numbers = (0..reader.len()).map(|number| plain(reader.read_record(number).unwrap()));
        prop_assert_eq!(numbers.collect::<Vec<_>>(), wanted.clone());
        let iterated = reader.iter_records().map(|record| plain(record.unwrap()));
        prop_assert_eq!(iterated.collect::<Vec<_>>(), wanted.clone());
        let streamed = Stream::new(&*bytes).map(|record| plain(record.unwrap().read().unwrap()));
        prop_assert_eq!(streamed.collect::<Vec<_>>(), wanted.clone());
        for (record, number) in wanted.into_iter().zip(0..) {
            prop_assert_eq!(reader.find(&record.key).unwrap(), Some(number));
            prop_assert_eq!(plain(reader.by_key(&record.key).unwrap().read().unwrap()), record);
        }
        prop_assert_eq!(reader.find("not there!").unwrap(), None);
    }

    #[test]
    fn copies_of_stored_records_are_the_same_bytes(records in any_records(), options in any_options()) {
        let bytes = packed(&records, options.clone()).unwrap();
        let memory = Memory::default();
        let mut writer = ShardPackWriter::to_stream(memory.clone(), options).unwrap();
        for record in open(&bytes).unwrap().records() {
            writer.copy_record(&record.unwrap()).unwrap();
        }
        writer.finalize().unwrap();
        prop_assert_eq!(memory.bytes(), bytes);
    }

    #[test]
    fn messagepack_is_read_as_it_was_written_and_no_part_of_it_is_a_value(map in any_messagepack()) {
        let bytes = messagepack::encode(&map).unwrap();
        prop_assert_eq!(messagepack::decode(&bytes, 1_000_000).unwrap(), map);
        for end in (0..bytes.len()).rev().take(200) {
            prop_assert!(messagepack::decode(&bytes[..end], 1_000_000).is_err());
        }
    }
}

// --- damage

#[test]
fn every_truncation_gives_the_complete_records_and_names_the_lost_bytes() {
    let folder = Folder::new();
    let (input, output) = (folder.join("in.shardpack"), folder.join("out.shardpack"));
    let mut records = vec![
        record("a", &[("x.txt", b"hello")]),
        record("b", &[]),
        record("c", &[("y.bin", &[7; 100]), ("z.bin", b"")]),
    ];
    records[1].metadata = Metadata::Json(json::object([("label", 3.into())]));
    let bytes = packed(&records, options()).unwrap();
    let offsets = open(&bytes).unwrap().offsets().unwrap();
    let index_offset = *offsets.last().unwrap();
    let recovering = RecoverOptions {
        writer: WriterOptions {
            overwrite: true,
            ..options()
        },
        ..RecoverOptions::default()
    };
    for cut in 0..bytes.len() {
        let complete = offsets[1..]
            .iter()
            .filter(|end| **end <= cut as u64)
            .count();
        let mut stream = Stream::new(&bytes[..cut]);
        let streamed = stream.by_ref().take_while(|one| one.is_ok()).count();
        assert_eq!(streamed, complete, "cut at {cut}");
        let last = Stream::new(&bytes[..cut]).last().unwrap();
        assert_eq!(last.unwrap_err().code(), Code::Truncated, "cut at {cut}");
        let error = open(&bytes[..cut]).err().unwrap();
        assert_eq!(error.code(), Code::Truncated, "cut at {cut}");

        fs::write(&input, &bytes[..cut]).unwrap();
        let done = recover(&input, &output, recovering.clone()).unwrap();
        assert_eq!(
            (done.records, done.had_index),
            (complete, false),
            "cut at {cut}"
        );
        let recovered: Vec<_> = ShardPackReader::open(&output)
            .unwrap()
            .iter_records()
            .map(|one| plain(one.unwrap()))
            .collect();
        let wanted: Vec<_> = records[..complete].iter().cloned().map(plain).collect();
        assert_eq!(recovered, wanted, "cut at {cut}");
        // What is left of an index is no loss, once it can be told from a record, nor are zeros.
        let rest = cut as u64 - offsets[complete];
        let is_index = offsets[complete] == index_offset && rest >= 12;
        let is_empty = bytes[offsets[complete] as usize..cut]
            .iter()
            .all(|byte| *byte == 0);
        let lost: Vec<_> = done
            .lost
            .iter()
            .map(|part| (part.offset, part.size))
            .collect();
        let wanted = if is_empty || is_index {
            vec![]
        } else {
            vec![(offsets[complete], rest)]
        };
        assert_eq!(lost, wanted, "cut at {cut}");
    }
}

#[test]
fn recovery_keeps_intact_entries_only_if_it_is_asked_to() {
    let folder = Folder::new();
    let (input, output) = (folder.join("in.shardpack"), folder.join("out.shardpack"));
    let records = [
        record("a", &[("x", b"first"), ("y", b"second")]),
        record("b", &[("x", b"third")]),
    ];
    let mut bytes = packed(&records, options()).unwrap();
    let place = open(&bytes)
        .unwrap()
        .record(0)
        .unwrap()
        .entry("y")
        .unwrap()
        .offset()
        .unwrap();
    bytes[place as usize] ^= 1;
    fs::write(&input, &bytes).unwrap();
    let mut recovering = RecoverOptions {
        writer: options(),
        ..RecoverOptions::default()
    };
    let done = recover(&input, &output, recovering.clone()).unwrap();
    assert_eq!(
        (done.records, done.had_index, done.lost.len()),
        (1, true, 1)
    );
    assert_eq!(
        (done.lost[0].key.as_deref(), done.lost[0].entry.as_deref()),
        (Some("a"), None)
    );
    assert_eq!(done.lost[0].reason.rule(), "P-ENT-3");

    recovering.keep_entries = true;
    recovering.writer.overwrite = true;
    let done = recover(&input, &output, recovering.clone()).unwrap();
    assert_eq!((done.records, done.lost.len()), (2, 1));
    let lost = &done.lost[0];
    assert_eq!(
        (lost.offset, lost.size, lost.entry.as_deref()),
        (place, 6, Some("y"))
    );
    let kept = ShardPackReader::open(&output)
        .unwrap()
        .read_record(0)
        .unwrap();
    assert_eq!(plain(kept), plain(record("a", &[("x", b"first")])));

    let error = recover(&input, &input, recovering).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
}

/// Reads a file in every way. What it gives does not matter here, but every way must end, and ways must agree.
fn read_everything(bytes: &[u8]) -> usize {
    let mut seen = 0;
    let streamed: Vec<_> = Stream::new(bytes).map_while(Result::ok).collect();
    for record in &streamed {
        let _ = record.verify();
    }
    let Ok(reader) = open(bytes) else {
        return streamed.len();
    };
    let _ = (reader.metadata(), reader.verify(), reader.find("first"));
    for (number, record) in reader.records().enumerate() {
        assert_eq!(record.is_ok(), reader.record(number).is_ok());
        let Ok(record) = record else { continue };
        let _ = (record.metadata(), reader.by_key(record.key()));
        for entry in record.entries() {
            let read = entry.read();
            if let Ok(read) = &read {
                assert_eq!(read.len() as u64, entry.size());
            }
            assert_eq!(read.is_ok(), entry.view().is_ok());
        }
        seen += 1;
    }
    seen
}

/// Small numbers that look random and never change.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }
}

/// Makes the checksums of all heads, of the parts of the index and of the footer fit again, where they can be found.
fn seal(bytes: &mut [u8], heads: &[(usize, usize)], footer: &Footer) {
    let mut put = |range: std::ops::Range<usize>, at: usize| {
        if let (Some(covered), true) = (bytes.get(range), at + 4 <= bytes.len()) {
            let checksum = crc32c(covered);
            bytes[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
        }
    };
    for (start, size) in heads {
        put(*start..start + size - 4, start + size - 4);
    }
    let (total, count) = (footer.total_size as usize, footer.record_count as usize);
    let offsets = footer.index_offset as usize + 32;
    let (hashes, metadata) = (
        offsets + 8 * (count + 1),
        offsets + 8 * (count + 1) + 12 * count,
    );
    put(offsets..hashes, total - 32);
    put(hashes..metadata, total - 28);
    put(
        metadata..metadata + footer.metadata_size as usize,
        total - 24,
    );
    put(total - 64..total - 12, total - 12);
}

#[test]
fn changed_vectors_never_stop_a_reader() {
    let folder = Folder::new();
    let (input, output) = (folder.join("in.shardpack"), folder.join("out.shardpack"));
    let mut random = Random(0x5348_4152_4450_4143);
    let mut seen = 0;
    for path in files("valid_packs", ".shardpack") {
        let whole = fs::read(&path).unwrap();
        if whole.len() > 64 << 10 {
            continue;
        }
        let reader = open(&whole).unwrap();
        let heads: Vec<_> = (0..reader.len())
            .map(|number| {
                let record = reader.record(number).unwrap();
                let size = |at: usize| {
                    let field = record.offset() as usize + at;
                    u32::from_le_bytes(whole[field..field + 4].try_into().unwrap()) as usize
                };
                (
                    record.offset() as usize,
                    36 + 24 * size(0x10) + size(0x14) + size(0x18) + size(0x1C),
                )
            })
            .collect();
        for round in 0..60 {
            let mut bytes = whole.clone();
            for _ in 0..1 + random.below(3) {
                // Half of the changes are in heads and in the index, where sizes and offsets are.
                let in_head = heads.get(random.below(heads.len() + 1)).copied();
                let (start, size) = match (round % 2, in_head) {
                    (0, _) => (0, bytes.len()),
                    (_, Some((start, size))) => (start, size.min(64)),
                    (_, None) => (
                        reader.footer().index_offset as usize,
                        bytes.len() - reader.footer().index_offset as usize,
                    ),
                };
                let at = start + random.below(size);
                bytes[at] = [0, 1, 0x7F, 0x80, 0xFF, random.below(256) as u8][random.below(6)];
            }
            if round % 4 != 3 {
                seal(&mut bytes, &heads, reader.footer());
            }
            if round % 10 == 9 {
                bytes.truncate(random.below(bytes.len()));
            }
            seen += read_everything(&bytes);
            if round % 8 == 0 {
                fs::write(&input, &bytes).unwrap();
                let writer = WriterOptions {
                    overwrite: true,
                    ..options()
                };
                let done = recover(
                    &input,
                    &output,
                    RecoverOptions {
                        writer,
                        ..RecoverOptions::default()
                    },
                )
                .unwrap();
                let recovered = ShardPackReader::open(&output).unwrap();
                assert_eq!(recovered.len(), done.records);
                for record in recovered.records() {
                    let record = record.unwrap();
                    assert!(record.entries().all(|entry| entry.stored().is_ok()));
                    recovered.by_key(record.key()).unwrap();
                }
            }
        }
    }
    assert!(
        seen > 1000,
        "the changes leave hardly anything to read: {seen}"
    );
}

#[test]
fn a_file_full_of_false_markers_takes_little_time() {
    let folder = Folder::new();
    let (input, output) = (folder.join("in.shardpack"), folder.join("out.shardpack"));
    // Each head claims the largest size, and fits into the file.
    let mut head = Vec::new();
    head.extend((3_u64 << 20).to_le_bytes());
    head.extend(b"SPR1\x01\x01\x08\x00");
    for size in [1_000_u32, 4_000, 1, 2 << 20] {
        head.extend(size.to_le_bytes());
    }
    let mut bytes = head.repeat(20 << 10);
    bytes.resize(4 << 20, 0);
    fs::write(&input, &bytes).unwrap();
    let done = recover(
        &input,
        &output,
        RecoverOptions {
            writer: options(),
            ..RecoverOptions::default()
        },
    )
    .unwrap();
    assert_eq!((done.records, done.lost.len()), (0, 1));
    assert_eq!(done.lost[0].size, bytes.len() as u64);
}

// --- vectors

#[test]
fn canonical_vectors_are_written_with_the_same_bytes() {
    let mut count = 0;
    for path in files("valid_packs", ".shardpack") {
        let case = case(&path);
        let how = case
            .get("canonical")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if how.is_empty() {
            continue;
        }
        let reader = ShardPackReader::open(&path).unwrap();
        let fields = reader.metadata().unwrap();
        let memory = Memory::default();
        let text = fields
            .get("created")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let alignment = reader
            .records()
            .next()
            .map_or(8, |first| first.unwrap().alignment());
        let user = fields
            .get("user")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        let options = WriterOptions {
            alignment,
            user,
            created: Some(text.to_owned()),
            ..options()
        };
        let mut writer = ShardPackWriter::to_stream(memory.clone(), options).unwrap();
        writer.keep_fields(fields);
        for record in reader.records() {
            let record = record.unwrap();
            match how {
                "write" => writer.write_record(&record.read().unwrap()).unwrap(),
                _ => writer.copy_record(&record).unwrap(),
            }
        }
        writer.finalize().unwrap();
        assert!(
            memory.bytes() == fs::read(&path).unwrap(),
            "{}",
            path.display()
        );
        count += 1;
    }
    assert!(count > 10, "only {count} vectors are canonical");
}

#[test]
fn absent_keys_are_not_found() {
    for path in files("valid_packs", ".shardpack") {
        let reader = ShardPackReader::open(&path).unwrap();
        for key in case(&path)
            .get("absent_keys")
            .and_then(Value::as_list)
            .unwrap_or_default()
        {
            assert_eq!(
                reader.find(key.as_str().unwrap()).unwrap(),
                None,
                "{}",
                path.display()
            );
        }
    }
}

// --- writing

#[test]
fn a_shard_appears_complete_or_not_at_all() {
    let folder = Folder::new();
    let path = folder.join("a.shardpack");
    let mut writer = ShardPackWriter::create(&path, options()).unwrap();
    writer.write_record(&record("a", &[("x", b"1")])).unwrap();
    writer.flush().unwrap();
    assert!(!path.exists());
    drop(writer);
    assert!(folder.names().is_empty());

    let mut writer = ShardPackWriter::create(&path, options()).unwrap();
    writer.write_record(&record("a", &[("x", b"1")])).unwrap();
    writer.finalize().unwrap();
    assert_eq!(folder.names(), ["a.shardpack"]);

    let error = ShardPackWriter::create(&path, options()).err().unwrap();
    assert_eq!(
        (error.code(), error.path()),
        (Code::InvalidArgument, Some(&*path))
    );
    let replacing = WriterOptions {
        overwrite: true,
        ..options()
    };
    ShardPackWriter::create(&path, replacing)
        .unwrap()
        .finalize()
        .unwrap();
    assert!(ShardPackReader::open(&path).unwrap().is_empty());
}

#[test]
fn a_refused_record_leaves_the_shard_as_it_was() {
    let memory = Memory::default();
    let mut writer = ShardPackWriter::to_stream(memory.clone(), options()).unwrap();
    writer.write_record(&record("a", &[("x", b"1")])).unwrap();
    let mut not_a_number = record("b", &[]);
    not_a_number.metadata = Metadata::Json(json::object([("x", f64::NAN.into())]));
    let mut not_a_map = record("b", &[]);
    not_a_map.metadata = Metadata::MessagePack(messagepack::Value::Nil);
    let mut bad_type = record("b", &[("x", b"")]);
    bad_type.file_entries[0].content_type = "text/plain\n".to_owned();
    for (refused, rule) in [
        (record("a", &[]), "P-REC-10"),
        (record("", &[]), "P-REC-5"),
        (record("b\0", &[]), "P-REC-5"),
        (record(&"k".repeat(65_537), &[]), "P-REC-5"),
        (record("b", &[("x", b""), ("x", b"")]), "P-KND-4"),
        (record("b", &[("", b"")]), "P-KND-2"),
        (record("b", &[(&"n".repeat(65_536), b"")]), "P-KND-2"),
        (bad_type, "P-KND-3"),
        (not_a_number, "P-MTD-2"),
        (not_a_map, "P-MTD-3"),
    ] {
        let error = writer.write_record(&refused).unwrap_err();
        assert_eq!(
            (error.code(), error.rule()),
            (Code::InvalidArgument, rule),
            "{error}"
        );
    }
    writer.write_record(&record("b", &[])).unwrap();
    writer.finalize().unwrap();
    let wanted = packed(&[record("a", &[("x", b"1")]), record("b", &[])], options()).unwrap();
    assert_eq!(memory.bytes(), wanted);
}

#[test]
fn a_writer_that_could_not_write_gives_no_shard() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut writer = ShardPackWriter::to_stream(Full, options()).unwrap();
    let large = record("a", &[("x", &[0; 2 << 20])]);
    assert_eq!(
        writer.write_record(&large).unwrap_err().code(),
        Code::IoError
    );
    assert_eq!(
        writer.write_record(&record("b", &[])).unwrap_err().code(),
        Code::IoError
    );
    assert_eq!(writer.finalize().unwrap_err().code(), Code::IoError);
}

#[test]
fn raw_entries_of_a_file_are_used_in_place() {
    let folder = Folder::new();
    let path = folder.join("a.shardpack");
    let mut writer = ShardPackWriter::create(
        &path,
        WriterOptions {
            alignment: 64,
            ..options()
        },
    )
    .unwrap();
    writer
        .write_record(&record("a", &[("x.npy", &[9; 100_000])]))
        .unwrap();
    writer.finalize().unwrap();
    let reader = ShardPackReader::open(&path).unwrap();
    let record = reader.record(0).unwrap();
    let view = record.entry("x.npy").unwrap().view().unwrap();
    drop((record, reader));
    assert!(view.iter().all(|byte| *byte == 9));
    #[cfg(feature = "mmap")]
    assert_eq!(view.as_ptr() as usize % 64, 0);
}

#[test]
fn compression_is_kept_only_where_it_pays() {
    let text = b"all work and no play ".repeat(100);
    let mut random = Random(18);
    let noise: Vec<u8> = (0..2000).map(|_| random.below(256) as u8).collect();
    let entries: [(&str, &[u8]); 5] = [
        ("a.txt", &text),
        ("b.jpg", &text),
        ("c.txt", &text[..256]),
        ("d.bin", &noise),
        ("e.txt", &text),
    ];
    for encoding in [Encoding::Lz4, Encoding::Zstd] {
        let mut given = record("a", &entries);
        given.file_entries[4].compressed = false;
        let bytes = packed(
            &[given],
            WriterOptions {
                compression: encoding,
                ..options()
            },
        )
        .unwrap();
        let record = open(&bytes).unwrap().record(0).unwrap();
        let found: Vec<_> = record.entries().map(|entry| entry.encoding()).collect();
        let none = Encoding::None;
        assert_eq!(found, [encoding, none, none, none, none]);
    }
}

// --- sets

/// Writes the records of a set again, shard by shard.
fn rewrite_set(set: &Set, output: &Path) -> Result<()> {
    let text = |key: &str| set.fields()[key].as_str().unwrap().to_owned();
    let options = SetOptions {
        shards: WriterOptions {
            created: Some(text("created")),
            user: set.fields()["user"].as_object().unwrap().clone(),
            ..options()
        },
        revision: Some(text("revision")),
        ..SetOptions::default()
    };
    let mut writer = SetWriter::create(output.join(text("name")), options)?;
    for number in 0..set.shards().len() {
        if number > 0 {
            writer.next_shard()?;
        }
        for record in set.shard(number)?.records() {
            writer.copy_record(&record?)?;
        }
    }
    writer.finalize()
}

#[test]
fn canonical_sets_are_written_with_the_same_bytes() {
    let mut count = 0;
    for path in files("valid_sets", ".json") {
        let case = case(&path);
        let file = path.with_file_name(case["file"].as_str().unwrap());
        let set = Set::open(&file).unwrap();
        set.verify().unwrap();
        let numbers: Vec<_> = (0..set.len())
            .map(|one| set.record(one).unwrap().offset())
            .collect();
        let iterated: Vec<_> = set.records().map(|one| one.unwrap().offset()).collect();
        assert_eq!(numbers, iterated);
        if case["canonical"] != Value::Bool(true) {
            continue;
        }
        let folder = Folder::new();
        rewrite_set(&set, &folder.0).unwrap();
        let wanted = case["files"].as_object().unwrap();
        assert_eq!(folder.names(), wanted.keys().cloned().collect::<Vec<_>>());
        for name in folder.names() {
            let found = fs::read(folder.join(&name)).unwrap();
            assert_eq!(
                Value::from(shard_format::hash::sha256_hex(&found)),
                wanted[&name],
                "{name}"
            );
        }
        count += 1;
    }
    assert!(count > 1, "only {count} sets are canonical");
}

#[test]
fn verification_of_sets_finds_what_is_wrong() {
    for path in files("invalid_sets", ".json") {
        let case = case(&path);
        let file = path.with_file_name(case["file"].as_str().unwrap());
        let error = Set::open(&file).and_then(|set| set.verify()).unwrap_err();
        if case["when"].as_str() == Some("check") {
            assert_eq!(
                (error.code().as_str(), error.rule()),
                ("reference_mismatch", "P-SET-8")
            );
        }
    }
}

#[test]
fn records_of_a_set_are_found_by_number_and_by_key_in_all_shards() {
    let folder = Folder::new();
    let options = SetOptions {
        shards: options(),
        max_bytes: 3000,
        ..SetOptions::default()
    };
    let mut writer = SetWriter::create(folder.join("t_%d.shardpack"), options.clone()).unwrap();
    for number in 0..50_u8 {
        writer
            .write_record(&record(&format!("key {number}"), &[("x", &[number; 100])]))
            .unwrap();
    }
    let error = writer.write_record(&record("key 0", &[])).unwrap_err();
    assert_eq!(error.rule(), "P-REC-10");
    assert_eq!(writer.len(), 50);
    let set_file = writer.set_file();
    assert!(!set_file.exists());
    writer.finalize().unwrap();
    assert_eq!(set_file, folder.join("t.shardpack-set"));

    let set = Set::open(&set_file).unwrap();
    set.verify().unwrap();
    assert!(set.shards().len() > 3);
    assert!(set.shards().iter().all(|shard| shard.size <= 3000));
    for number in 0..50 {
        let key = format!("key {number}");
        assert_eq!(set.record(number).unwrap().key(), key);
        assert_eq!(
            set.by_key(&key).unwrap().read_entry("x").unwrap()[0],
            number as u8
        );
    }
    assert_eq!(set.record(50).unwrap_err().code(), Code::EntryNotFound);
    assert_eq!(
        set.by_key("key 50").unwrap_err().code(),
        Code::EntryNotFound
    );
    let error = SetWriter::create(folder.join("t_%d.shardpack"), options)
        .err()
        .unwrap();
    assert_eq!(error.code(), Code::InvalidArgument);
}
