//! What the tests share: the vectors, and folders that go away.
#![allow(dead_code)]

pub mod packs;

use std::path::{Path, PathBuf};

use shard_format::json::{self, Object};
use shard_format::{Limits, ShardReader};

/// A folder of the vectors; `None` in a package, which does not have them.
pub fn vectors(folder: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec/vectors");
    path.is_dir().then(|| path.join(folder))
}

/// The files of some folders of vectors that have an ending, smallest names first.
pub fn files(folders: &[&str], ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in folders.iter().filter_map(|folder| vectors(folder)) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|one| one == ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

pub fn read_json(path: &Path) -> Object {
    let limits = Limits { max_json_bytes: u64::MAX, max_json_nodes: u64::MAX, ..Limits::default() };
    json::parse_object(&std::fs::read(path).unwrap(), "the vector", "", &limits).unwrap()
}

/// A folder that is removed at the end of a test.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(test: &str) -> Folder {
        let name = format!("shard-format-{test}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path.canonicalize().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The names in the folder.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let names = entries.map(|one| one.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Touches everything that a file offers, as a tool that trusts nothing does. Errors are fine.
pub fn touch(reader: &ShardReader) {
    for row in 0..reader.len() {
        let Ok(info) = reader.info_at(row) else {
            continue;
        };
        assert_eq!(reader.find(info.name), Some(row));
        let whole = reader.read_at(row);
        let _ = reader.filters(info.name);
        let _ = reader.seek_frames(info.name);
        let size = info.row.orig_size.min(1 << 20);
        let (start, end) = (size / 3, size - size / 4);
        let part = reader.read_range(info.name, start..end.max(start));
        if let (Ok(whole), Ok(part)) = (whole, part) {
            assert_eq!(part, whole[start as usize..end.max(start) as usize]);
        }
        let _ = reader.view(info.name);
    }
    let _ = reader.schema();
    let _ = reader.manifest();
    let _ = reader.warnings();
    let _ = reader.verify();
    let _ = reader.verify_identity();
}
