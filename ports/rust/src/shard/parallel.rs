//! Work on several threads with the feature `rayon`, and on one without it; and memory that threads keep.

use std::cell::RefCell;

use super::reader::zeroed;
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
/// The most buffers that a thread keeps: it uses more than one if a call needs two, or if it decodes for another call
/// while it waits for a thread.
const MOST_BUFFERS: usize = 4;

/// Memory for a short time. Its first bytes may be left over from earlier uses.
#[derive(Default)]
pub(crate) struct Buffer(Vec<u8>);

impl Buffer {
    /// Memory of this size.
    pub(crate) fn room(&mut self, size: usize) -> Result<&mut [u8]> {
        if self.0.len() < size {
            self.0 = zeroed(size)?;
        }
        Ok(self.0.get_mut(..size).unwrap_or_default())
    }

    pub(crate) fn is_small(&self) -> bool {
        self.0.len() <= MOST_KEPT
    }
}

thread_local! {
    static KEPT: RefCell<Vec<Buffer>> = const { RefCell::new(Vec::new()) };
}

/// Lends a buffer that this thread keeps. A call inside a call gets another one.
pub(crate) fn with_buffer<T>(work: impl FnOnce(&mut Buffer) -> T) -> T {
    let mut buffer = KEPT.with_borrow_mut(Vec::pop).unwrap_or_default();
    let result = work(&mut buffer);
    KEPT.with_borrow_mut(|kept| {
        if buffer.is_small() && kept.len() < MOST_BUFFERS {
            kept.push(buffer);
        }
    });
    result
}
