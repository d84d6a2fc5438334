//! Every parser on the vectors, from memory: containers, episodes, journals, packs, JSON and MessagePack.
//!
//! Needs neither files of its own nor C code, so Miri runs it, with a few vectors of each kind:
//! `MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test --no-default-features --test parsers`

mod common;

use std::path::PathBuf;
use std::sync::Arc;

use shard_format::json::Value;
use shard_format::shard::ReaderOptions;
use shard_format::shardpack::{ShardPackReader, Stream, messagepack};
use shard_format::wshard::{Episode, PartialEpisode};
use shard_format::{Limits, Result, ShardReader};

/// What Miri reads: it is a thousand times slower, also at listing folders.
const FEW: [&str; 14] = [
    "valid/flags_zero.shard",
    "valid/manifest_files.shard",
    "invalid/duplicate_name_same_bytes.shard",
    "invalid/raw_orig_size_2_63.shard",
    "valid/episode_rewards.wshard",
    "invalid_episodes/episode_json_minus_infinity.wshard",
    "invalid_episodes/manifest_not_json.wshard",
    "valid_journals/one_run.wshard.partial",
    "invalid_journals/entries_too_few.wshard.partial",
    "invalid_journals/run_no_checksum.wshard.partial",
    "valid_packs/encodings.shardpack",
    "valid_packs/no_entries.shardpack",
    "invalid_packs/key_size_largest.shardpack",
    "invalid_packs/metadata_messagepack_claims_pairs.shardpack",
];
/// What an entry may hold.
const LARGEST: u64 = if cfg!(miri) { 1 << 12 } else { 1 << 24 };

/// The contents of the vectors with an ending; under Miri of a few.
fn contents(folders: &[&str], ending: &str) -> Vec<Vec<u8>> {
    let Some(all) = common::vectors("") else { return Vec::new() };
    let paths: Vec<PathBuf> = if cfg!(miri) {
        FEW.iter().filter(|name| name.ends_with(&format!(".{ending}"))).map(|name| all.join(name)).collect()
    } else {
        common::files(folders, ending)
    };
    assert!(paths.len() > 2);
    paths.iter().map(|path| std::fs::read(path).unwrap()).filter(|data| data.len() < 1 << 20).collect()
}

fn limits() -> Limits {
    Limits { max_decompressed_bytes: LARGEST, ..Limits::default() }
}

fn open(data: Vec<u8>) -> Result<ShardReader> {
    let options = ReaderOptions { limits: limits(), ..ReaderOptions::default() };
    ShardReader::from_source(Arc::new(Arc::<[u8]>::from(data)), options)
}

#[test]
fn containers_parse_or_are_refused() {
    for data in contents(&["valid", "invalid"], "shard") {
        if let Ok(reader) = open(data) {
            common::touch(&reader);
        }
    }
}

#[test]
fn episodes_parse_or_are_refused() {
    for data in contents(&["valid", "valid_episodes", "invalid_episodes"], "wshard") {
        let Ok(episode) = open(data).and_then(Episode::from_reader) else { continue };
        for channel in episode.lanes.values() {
            let _ = (channel.data().map(|data| data.len()), channel.timestamps(), channel.strings(), channel.items());
        }
    }
}

#[test]
fn journals_parse_or_are_refused() {
    for data in contents(&["valid_journals", "invalid_journals"], "partial") {
        let (size, source) = (data.len() as u64, Arc::<[u8]>::from(data));
        if let Ok(partial) = PartialEpisode::from_source(Arc::new(source)) {
            assert_eq!(partial.state.read_bytes + partial.state.lost_bytes, size);
        }
    }
}

#[test]
fn packs_parse_or_are_refused_from_both_ends() {
    for data in contents(&["valid_packs", "invalid_packs"], "shardpack") {
        for record in Stream::with_limits(&data[..], &limits(), LARGEST).flatten() {
            let _ = record.read();
        }
        let source = Arc::<[u8]>::from(data);
        if let Ok(reader) = ShardPackReader::from_source(Arc::new(source), &limits()) {
            let _ = (reader.metadata(), reader.verify());
        }
    }
}

#[test]
fn text_and_messages_parse_or_are_refused() {
    for text in
        [&br#"{"a":[1,-2.5e-3,"x\u00e9\ud83d\ude00",null,true],"b":1e309}"#[..], b"[1,", b"\"\\ud800\"", b"\xFF"]
    {
        let _ = Value::parse(text).map(|value| value.canonical());
    }
    let message = b"\x82\xA1a\x93\x01\xCB\x40\x09\x21\xFB\x54\x44\x2D\x18\xC0\xA1b\xC4\x02\x00\xFF";
    for end in 0..=message.len() {
        assert_eq!(messagepack::decode(&message[..end], 100).is_ok(), end == message.len());
    }
}
