//! Windows and whole entries are decoded into memory of the caller, without making any.
#![allow(unsafe_code)]

mod common;

use std::alloc::{GlobalAlloc, Layout as Memory, System};
use std::cell::Cell;

use common::Folder;
use shard_format::shard::{Codec, Delta, EntryOptions, Filters, WriterOptions};
use shard_format::{ShardReader, ShardWriter};

struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: everything is left to the allocator of the system.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Memory) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Memory) {
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn reading_into_memory_of_the_caller_allocates_nothing() {
    let folder = Folder::new("allocations");
    let path = folder.path("a.shard");
    let content: Vec<u8> = (0..90_000u32).flat_map(|i| (i / 5).to_le_bytes()).collect();
    let filters = Filters { delta: Some(Delta { order: 2, width: 4, row: 12 }), planes: Some(4) };
    let seekable = EntryOptions { codec: Some(Codec::Zstd), frame_bytes: Some(24_000), ..EntryOptions::default() };
    let filtered = EntryOptions { filters: Some(filters), ..seekable.clone() };
    let whole = |codec| EntryOptions { codec: Some(codec), ..EntryOptions::default() };
    let mut writer = ShardWriter::create(&path, WriterOptions::default()).unwrap();
    writer.write("raw", &content).unwrap();
    writer.write_with("seekable", &content, &seekable).unwrap();
    writer.write_with("filtered", &content, &filtered).unwrap();
    writer.write_with("zstd", &content, &whole(Codec::Zstd)).unwrap();
    writer.write_with("lz4", &content, &whole(Codec::Lz4)).unwrap();
    writer.finish().unwrap();
    let reader = ShardReader::open(&path).unwrap();
    let mut window = vec![0; 50_000];
    for name in ["raw", "seekable", "filtered", "zstd", "lz4"] {
        for round in 0..4 {
            let before = COUNT.get();
            for start in [0, 20_001, 310_000] {
                reader.decode_window_into(name, start, &mut window).unwrap();
                assert_eq!(window, content[start as usize..][..window.len()]);
            }
            assert!(round == 0 || COUNT.get() == before, "{name}");
        }
    }
    let mut all = vec![0; content.len()];
    for name in ["raw", "zstd", "lz4"] {
        let before = COUNT.get();
        reader.read_into(name, &mut all).unwrap();
        assert_eq!(all, content);
        assert_eq!(COUNT.get(), before, "{name}");
    }
}
