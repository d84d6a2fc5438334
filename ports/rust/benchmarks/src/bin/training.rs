//! Batches of random windows of episodes, which `wshard` of Python has saved with the profile `training`.
//!
//!     cargo run --release --bin training FOLDER [THREADS]
//!
//! `benchmarks/bench_training_windows.py` measures the same with Python: each batch goes into new arrays, all files are
//! open, and rewards and ends are read, too.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rayon::prelude::*;
use shard_format::ShardReader;

const STEPS: usize = 640;
const WINDOW: usize = 64;
const BATCH: usize = 16;
const ROUNDS: usize = 200;
/// Entries, and their bytes of a step.
const CHANNELS: [(&str, usize); 5] =
    [("signal/rgb", 64 * 64 * 3), ("signal/state", 14 * 4), ("action/ctrl", 7 * 4), ("reward", 4), ("done", 1)];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().expect("a folder of episodes"));
    let threads = arguments.next().map_or(2, |text| text.parse().unwrap());
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|one| one.unwrap().path()).collect();
    paths.sort();
    let readers: Vec<ShardReader> = paths.iter().map(|path| ShardReader::open(path).unwrap()).collect();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.unwrap();
    let mut random = 18_u64;
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let windows: Vec<(usize, usize)> = (0..BATCH)
                .map(|_| {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let number = random as usize;
                    (number % readers.len(), number / 1000 % (STEPS - WINDOW + 1))
                })
                .collect();
            let start = Instant::now();
            let batch = pool.install(|| read_batch(&readers, &windows));
            std::hint::black_box(batch);
            start.elapsed()
        })
        .collect();
    times.sort();
    let [best, median] = [times[0], times[ROUNDS / 2]].map(|time| time.as_secs_f64() * 1e6 / BATCH as f64);
    println!("{threads} threads: best {best:.1} µs per window, median {median:.1}");
}

/// One array for each channel.
fn read_batch(readers: &[ShardReader], windows: &[(usize, usize)]) -> Vec<Vec<u8>> {
    let mut batch: Vec<Vec<u8>> = CHANNELS.iter().map(|(_, step)| vec![0; step * WINDOW * BATCH]).collect();
    let mut parts: Vec<_> = batch
        .iter_mut()
        .zip(CHANNELS)
        .flat_map(|(array, (name, step))| {
            let rows = array.chunks_mut(step * WINDOW).zip(windows);
            rows.map(move |(row, (episode, start))| (row, name, *episode, start * step))
        })
        .collect();
    parts.par_iter_mut().for_each(|(row, name, episode, start)| {
        readers[*episode].decode_window_into(name, *start as u64, row).unwrap();
    });
    drop(parts);
    batch
}
