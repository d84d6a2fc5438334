//! Recovers a shard. All that is recovered can be read and found.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shard_format::shardpack::{RecoverOptions, ShardPackReader, WriterOptions, recover};

fuzz_target!(|data: &[u8]| {
    let name = format!("shard-fuzz-{}", std::process::id());
    let input = std::env::temp_dir().join(format!("{name}-in"));
    let output = std::env::temp_dir().join(format!("{name}-out"));
    std::fs::write(&input, data).unwrap();
    let options = RecoverOptions {
        keep_entries: data.len() % 2 == 0,
        writer: WriterOptions { overwrite: true, sync: false, ..WriterOptions::default() },
        ..RecoverOptions::default()
    };
    let done = recover(&input, &output, options).unwrap();
    let reader = ShardPackReader::open(&output).unwrap();
    assert_eq!(reader.len(), done.records);
    for (number, record) in reader.records().enumerate() {
        let record = record.unwrap();
        assert_eq!(reader.find(record.key()).unwrap(), Some(number));
        assert!(record.entries().all(|entry| entry.stored().is_ok()));
    }
});
