//! Opens an episode and reads all that it holds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shard_format::ShardReader;
use shard_format::wshard::Episode;

fuzz_target!(|data: &[u8]| {
    let Ok(ep) = ShardReader::from_bytes(data).and_then(Episode::from_reader) else {
        return;
    };
    for channel in ep.lanes.values() {
        let _ = channel.timestamps();
        let _ = (channel.strings(), channel.items(), channel.packets());
        if let (Ok(whole), Ok(part)) = (channel.data(), channel.window(0, channel.length / 2)) {
            assert!(part.data().unwrap().len() <= whole.len());
        }
    }
    for residual in ep.residuals.values() {
        let _ = (residual.signs(), residual.reconstruct(None));
    }
    for label in ep.labels.values() {
        let _ = label.read();
    }
    let _ = ep.read_provenance();
});
