//! Packs: what is written is read, in every way, and writers leave nothing half-written.

mod common;

use std::collections::BTreeMap;
use std::io::{self, Write};

use common::packs::{Memory, open, options, packed, plain, record};
use common::{Folder, files, read_json};
use proptest::prelude::*;
use shard_format::Code;
use shard_format::hash::xxh64;
use shard_format::json::{self, Object, Value};
use shard_format::shardpack::*;

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
    let integer = prop_oneof![any::<i64>().prop_map(i128::from), any::<u64>().prop_map(i128::from), -200..200_i128];
    let key = prop_oneof![
        Just(Packed::Nil),
        any::<bool>().prop_map(Packed::Bool),
        integer.prop_map(Packed::Integer),
        ".{0,40}".prop_map(Packed::Text),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(Packed::Binary),
        (any::<i8>(), prop::collection::vec(any::<u8>(), 0..20)).prop_map(|(code, data)| Packed::Extension(code, data)),
    ];
    let float = any::<f64>().prop_filter("equal to itself", |value| !value.is_nan()).prop_map(Packed::Float);
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
        let unique: BTreeMap<Vec<u8>, _> =
            pairs.into_iter().map(|pair| (messagepack::encode(&pair.0).unwrap(), pair)).collect();
        messagepack::Value::Map(unique.into_values().collect())
    })
}

fn any_record() -> impl Strategy<Value = Record> {
    let metadata = prop_oneof![
        any_json().prop_map(Metadata::Json),
        any_messagepack()
            .prop_filter("an empty map reads as no metadata", |map| *map != messagepack::Value::Map(Vec::new()))
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
        Record { key, metadata, file_entries: entries.into_iter().map(entry).collect() }
    })
}

fn any_records() -> impl Strategy<Value = Vec<Record>> {
    prop::collection::vec(any_record(), 0..6).prop_map(|records| {
        let unique: BTreeMap<String, Record> = records.into_iter().map(|record| (record.key.clone(), record)).collect();
        unique.into_values().rev().collect()
    })
}

fn any_options() -> impl Strategy<Value = WriterOptions> {
    let encodings = [Encoding::None, Encoding::Lz4, Encoding::Zstd];
    (prop::sample::select(vec![1, 8, 64]), prop::sample::select(encodings.to_vec()), any_json())
        .prop_map(|(alignment, compression, user)| WriterOptions { alignment, compression, user, ..options() })
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

// --- vectors

#[test]
fn canonical_vectors_are_written_with_the_same_bytes() {
    for path in files(&["valid_packs"], "shardpack") {
        let case = read_json(&path.with_extension("json"));
        let how = case.get("canonical").and_then(Value::as_str).unwrap_or_default();
        if how.is_empty() {
            continue;
        }
        let reader = ShardPackReader::open(&path).unwrap();
        let fields = reader.metadata().unwrap();
        let memory = Memory::default();
        let text = fields.get("created").and_then(Value::as_str).unwrap_or_default();
        let alignment = reader.records().next().map_or(8, |first| first.unwrap().alignment());
        let user = fields.get("user").and_then(Value::as_object).cloned().unwrap_or_default();
        let options = WriterOptions { alignment, user, created: Some(text.to_owned()), ..options() };
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
        assert!(memory.bytes() == std::fs::read(&path).unwrap(), "{}", path.display());
    }
}

#[test]
fn absent_keys_are_not_found() {
    for path in files(&["valid_packs"], "shardpack") {
        let reader = ShardPackReader::open(&path).unwrap();
        for key in
            read_json(&path.with_extension("json")).get("absent_keys").and_then(Value::as_list).unwrap_or_default()
        {
            assert_eq!(reader.find(key.as_str().unwrap()).unwrap(), None, "{}", path.display());
        }
    }
}

// --- writing

#[test]
fn a_shard_appears_complete_or_not_at_all() {
    let folder = Folder::new("a_shard_appears_complete_or_not_at_all");
    let path = folder.path("a.shardpack");
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
    assert_eq!((error.code(), error.path()), (Code::InvalidArgument, Some(&*path)));
    let replacing = WriterOptions { overwrite: true, ..options() };
    ShardPackWriter::create(&path, replacing).unwrap().finalize().unwrap();
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
        assert_eq!((error.code(), error.rule()), (Code::InvalidArgument, rule), "{error}");
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
    assert_eq!(writer.write_record(&large).unwrap_err().code(), Code::IoError);
    assert_eq!(writer.write_record(&record("b", &[])).unwrap_err().code(), Code::IoError);
    assert_eq!(writer.finalize().unwrap_err().code(), Code::IoError);
}

#[test]
fn raw_entries_of_a_file_are_used_in_place() {
    let folder = Folder::new("raw_entries_of_a_file_are_used_in_place");
    let path = folder.path("a.shardpack");
    let mut writer = ShardPackWriter::create(&path, WriterOptions { alignment: 64, ..options() }).unwrap();
    writer.write_record(&record("a", &[("x.npy", &[9; 100_000])])).unwrap();
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
    let noise = (0..2000_u32).map(|number| xxh64(&number.to_le_bytes()) as u8);
    let noise: Vec<u8> = noise.collect();
    let entries: [(&str, &[u8]); 5] =
        [("a.txt", &text), ("b.jpg", &text), ("c.txt", &text[..256]), ("d.bin", &noise), ("e.txt", &text)];
    for encoding in [Encoding::Lz4, Encoding::Zstd] {
        let mut given = record("a", &entries);
        given.file_entries[4].compressed = false;
        let bytes = packed(&[given], WriterOptions { compression: encoding, ..options() }).unwrap();
        let record = open(&bytes).unwrap().record(0).unwrap();
        let found: Vec<_> = record.entries().map(|entry| entry.encoding()).collect();
        let none = Encoding::None;
        assert_eq!(found, [encoding, none, none, none, none]);
    }
}
