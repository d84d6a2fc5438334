//! Reads a shard at random and as a stream. Both must agree about what they can read.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use shard_format::Limits;
use shard_format::shardpack::{FileEntry, ShardPackReader, StoredRecord, Stream, messagepack};

const LARGEST: u64 = 1 << 20;

/// Not the metadata, in which a number may be unequal to itself.
fn contents(record: &StoredRecord) -> Option<Vec<FileEntry>> {
    record.read().ok().map(|record| record.file_entries)
}

fuzz_target!(|data: &[u8]| {
    let limits = Limits { max_decompressed_bytes: LARGEST, max_window_bytes: 8 * LARGEST, ..Limits::default() };
    if let Ok(value) = messagepack::decode(data, 1000) {
        let shortest = messagepack::encode(&value).unwrap();
        let again = messagepack::decode(&shortest, 1000).unwrap();
        assert_eq!(messagepack::encode(&again).unwrap(), shortest);
    }
    let mut streamed = Vec::new();
    let mut is_whole = true;
    for record in Stream::with_limits(data, &limits, LARGEST) {
        match record {
            Ok(record) => streamed.push((record.offset(), contents(&record))),
            Err(_) => is_whole = false,
        }
    }
    let source: Arc<[u8]> = data.into();
    let Ok(reader) = ShardPackReader::from_source(Arc::new(source), &limits) else {
        return;
    };
    let _ = reader.metadata();
    let _ = reader.verify();
    for (number, record) in reader.records().enumerate() {
        let Ok(record) = record else { continue };
        assert_eq!(reader.record(number).unwrap().offset(), record.offset());
        let _ = reader.by_key(record.key());
        if is_whole && reader.len() == streamed.len() && streamed[number].0 == record.offset() {
            assert_eq!(contents(&record), streamed[number].1);
        }
        for entry in record.entries() {
            if let (Ok(read), Ok(view)) = (entry.read(), entry.view()) {
                assert_eq!(*read, *view);
            }
        }
    }
});
