//! Descriptions of filters: what is read is written in the same way.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shard_format::shard::Filters;

fuzz_target!(|data: &[u8]| {
    if let Ok(filters) = Filters::parse(data) {
        assert_eq!(Filters::from_json(&filters.to_json()).unwrap(), filters);
        let _ = filters.check_frame(data.len());
    }
});
