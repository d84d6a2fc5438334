//! Damaged packs: every way to read one ends, errors have a code, and recovery saves what is intact.

mod common;

use std::fs;

use common::packs::{open, options, packed, plain, record};
use common::{Folder, files};
use shard_format::hash::crc32c;
use shard_format::json;
use shard_format::shardpack::*;
use shard_format::{Code, Result};

#[test]
fn every_truncation_gives_the_complete_records_and_names_the_lost_bytes() {
    let folder = Folder::new("every_truncation_gives_the_complete_records_and_names_the_lost_bytes");
    let (input, output) = (folder.path("in.shardpack"), folder.path("out.shardpack"));
    let mut records = vec![
        record("a", &[("x.txt", b"hello")]),
        record("b", &[]),
        record("c", &[("y.bin", &[7; 100]), ("z.bin", b"")]),
    ];
    records[1].metadata = Metadata::Json(json::object([("label", 3.into())]));
    let bytes = packed(&records, options()).unwrap();
    let offsets = open(&bytes).unwrap().offsets().unwrap();
    let index_offset = *offsets.last().unwrap();
    let recovering =
        RecoverOptions { writer: WriterOptions { overwrite: true, ..options() }, ..RecoverOptions::default() };
    for cut in 0..bytes.len() {
        let complete = offsets[1..].iter().filter(|end| **end <= cut as u64).count();
        let mut stream = Stream::new(&bytes[..cut]);
        let streamed = stream.by_ref().take_while(|one| one.is_ok()).count();
        assert_eq!(streamed, complete, "cut at {cut}");
        let last = Stream::new(&bytes[..cut]).last().unwrap();
        assert_eq!(last.unwrap_err().code(), Code::Truncated, "cut at {cut}");
        let error = open(&bytes[..cut]).err().unwrap();
        assert_eq!(error.code(), Code::Truncated, "cut at {cut}");

        fs::write(&input, &bytes[..cut]).unwrap();
        let done = recover(&input, &output, recovering.clone()).unwrap();
        assert_eq!((done.records, done.had_index), (complete, false), "cut at {cut}");
        let recovered: Vec<_> =
            ShardPackReader::open(&output).unwrap().iter_records().map(|one| plain(one.unwrap())).collect();
        let wanted: Vec<_> = records[..complete].iter().cloned().map(plain).collect();
        assert_eq!(recovered, wanted, "cut at {cut}");
        // What is left of an index is no loss, once it can be told from a record, nor are zeros.
        let rest = cut as u64 - offsets[complete];
        let is_index = offsets[complete] == index_offset && rest >= 12;
        let is_empty = bytes[offsets[complete] as usize..cut].iter().all(|byte| *byte == 0);
        let lost: Vec<_> = done.lost.iter().map(|part| (part.offset, part.size)).collect();
        let wanted = if is_empty || is_index { vec![] } else { vec![(offsets[complete], rest)] };
        assert_eq!(lost, wanted, "cut at {cut}");
    }
}

#[test]
fn recovery_keeps_intact_entries_only_if_it_is_asked_to() {
    let folder = Folder::new("recovery_keeps_intact_entries_only_if_it_is_asked_to");
    let (input, output) = (folder.path("in.shardpack"), folder.path("out.shardpack"));
    let records = [record("a", &[("x", b"first"), ("y", b"second")]), record("b", &[("x", b"third")])];
    let mut bytes = packed(&records, options()).unwrap();
    let place = open(&bytes).unwrap().record(0).unwrap().entry("y").unwrap().offset().unwrap();
    bytes[place as usize] ^= 1;
    fs::write(&input, &bytes).unwrap();
    let mut recovering = RecoverOptions { writer: options(), ..RecoverOptions::default() };
    let done = recover(&input, &output, recovering.clone()).unwrap();
    assert_eq!((done.records, done.had_index, done.lost.len()), (1, true, 1));
    assert_eq!((done.lost[0].key.as_deref(), done.lost[0].entry.as_deref()), (Some("a"), None));
    assert_eq!(done.lost[0].reason.rule(), "P-ENT-3");

    recovering.keep_entries = true;
    recovering.writer.overwrite = true;
    let done = recover(&input, &output, recovering.clone()).unwrap();
    assert_eq!((done.records, done.lost.len()), (2, 1));
    let lost = &done.lost[0];
    assert_eq!((lost.offset, lost.size, lost.entry.as_deref()), (place, 6, Some("y")));
    let kept = ShardPackReader::open(&output).unwrap().read_record(0).unwrap();
    assert_eq!(plain(kept), plain(record("a", &[("x", b"first")])));

    let error = recover(&input, &input, recovering).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
}

/// Reads a file in every way. What it gives does not matter here, but every way must end, and ways must agree.
fn read_everything(bytes: &[u8]) -> usize {
    let mut seen = 0;
    let streamed: Vec<_> = Stream::new(bytes).map_while(Result::ok).collect();
    for record in &streamed {
        let _ = record.verify();
    }
    let Ok(reader) = open(bytes) else {
        return streamed.len();
    };
    let _ = (reader.metadata(), reader.verify(), reader.find("first"));
    for (number, record) in reader.records().enumerate() {
        assert_eq!(record.is_ok(), reader.record(number).is_ok());
        let Ok(record) = record else { continue };
        let _ = (record.metadata(), reader.by_key(record.key()));
        for entry in record.entries() {
            let read = entry.read();
            if let Ok(read) = &read {
                assert_eq!(read.len() as u64, entry.size());
            }
            assert_eq!(read.is_ok(), entry.view().is_ok());
        }
        seen += 1;
    }
    seen
}

