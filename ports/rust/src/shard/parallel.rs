//! Work on several threads with the feature `rayon`, and on one without it; and memory that threads keep.

use std::cell::Cell;

use crate::Result;

/// Does the work for 0 to count − 1. If several fail, any error may be returned.
#[cfg(feature = "rayon")]
pub(crate) fn for_each(count: usize, work: impl Fn(usize) -> Result<()> + Send + Sync) -> Result<()> {
    use rayon::iter::{IntoParallelIterator, ParallelIterator};
    if count < 2 {
        return (0..count).try_for_each(work);
    }
    (0..count).into_par_iter().try_for_each(work)
}

/// Does the work for 0 to count − 1, and stops at the first error.
#[cfg(not(feature = "rayon"))]
pub(crate) fn for_each(count: usize, work: impl Fn(usize) -> Result<()> + Send + Sync) -> Result<()> {
    (0..count).try_for_each(work)
}

/// Does both, at the same time where that is possible.
#[cfg(feature = "rayon")]
pub(crate) fn both(
    first: impl FnOnce() -> Result<()> + Send,
    second: impl FnOnce() -> Result<()> + Send,
) -> Result<()> {
    let (first, second) = rayon::join(first, second);
    first.and(second)
}

#[cfg(not(feature = "rayon"))]
pub(crate) fn both(first: impl FnOnce() -> Result<()>, second: impl FnOnce() -> Result<()>) -> Result<()> {
    first()?;
    second()
}

/// The most memory that a thread keeps in one buffer.
const MOST_KEPT: usize = 64 << 20;

/// Memory for a short time. Its first bytes may be left over from earlier uses.
#[derive(Default)]
pub(crate) struct Buffer(Vec<u8>);

impl Buffer {
    /// Memory of this size.
    pub(crate) fn room(&mut self, size: usize) -> &mut [u8] {
        if self.0.len() < size {
            self.0.resize(size, 0);
        }
        self.0.get_mut(..size).unwrap_or_default()
    }

    pub(crate) fn is_small(&self) -> bool {
        self.0.len() <= MOST_KEPT
    }
}

thread_local! {
    static KEPT: Cell<Option<Buffer>> = const { Cell::new(None) };
}

/// Lends the buffer that this thread keeps. A call inside a call gets one of its own.
pub(crate) fn with_buffer<T>(work: impl FnOnce(&mut Buffer) -> T) -> T {
    let mut buffer = KEPT.take().unwrap_or_default();
    let result = work(&mut buffer);
    if buffer.is_small() {
        KEPT.set(Some(buffer));
    }
    result
}
