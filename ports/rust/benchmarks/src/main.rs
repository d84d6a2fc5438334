//! Compares the library with others that do the same work: medians of many rounds, each in turn, as Markdown.
//!
//!     cargo run --release [words]     only where the title contains all these words

use std::collections::HashMap;
use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use shard_format::shard::{Codec, EntryOptions, WriterOptions};
use shard_format::{ShardReader, ShardWriter};

type Work<'a> = (&'a str, Box<dyn FnMut() + 'a>);

/// Runs what is compared in turn, so that a busy machine is busy for all of it.
///
/// A turn is several calls where one is short: the first call after another row pays for what that row drove out of the
/// caches.
fn compare(title: &str, rounds: usize, calls: u32, mut works: Vec<Work<'_>>) {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if !words.iter().all(|word| title.contains(word.as_str())) {
        return;
    }
    let mut times: Vec<Vec<Duration>> = vec![Vec::with_capacity(rounds); works.len()];
    for _ in 0..rounds {
        for (times, (_, work)) in times.iter_mut().zip(&mut works) {
            let start = Instant::now();
            for _ in 0..calls {
                work();
            }
            times.push(start.elapsed() / calls);
        }
    }
    println!("### {title}\n\n| | median | relative | best |\n|---|---:|---:|---:|");
    for times in &mut times {
        times.sort();
    }
    let first = times[0][rounds / 2].as_secs_f64();
    for (times, (name, _)) in times.iter().zip(&works) {
        let [median, best] = [times[rounds / 2], times[0]].map(|time| time.as_secs_f64());
        println!("| {name} | {:.1} µs | {:.2} | {:.1} µs |", median * 1e6, median / first, best * 1e6);
    }
    println!();
}

fn write(path: &Path, alignment: u8, entries: impl Iterator<Item = (String, Vec<u8>)>, given: &EntryOptions) {
    let options = WriterOptions { alignment, sync: false, ..WriterOptions::default() };
    let mut writer = ShardWriter::create(path, options).unwrap();
    for (name, data) in entries {
        writer.write_with(&name, &data, given).unwrap();
    }
    writer.finish().unwrap();
}

/// Joint angles in encoder steps, as float32.
fn angles(count: usize) -> Vec<u8> {
    let mut state = 1u32;
    let step = |i: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let noise = (state >> 28) as f32;
        (((i / 7) as f32 * 0.001).sin() * 4096.0 + noise).round() / 4096.0
    };
    (0..count).map(step).flat_map(f32::to_le_bytes).collect()
}

fn open_and_fetch(folder: &Path) {
    let (ours, theirs) = (folder.join("fetch.shard"), folder.join("fetch.safetensors"));
    let mut tensors: Vec<(String, Vec<u8>)> =
        (0..50).map(|i| (format!("tensor/{i:02}"), vec![i as u8; 1 << 20])).collect();
    tensors.push(("wanted".to_owned(), angles(7000)));
    write(&ours, 64, tensors.iter().cloned(), &EntryOptions::default());
    let views: HashMap<&str, safetensors::tensor::TensorView<'_>> = tensors
        .iter()
        .map(|(name, data)| {
            let kind = safetensors::Dtype::U8;
            let view = safetensors::tensor::TensorView::new(kind, vec![data.len()], data).unwrap();
            (name.as_str(), view)
        })
        .collect();
    safetensors::serialize_to_file(views, None, &theirs).unwrap();
    compare(
        "Open a file of 50 MB, copy an entry of 28 KB",
        300,
        20,
        vec![
            (
                "shard, read, with checksum",
                Box::new(|| {
                    let reader = ShardReader::open(&ours).unwrap();
                    black_box(reader.read("wanted").unwrap());
                }),
            ),
            (
                "shard, view, with checksum",
                Box::new(|| {
                    let reader = ShardReader::open(&ours).unwrap();
                    black_box(reader.view("wanted").unwrap().to_vec());
                }),
            ),
            (
                "safetensors, mmap, without checksum",
                Box::new(|| {
                    let file = File::open(&theirs).unwrap();
                    let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
                    let tensors = safetensors::SafeTensors::deserialize(&map).unwrap();
                    black_box(tensors.tensor("wanted").unwrap().data().to_vec());
                }),
            ),
        ],
    );
}

