//! A value has one canonical form, which reads back as the same form.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shard_format::json::Value;

fuzz_target!(|data: &[u8]| {
    if let Ok(value) = Value::parse(data) {
        let text = value.canonical().unwrap();
        let again = Value::parse(text.as_bytes()).unwrap();
        assert_eq!(again.canonical().unwrap(), text);
    }
});
