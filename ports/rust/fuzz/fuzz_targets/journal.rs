//! Reads a recording and all that it holds.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use shard_format::wshard::PartialEpisode;

fuzz_target!(|data: &[u8]| {
    let source: Arc<[u8]> = data.into();
    let Ok(partial) = PartialEpisode::from_source(Arc::new(source)) else {
        return;
    };
    assert!(partial.state.read_bytes + partial.state.lost_bytes == data.len() as u64);
    for channel in partial.episode.lanes.values() {
        let _ = channel.data().map(|data| data.len());
        let _ = (channel.strings(), channel.items(), channel.timestamps());
    }
});
