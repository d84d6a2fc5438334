//! Batches of windows of episodes that the Python library saved with the profile `training`: the Rust side of
//! `benchmarks/ports_windows.py`, which says what to read and measures the time.
//!
//!     cargo run --release --bin training FOLDER THREADS
//!
//! Each line on standard input lists windows, such as `0:17 3:120`: an episode and its first step. The program reads them
//! into new arrays and answers with a line: the CRC-32C of each array after the word `check`, else nothing.

use std::io::{BufRead, Write, stdin, stdout};
use std::path::PathBuf;

use rayon::prelude::*;
use shard_format::{ShardReader, hash};

const WINDOW: usize = 64;
/// Entries, and their bytes of a step. `EpisodeDataset` of Python also reads rewards and ends.
const CHANNELS: [(&str, usize); 5] =
    [("signal/rgb", 64 * 64 * 3), ("signal/state", 14 * 4), ("action/ctrl", 7 * 4), ("reward", 4), ("done", 1)];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().expect("a folder of episodes"));
    let threads = arguments.next().expect("a number of threads").parse().unwrap();
    let count = std::fs::read_dir(&folder).unwrap().count();
    let readers: Vec<ShardReader> =
        (0..count).map(|number| ShardReader::open(folder.join(format!("{number}.wshard"))).unwrap()).collect();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    for line in stdin().lock().lines() {
        let line = line.unwrap();
        let (check, list) = line.strip_prefix("check ").map_or((false, line.as_str()), |list| (true, list));
        let windows: Vec<(usize, usize)> = list
            .split(' ')
            .map(|window| window.split_once(':').unwrap())
            .map(|(episode, start)| (episode.parse().unwrap(), start.parse().unwrap()))
            .collect();
        let batch = pool.install(|| read_batch(&readers, &windows));
        let sums: Vec<String> = batch.iter().filter(|_| check).map(|array| hash::crc32c(array).to_string()).collect();
        println!("{}", sums.join(" "));
        stdout().flush().unwrap();
    }
}

/// One array for each channel.
fn read_batch(readers: &[ShardReader], windows: &[(usize, usize)]) -> Vec<Vec<u8>> {
    let mut batch: Vec<Vec<u8>> = CHANNELS.iter().map(|(_, step)| vec![0; step * WINDOW * windows.len()]).collect();
    let mut parts: Vec<_> = batch
        .iter_mut()
        .zip(CHANNELS)
        .flat_map(|(array, (name, step))| {
            let rows = array.chunks_mut(step * WINDOW).zip(windows);
            rows.map(move |(row, (episode, start))| (row, name, *episode, start * step))
        })
        .collect();
    // One by one: the windows of the camera take nearly all the time, and come first.
    parts.par_iter_mut().with_max_len(1).for_each(|(row, name, episode, start)| {
        readers[*episode].decode_window_into(name, *start as u64, row).unwrap();
    });
    drop(parts);
    batch
}