fn decode(folder: &Path) {
    let path = folder.join("decode.shard");
    let content = angles(1 << 18);
    let zstd = EntryOptions { codec: Some(Codec::Zstd), ..EntryOptions::default() };
    write(&path, 64, std::iter::once(("a".to_owned(), content.clone())), &zstd);
    let reader = ShardReader::open(&path).unwrap();
    let in_memory = ShardReader::from_bytes(std::fs::read(&path).unwrap()).unwrap();
    let stored = reader.read_stored("a").unwrap();
    let mut decoder = zstd_safe::DCtx::create();
    let [mut bare, mut ours, mut also_ours] = [(); 3].map(|()| vec![0u8; content.len()]);
    compare(
        "Decode an entry of 1 MiB, one zstd frame",
        400,
        1,
        vec![
            (
                "shard, read_into, with checksum",
                Box::new(|| {
                    reader.read_into("a", black_box(&mut ours)).unwrap();
                }),
            ),
            (
                "shard, read_into, with checksum, file in memory",
                Box::new(|| {
                    in_memory.read_into("a", black_box(&mut also_ours)).unwrap();
                }),
            ),
            (
                "shard, read, with checksum",
                Box::new(|| {
                    black_box(reader.read("a").unwrap());
                }),
            ),
            (
                "checksum alone",
                Box::new(|| {
                    black_box(shard_format::hash::crc32c(black_box(&content)));
                }),
            ),
            (
                "libzstd, the same frame in memory",
                Box::new(|| {
                    decoder.decompress(black_box(&mut bare[..]), &stored).unwrap();
                }),
            ),
        ],
    );
}

fn windows(folder: &Path) {
    let path = folder.join("windows.shard");
    let content = angles(7 << 16);
    let seekable = EntryOptions { codec: Some(Codec::Zstd), frame_bytes: Some(28 << 10), ..EntryOptions::default() };
    write(&path, 64, std::iter::once(("a".to_owned(), content.clone())), &seekable);
    let reader = ShardReader::open(&path).unwrap();
    reader.verify().unwrap();
    let stored = reader.read_stored("a").unwrap();
    let first = reader.seek_frames("a").unwrap().unwrap()[0];
    let frame = &stored[..first.compressed_size as usize];
    let mut decoder = zstd_safe::DCtx::create();
    let mut bare = vec![0u8; 28 << 10];
    let mut ours = vec![0u8; 28 << 10];
    compare(
        "Decode a window of 28 KB, one zstd frame",
        300,
        10,
        vec![
            (
                "shard, decode_window_into",
                Box::new(|| {
                    reader.decode_window_into("a", 0, black_box(&mut ours)).unwrap();
                }),
            ),
            (
                "libzstd, the same frame in memory",
                Box::new(|| {
                    decoder.decompress(black_box(&mut bare[..]), frame).unwrap();
                }),
            ),
        ],
    );
}

fn many_entries(folder: &Path) {
    const COUNT: u32 = 1_000_000;
    for (title, scramble) in [("in order", 1u32), ("in no order", 2_654_435_761)] {
        let path = folder.join(format!("many-{scramble}.shard"));
        let name = |i: u32| format!("sample/{:010}", i.wrapping_mul(scramble));
        write(&path, 0, (0..COUNT).map(|i| (name(i), i.to_le_bytes().to_vec())), &EntryOptions::default());
        compare(
            &format!("Open a file of 1 000 000 entries, names {title}"),
            12,
            1,
            vec![
                (
                    "shard, open and find one",
                    Box::new(|| {
                        let reader = ShardReader::open(&path).unwrap();
                        assert!(black_box(reader.contains("sample/0000000000")));
                    }),
                ),
                (
                    "read the head of the file",
                    Box::new(|| {
                        let mut head = vec![0; 66 << 20];
                        File::open(&path).unwrap().read_exact(&mut head).unwrap();
                        black_box(head);
                    }),
                ),
            ],
        );
    }
}

fn main() {
    let folder: PathBuf = std::env::temp_dir().join(format!("shard-benchmarks-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for one in [open_and_fetch, decode, windows, many_entries] {
        one(&folder);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
