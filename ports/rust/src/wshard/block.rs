//! Stored bytes that are read when they are asked for.

use std::borrow::Cow;
use std::sync::Arc;

use super::dtype::each;
use super::journal::Runs;
use super::residual::JoinedSigns;
use crate::DType;
use crate::shard::ShardReader;
use crate::{Error, Result};

/// Stored bytes: of a file, in memory, or put together of other blocks. Copies share the bytes.
#[derive(Clone, Debug)]
pub(crate) enum Block {
    Memory(Arc<[u8]>),
    /// An entry of a file, of the size that its index claims.
    Entry(Arc<ShardReader>, String, u64),
    /// A range of another block.
    Part(Arc<Block>, u64, u64),
    /// Blocks one after another, each with where it ends.
    Joined(Arc<[(u64, Block)]>),
    /// A block of f32, as f64.
    Widened(Arc<Block>),
    /// Scales of a residual for smaller windows.
    Repeated(Arc<Repeated>),
    /// The packed signs of several parts.
    Signs(Arc<JoinedSigns>),
    /// The first bytes of a channel of a journal.
    Runs(Arc<Runs>, u64),
}

/// Another block, each row of which is there several times.
#[derive(Debug)]
pub(crate) struct Repeated {
    pub(crate) from: Block,
    /// The bytes of a row, and how often each is there.
    pub(crate) step: u64,
    pub(crate) times: u64,
    pub(crate) size: u64,
}

impl Block {
    pub(crate) fn memory(data: impl Into<Arc<[u8]>>) -> Self {
        Self::Memory(data.into())
    }

    pub(crate) fn integers(values: &[i64]) -> Self {
        Self::memory(values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
    }

    /// An entry that the file has.
    pub(crate) fn entry(reader: &Arc<ShardReader>, name: &str) -> Self {
        let size = reader.index_entry(name).map_or(0, |entry| entry.orig_size);
        Self::Entry(Arc::clone(reader), name.to_owned(), size)
    }

    pub(crate) fn part(&self, start: u64, end: u64) -> Self {
        Self::Part(Arc::new(self.clone()), start, end)
    }

    pub(crate) fn join(parts: impl IntoIterator<Item = Self>) -> Self {
        let mut end = 0u64;
        let parts = parts.into_iter().map(|part| {
            end = end.saturating_add(part.size());
            (end, part)
        });
        Self::Joined(parts.collect())
    }

    /// The number of bytes; of an entry, what its file claims.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Memory(data) => data.len() as u64,
            Self::Entry(_, _, size) | Self::Runs(_, size) => *size,
            Self::Part(_, start, end) => end.saturating_sub(*start),
            Self::Joined(parts) => parts.last().map_or(0, |(end, _)| *end),
            Self::Widened(narrow) => narrow.size().saturating_mul(2),
            Self::Repeated(repeated) => repeated.size,
            Self::Signs(signs) => signs.size(),
        }
    }

    /// Whether this is an entry of a file.
    pub(crate) fn is_entry(&self, reader: &Arc<ShardReader>, name: &str) -> bool {
        matches!(self, Self::Entry(file, entry, _) if Arc::ptr_eq(file, reader) && entry == name)
    }

    /// All bytes, checked.
    pub(crate) fn read(&self) -> Result<Cow<'_, [u8]>> {
        match self {
            Self::Memory(data) => Ok(Cow::Borrowed(data)),
            Self::Entry(reader, name, _) => reader.read(name).map(Cow::Owned), // the checksum covers the whole
            Self::Signs(signs) => signs.read().map(Cow::Owned),
            Self::Repeated(repeated) => repeated.read().map(Cow::Owned),
            Self::Widened(narrow) => {
                let wide = DType::F32.floats(&narrow.read()?);
                Ok(Cow::Owned(wide.iter().flat_map(|value| value.to_le_bytes()).collect()))
            }
            _ => self.read_range(0, self.size()),
        }
    }

    /// The bytes from start to end, checked as far as the source allows.
    pub(crate) fn read_range(&self, start: u64, end: u64) -> Result<Cow<'_, [u8]>> {
        if start > end || end > self.size() {
            return Err(Error::invalid("the range is outside the block"));
        }
        match self {
            Self::Entry(_, _, size) if (start, end) == (0, *size) => self.read(),
            Self::Entry(reader, name, _) => reader.read_range(name, start..end).map(Cow::Owned),
            Self::Part(whole, first, _) => whole.read_range(first.saturating_add(start), first.saturating_add(end)),
            Self::Joined(parts) => read_joined(parts, start, end),
            Self::Runs(runs, _) => runs.read_range(start, end).map(Cow::Owned),
            Self::Widened(narrow) if start.is_multiple_of(8) && end.is_multiple_of(8) => {
                let narrow = narrow.read_range(start / 2, end / 2)?;
                Ok(Cow::Owned(DType::F32.floats(&narrow).iter().flat_map(|value| value.to_le_bytes()).collect()))
            }
            Self::Memory(_) | Self::Widened(_) | Self::Repeated(_) | Self::Signs(_) => {
                let range = to_usize(start)?..to_usize(end)?;
                let outside = || Error::invalid("the range is outside the block");
                match self.read()? {
                    Cow::Borrowed(data) => data.get(range).map(Cow::Borrowed).ok_or_else(outside),
                    Cow::Owned(data) => data.get(range).map(|data| Cow::Owned(data.to_vec())).ok_or_else(outside),
                }
            }
        }
    }

    /// The values of a block of i64.
    pub(crate) fn read_integers(&self) -> Result<Vec<i64>> {
        Ok(each(&self.read()?, i64::from_le_bytes))
    }
}

/// All parts are read before memory is made for the whole: a size is what a file claims.
fn read_joined(parts: &[(u64, Block)], start: u64, end: u64) -> Result<Cow<'_, [u8]>> {
    let mut pieces = Vec::new();
    let mut begin = 0;
    for (part_end, part) in parts {
        let (from, to) = (start.max(begin), end.min(*part_end));
        if from < to {
            pieces.push(part.read_range(from.saturating_sub(begin), to.saturating_sub(begin))?);
        }
        begin = *part_end;
    }
    match <[Cow<'_, [u8]>; 1]>::try_from(pieces) {
        Ok([piece]) => Ok(piece),
        Err(pieces) => Ok(Cow::Owned(pieces.concat())),
    }
}

impl Repeated {
    fn read(&self) -> Result<Vec<u8>> {
        let rows = self.from.read()?;
        let (step, times) = (to_usize(self.step)?.max(1), to_usize(self.times)?);
        let mut out = Vec::with_capacity(to_usize(self.size)?);
        for row in rows.chunks(step) {
            for _ in 0..times {
                out.extend_from_slice(row);
            }
        }
        out.truncate(to_usize(self.size)?);
        Ok(out)
    }
}

/// A size that this machine can hold.
pub(crate) fn to_usize(value: u64) -> Result<usize> {
    usize::try_from(value).map_err(|_| Error::invalid("this machine cannot hold so many bytes"))
}