/// Small numbers that look random and never change.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }
}

/// Makes the checksums of all heads, of the parts of the index and of the footer fit again, where they can be found.
fn seal(bytes: &mut [u8], heads: &[(usize, usize)], footer: &Footer) {
    let mut put = |range: std::ops::Range<usize>, at: usize| {
        if let (Some(covered), true) = (bytes.get(range), at + 4 <= bytes.len()) {
            let checksum = crc32c(covered);
            bytes[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
        }
    };
    for (start, size) in heads {
        put(*start..start + size - 4, start + size - 4);
    }
    let (total, count) = (footer.total_size as usize, footer.record_count as usize);
    let offsets = footer.index_offset as usize + 32;
    let (hashes, metadata) = (offsets + 8 * (count + 1), offsets + 8 * (count + 1) + 12 * count);
    put(offsets..hashes, total - 32);
    put(hashes..metadata, total - 28);
    put(metadata..metadata + footer.metadata_size as usize, total - 24);
    put(total - 64..total - 12, total - 12);
}

#[test]
fn changed_vectors_never_stop_a_reader() {
    let folder = Folder::new("changed_vectors_never_stop_a_reader");
    let (input, output) = (folder.path("in.shardpack"), folder.path("out.shardpack"));
    let mut random = Random(0x5348_4152_4450_4143);
    let mut seen = 0;
    let seeds = files(&["valid_packs"], "shardpack");
    for path in &seeds {
        let whole = fs::read(path).unwrap();
        if whole.len() > 64 << 10 {
            continue;
        }
        let reader = open(&whole).unwrap();
        let heads: Vec<_> = (0..reader.len())
            .map(|number| {
                let record = reader.record(number).unwrap();
                let size = |at: usize| {
                    let field = record.offset() as usize + at;
                    u32::from_le_bytes(whole[field..field + 4].try_into().unwrap()) as usize
                };
                (record.offset() as usize, 36 + 24 * size(0x10) + size(0x14) + size(0x18) + size(0x1C))
            })
            .collect();
        for round in 0..60 {
            let mut bytes = whole.clone();
            for _ in 0..1 + random.below(3) {
                // Half of the changes are in heads and in the index, where sizes and offsets are.
                let in_head = heads.get(random.below(heads.len() + 1)).copied();
                let (start, size) = match (round % 2, in_head) {
                    (0, _) => (0, bytes.len()),
                    (_, Some((start, size))) => (start, size.min(64)),
                    (_, None) => {
                        (reader.footer().index_offset as usize, bytes.len() - reader.footer().index_offset as usize)
                    }
                };
                let at = start + random.below(size);
                bytes[at] = [0, 1, 0x7F, 0x80, 0xFF, random.below(256) as u8][random.below(6)];
            }
            if round % 4 != 3 {
                seal(&mut bytes, &heads, reader.footer());
            }
            if round % 10 == 9 {
                bytes.truncate(random.below(bytes.len()));
            }
            seen += read_everything(&bytes);
            if round % 8 == 0 {
                fs::write(&input, &bytes).unwrap();
                let writer = WriterOptions { overwrite: true, ..options() };
                let done = recover(&input, &output, RecoverOptions { writer, ..RecoverOptions::default() }).unwrap();
                let recovered = ShardPackReader::open(&output).unwrap();
                assert_eq!(recovered.len(), done.records);
                for record in recovered.records() {
                    let record = record.unwrap();
                    assert!(record.entries().all(|entry| entry.stored().is_ok()));
                    recovered.by_key(record.key()).unwrap();
                }
            }
        }
    }
    assert!(seen > 1000 || seeds.is_empty(), "the changes leave hardly anything to read: {seen}");
}

#[test]
fn a_file_full_of_false_markers_takes_little_time() {
    let folder = Folder::new("a_file_full_of_false_markers_takes_little_time");
    let (input, output) = (folder.path("in.shardpack"), folder.path("out.shardpack"));
    // Each head claims the largest size, and fits into the file.
    let mut head = Vec::new();
    head.extend((3_u64 << 20).to_le_bytes());
    head.extend(b"SPR1\x01\x01\x08\x00");
    for size in [1_000_u32, 4_000, 1, 2 << 20] {
        head.extend(size.to_le_bytes());
    }
    let mut bytes = head.repeat(20 << 10);
    bytes.resize(4 << 20, 0);
    fs::write(&input, &bytes).unwrap();
    let done = recover(&input, &output, RecoverOptions { writer: options(), ..RecoverOptions::default() }).unwrap();
    assert_eq!((done.records, done.lost.len()), (0, 1));
    assert_eq!(done.lost[0].size, bytes.len() as u64);
}
