//! Opens a file and touches all that it offers. Whole entries, ranges and views must agree.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use shard_format::shard::ReaderOptions;
use shard_format::{Limits, ShardReader};

const LARGEST: u64 = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let options = ReaderOptions {
        limits: Limits { max_decompressed_bytes: LARGEST, max_window_bytes: 8 * LARGEST, ..Limits::default() },
        checksums: data.len() % 2 == 0,
    };
    let source: Arc<[u8]> = data.into();
    let Ok(reader) = ShardReader::from_source(Arc::new(source), options) else {
        return;
    };
    for row in 0..reader.len() {
        let Ok(info) = reader.info_at(row) else {
            continue;
        };
        assert_eq!(reader.find(info.name), Some(row));
        let _ = reader.filters(info.name);
        let _ = reader.seek_frames(info.name);
        let whole = reader.read_at(row);
        if let (Ok(whole), Ok(view)) = (&whole, reader.view(info.name)) {
            assert_eq!(*view, whole[..]);
        }
        let size = info.row.orig_size.min(LARGEST);
        let (start, end) = (size / 3, size - size / 4);
        if let (Ok(whole), Ok(part)) = (whole, reader.read_range(info.name, start..end)) {
            assert_eq!(part, whole[start as usize..end as usize]);
        }
    }
    let _ = reader.schema();
    let _ = reader.manifest();
    let _ = reader.warnings();
    let _ = reader.verify();
    let _ = reader.verify_identity();
});
