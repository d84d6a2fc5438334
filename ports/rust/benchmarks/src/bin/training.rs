//! Batches of windows of episodes that the Python library saved with the profile `training`: the Rust side of
//! `benchmarks/ports_windows.py`, which says what to read and measures the time.
//!
//!     cargo run --release --bin training FOLDER THREADS
//!
//! Each line on standard input lists windows, such as `0:17 3:120`: an episode and its first step. The program reads them
//! and answers with a line: the CRC-32C of each array of the batch after the word `check`, else nothing.
//!
//! Like `EpisodeDataset` of Python, the program keeps channels of little data decoded, and uses the memory of a batch that
//! is no longer needed for the next one.

use std::io::{BufRead, Write, stdin, stdout};
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use shard_format::{ShardReader, hash};

const WINDOW: usize = 64;
const CAMERA: (&str, usize) = ("signal/rgb", 64 * 64 * 3);
/// Entries of little data, and their bytes of a step. `EpisodeDataset` also reads rewards and ends.
const SMALL: [(&str, usize); 4] = [("signal/state", 14 * 4), ("action/ctrl", 7 * 4), ("reward", 4), ("done", 1)];

struct Episode {
    reader: ShardReader,
    small: Vec<Vec<u8>>,
}

impl Episode {
    fn open(path: &Path) -> Episode {
        let reader = ShardReader::open(path).unwrap();
        let small = SMALL.iter().map(|(name, _)| reader.read(name).unwrap()).collect();
        Episode { reader, small }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().expect("a folder of episodes"));
    let threads = arguments.next().expect("a number of threads").parse().unwrap();
    let count = std::fs::read_dir(&folder).unwrap().count();
    let episodes: Vec<Episode> =
        (0..count).map(|number| Episode::open(&folder.join(format!("{number}.wshard")))).collect();
    // This thread is one of them.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).use_current_thread().build().unwrap();
    // One array for each channel.
    let mut batch = vec![Vec::new(); 1 + SMALL.len()];
    for line in stdin().lock().lines() {
        let line = line.unwrap();
        let (check, list) = line.strip_prefix("check ").map_or((false, line.as_str()), |list| (true, list));
        let windows: Vec<(usize, usize)> = list
            .split(' ')
            .map(|window| window.split_once(':').unwrap())
            .map(|(episode, start)| (episode.parse().unwrap(), start.parse().unwrap()))
            .collect();
        pool.install(|| read_batch(&episodes, &windows, &mut batch));
        let sums: Vec<String> = batch.iter().filter(|_| check).map(|array| hash::crc32c(array).to_string()).collect();
        println!("{}", sums.join(" "));
        stdout().flush().unwrap();
    }
}

fn read_batch(episodes: &[Episode], windows: &[(usize, usize)], batch: &mut [Vec<u8>]) {
    let (camera, small) = batch.split_first_mut().unwrap();
    let (name, step) = CAMERA;
    camera.resize(step * WINDOW * windows.len(), 0);
    let rows = camera.par_chunks_mut(step * WINDOW).zip(windows).with_max_len(1);
    rows.for_each(|(row, (episode, start))| {
        episodes[*episode].reader.decode_window_into(name, (start * step) as u64, row).unwrap();
    });
    for (number, (array, (_, step))) in small.iter_mut().zip(SMALL).enumerate() {
        array.clear();
        for (episode, start) in windows {
            array.extend_from_slice(&episodes[*episode].small[number][start * step..][..WINDOW * step]);
        }
    }
}
