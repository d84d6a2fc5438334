//! Sets of shards: all of them are read as one, and verification finds what does not fit.

mod common;

use std::fs;
use std::path::Path;

use common::packs::{options, record};
use common::{Folder, files, read_json};
use shard_format::json::Value;
use shard_format::shardpack::*;
use shard_format::{Code, Result};

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
    for path in files(&["valid_sets"], "json") {
        let case = read_json(&path);
        let file = path.with_file_name(case["file"].as_str().unwrap());
        let set = Set::open(&file).unwrap();
        set.verify().unwrap();
        let numbers: Vec<_> = (0..set.len()).map(|one| set.record(one).unwrap().offset()).collect();
        let iterated: Vec<_> = set.records().map(|one| one.unwrap().offset()).collect();
        assert_eq!(numbers, iterated);
        if case["canonical"] != Value::Bool(true) {
            continue;
        }
        let folder = Folder::new("canonical_sets_are_written_with_the_same_bytes");
        rewrite_set(&set, &folder.path("")).unwrap();
        let wanted = case["files"].as_object().unwrap();
        assert_eq!(folder.names(), wanted.keys().cloned().collect::<Vec<_>>());
        for name in folder.names() {
            let found = fs::read(folder.path(&name)).unwrap();
            assert_eq!(Value::from(shard_format::hash::sha256_hex(&found)), wanted[&name], "{name}");
        }
    }
}

#[test]
fn verification_of_sets_finds_what_is_wrong() {
    for path in files(&["invalid_sets"], "json") {
        let case = read_json(&path);
        let file = path.with_file_name(case["file"].as_str().unwrap());
        let error = Set::open(&file).and_then(|set| set.verify()).unwrap_err();
        if case["when"].as_str() == Some("check") {
            assert_eq!((error.code().as_str(), error.rule()), ("reference_mismatch", "P-SET-8"));
        }
    }
}

#[test]
fn records_of_a_set_are_found_by_number_and_by_key_in_all_shards() {
    let folder = Folder::new("records_of_a_set_are_found_by_number_and_by_key_in_all_shards");
    let options = SetOptions { shards: options(), max_bytes: 3000, ..SetOptions::default() };
    let mut writer = SetWriter::create(folder.path("t_%d.shardpack"), options.clone()).unwrap();
    for number in 0..50_u8 {
        writer.write_record(&record(&format!("key {number}"), &[("x", &[number; 100])])).unwrap();
    }
    let error = writer.write_record(&record("key 0", &[])).unwrap_err();
    assert_eq!(error.rule(), "P-REC-10");
    assert_eq!(writer.len(), 50);
    let set_file = writer.set_file();
    assert!(!set_file.exists());
    writer.finalize().unwrap();
    assert_eq!(set_file, folder.path("t.shardpack-set"));

    let set = Set::open(&set_file).unwrap();
    set.verify().unwrap();
    assert!(set.shards().len() > 3);
    assert!(set.shards().iter().all(|shard| shard.size <= 3000));
    for number in 0..50 {
        let key = format!("key {number}");
        assert_eq!(set.record(number).unwrap().key(), key);
        assert_eq!(set.by_key(&key).unwrap().read_entry("x").unwrap()[0], number as u8);
    }
    assert_eq!(set.record(50).unwrap_err().code(), Code::EntryNotFound);
    assert_eq!(set.by_key("key 50").unwrap_err().code(), Code::EntryNotFound);
    let error = SetWriter::create(folder.path("t_%d.shardpack"), options).err().unwrap();
    assert_eq!(error.code(), Code::InvalidArgument);
}
