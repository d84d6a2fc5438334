//! Damaged files: an error with a code, never a panic, a hang or memory that a file merely claims to need.
//!
//! A bounded version of the targets in `fuzz/`, which need a nightly compiler.

mod common;

use shard_format::json::Value;
use shard_format::shard::Filters;
use shard_format::{Code, ShardReader};

/// A small generator of pseudorandom numbers, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % end.max(1)
    }

    /// Changes a few bytes, mostly in the head, or cuts the end off.
    fn damage(&mut self, data: &mut Vec<u8>) {
        const INTERESTING: [u8; 8] = [0, 1, 0x7F, 0x80, 0xFF, 0x28, 0x5E, 0x22];
        for _ in 0..=self.below(4) {
            let end = if self.below(3) == 0 { data.len() } else { data.len().min(400) };
            let at = self.below(end);
            let Some(byte) = data.get_mut(at) else { return };
            *byte = match self.below(3) {
                0 => INTERESTING[self.below(8)],
                1 => *byte ^ 1 << self.below(8),
                _ => self.below(256) as u8,
            };
        }
        if self.below(12) == 0 {
            data.truncate(self.below(data.len()));
        }
    }
}

#[test]
fn damaged_files_are_errors_and_memory_and_files_agree() {
    let folder = common::Folder::new("hostile");
    let path = folder.path("damaged.shard");
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let seeds = common::files(&["valid", "invalid"], "shard");
    let rounds = if cfg!(debug_assertions) { 3 } else { 60 };
    for seed in &seeds {
        let original = std::fs::read(seed).unwrap();
        if original.len() > 1 << 16 {
            continue;
        }
        for round in 0..rounds {
            let mut data = original.clone();
            random.damage(&mut data);
            let memory = ShardReader::from_bytes(data.clone());
            if let Err(error) = &memory {
                assert!(Code::ALL.contains(&error.code()));
                assert!(!error.rule().is_empty(), "{error}");
            }
            if round % 4 == 0 {
                std::fs::write(&path, &data).unwrap();
                let file = ShardReader::open(&path);
                assert_eq!(
                    file.as_ref().err().map(|e| (e.code(), e.rule())),
                    memory.as_ref().err().map(|e| (e.code(), e.rule()))
                );
                if let Ok(file) = file {
                    common::touch(&file);
                }
            } else if let Ok(memory) = memory {
                common::touch(&memory);
            }
        }
    }
}

#[test]
fn damaged_json_is_an_error_or_a_value_with_a_canonical_form() {
    let mut random = Random(7);
    let text =
        br#"{"a":[1,-2.5e-3,"x\u00e9\ud83d\ude00",null,true],"b":{"c":123456789012345678901234567890},"\u0000":"\n"}"#;
    for _ in 0..20_000 {
        let mut data = text.to_vec();
        random.damage(&mut data);
        if let Ok(value) = Value::parse(&data) {
            let written = value.canonical().unwrap();
            let again = Value::parse(written.as_bytes()).unwrap();
            assert_eq!(again.canonical().unwrap(), written);
        }
        let _ = Filters::parse(&data);
    }
}

#[test]
fn deep_and_wide_json_is_refused_before_it_costs_anything() {
    let deep = "[".repeat(1 << 20);
    assert_eq!(Value::parse(deep.as_bytes()).unwrap_err().code(), Code::BadMetadata);
    let wide = format!("[{}0]", "0,".repeat(1_000_000));
    assert_eq!(Value::parse(wide.as_bytes()).unwrap_err().code(), Code::LimitExceeded);
    assert!(Value::parse(format!("{}0{}", "[".repeat(128), "]".repeat(128)).as_bytes()).is_ok());
    assert!(Value::parse(format!("{}0{}", "[".repeat(129), "]".repeat(129)).as_bytes()).is_err());
}
