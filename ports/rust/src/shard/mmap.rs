//! The only module with unsafe code: a file in memory.

use std::fs::File;

use memmap2::Mmap;

/// A mapped file.
///
/// The bytes may change if another process writes to the file, and the process ends if it touches what another process
/// has cut off: do not change a file in place that a reader has open. Writers here never do; they replace files.
#[derive(Debug)]
pub(crate) struct Mapping(Mmap);

impl Mapping {
    /// Maps a file of this size; `None` if the system cannot, or if the file has another size by now.
    pub(crate) fn of(file: &File, size: u64) -> Option<Mapping> {
        // SAFETY: the mapping is read-only and private to this process's view of the file. That nobody changes the file in
        // place is the condition that the documentation of views states; parsers check offsets against the length of the
        // slice and never trust a value that they read twice.
        let map = unsafe { Mmap::map(file) }.ok()?;
        (map.len() as u64 == size).then_some(Mapping(map))
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
