//! The vectors of the specification. The conformance program asks for more; this is what `cargo test` can tell alone.

mod common;

use shard_format::json::{self, Object, Value};
use shard_format::shard::{Codec, align_up};
use shard_format::{DType, ShardReader, hash};

fn primitives() -> Option<Object> {
    common::vectors("primitives.json").map(|path| common::read_json(&path))
}

fn rows<'a>(all: &'a Object, key: &str) -> Vec<&'a Object> {
    let rows = all[key].as_list().unwrap();
    rows.iter().map(|row| row.as_object().unwrap()).collect()
}

fn text<'a>(row: &'a Object, key: &str) -> &'a str {
    row[key].as_str().unwrap()
}

#[test]
fn hashes_and_alignment_are_those_of_the_specification() {
    let Some(all) = primitives() else { return };
    for key in ["hashes_of_ramps", "hashes_of_texts"] {
        for row in rows(&all, key) {
            let data = hash::unhex(text(row, "input_hex")).unwrap();
            assert_eq!(format!("{:08x}", hash::crc32c(&data)), text(row, "crc32c"));
            assert_eq!(format!("{:016x}", hash::xxh64(&data)), text(row, "xxh64"));
        }
    }
    for row in rows(&all, "align") {
        let number = |key| text(row, key).parse::<u64>().unwrap();
        let alignment = u8::try_from(number("alignment")).unwrap();
        assert_eq!(align_up(number("offset"), alignment), number("result"));
    }
    for (name, size) in all["dtype_sizes"].as_object().unwrap() {
        let size = size.as_str().unwrap().parse::<usize>().unwrap();
        assert_eq!(DType::parse(name).unwrap().size(), size);
    }
}

#[test]
fn canonical_json_is_that_of_the_specification() {
    let Some(all) = primitives() else { return };
    for row in rows(&all, "numbers") {
        let value = f64::from_bits(u64::from_str_radix(text(row, "bits"), 16).unwrap());
        assert_eq!(json::number(value), text(row, "canonical"));
    }
    for row in rows(&all, "json_strings") {
        let value = row["value"].canonical().unwrap();
        assert_eq!(hash::hex(value.as_bytes()), text(row, "canonical_hex"));
    }
    for row in rows(&all, "json_numbers") {
        let value = Value::parse(text(row, "text").as_bytes()).unwrap();
        match row.get("integer") {
            Some(integer) => assert_eq!(value.canonical().unwrap(), integer.as_str().unwrap()),
            None => assert!(matches!(value, Value::Float(_)), "{row:?}"),
        }
    }
    for text in all["json_numbers_refused"].as_list().unwrap() {
        assert!(Value::parse(text.as_str().unwrap().as_bytes()).is_err());
    }
    let keys = all["json_keys_in_order"].as_list().unwrap().iter();
    let keys: Vec<&str> = keys.map(|key| key.as_str().unwrap()).collect();
    assert!(keys.windows(2).all(|pair| pair[0] < pair[1]));
}

#[test]
fn a_file_a_copy_in_memory_and_a_view_agree() {
    for path in common::files(&["valid"], "shard") {
        let data = std::fs::read(&path).unwrap();
        let file = ShardReader::open(&path).unwrap();
        let memory = ShardReader::from_bytes(data).unwrap();
        assert_eq!(file.header(), memory.header());
        for (row, name) in file.names().enumerate() {
            let content = file.read(name).unwrap();
            assert_eq!(memory.read_at(row).unwrap(), content);
            if file.info(name).unwrap().codec == Codec::None {
                assert_eq!(*file.view(name).unwrap(), *content);
                assert_eq!(*memory.view(name).unwrap(), *content);
            }
            let middle = content.len() as u64 / 2;
            let mut window = vec![0; content.len() - middle as usize];
            file.decode_window_into(name, middle, &mut window).unwrap();
            assert_eq!(window, content[middle as usize..]);
            let mut whole = vec![0; content.len()];
            memory.read_into(name, &mut whole).unwrap();
            assert_eq!(whole, content);
        }
    }
}

#[test]
fn an_invalid_file_is_refused_with_a_code_and_a_rule_and_its_other_entries_stay_readable() {
    for path in common::files(&["invalid"], "json") {
        let case = common::read_json(&path);
        let file = path.with_file_name(text(&case, "file"));
        let when = text(&case, "when");
        let reader = match ShardReader::open(&file) {
            Ok(reader) => reader,
            Err(error) => {
                assert_eq!(when, "open", "{error}");
                assert!(error.path() == Some(&file) && !error.rule().is_empty(), "{error}");
                continue;
            }
        };
        assert_ne!(when, "open", "{}", file.display());
        if matches!(when, "read" | "range") && reader.contains("other") {
            reader.read("other").unwrap();
        }
        if when == "read" {
            let entry = text(&case, "entry");
            let error = reader.read(entry).unwrap_err();
            assert_eq!(error.entry(), Some(entry));
        }
    }
}
