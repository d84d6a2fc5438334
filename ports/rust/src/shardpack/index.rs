//! The index of a shard (spec/shardpack.md, section 7).

use std::ops::Range;
use std::sync::OnceLock;

use crate::hash::crc32c;
use crate::json::{self, Object};
use crate::{Code, Error, Limits, Result};

use super::layout::{Footer, INDEX_HEAD_SIZE, MOST_RECORDS, wrong_checksum};

/// The index of an open shard. Each part is checked once, before it is first used.
#[derive(Debug)]
pub(super) struct Index {
    pub footer: Footer,
    /// The index from its first byte on.
    data: Vec<u8>,
    parts: Parts,
    offsets_checked: OnceLock<()>,
    lookup_checked: OnceLock<()>,
}

/// Where the parts are, from the start of the index.
#[derive(Clone, Debug)]
struct Parts {
    offsets: Range<usize>,
    hashes: Range<usize>,
    numbers: Range<usize>,
    metadata: Range<usize>,
}

impl Parts {
    fn of(footer: &Footer) -> Option<Self> {
        let count = usize::try_from(footer.record_count).ok()?;
        let hashes = count.checked_add(1)?.checked_mul(8)?.checked_add(INDEX_HEAD_SIZE)?;
        let numbers = count.checked_mul(8)?.checked_add(hashes)?;
        let metadata = count.checked_mul(4)?.checked_add(numbers)?;
        let end = usize::try_from(footer.metadata_size).ok()?.checked_add(metadata)?;
        Some(Self {
            offsets: INDEX_HEAD_SIZE..hashes,
            hashes: hashes..numbers,
            numbers: numbers..metadata,
            metadata: metadata..end,
        })
    }
}

/// Refuses an index above the limits before it is read (P-IDX-1).
pub(super) fn check_size(footer: &Footer, limits: &Limits) -> Result<()> {
    for (problem, value, most) in [
        ("the shard has too many records", footer.record_count, MOST_RECORDS),
        ("the index is too large", footer.index_size(), limits.max_index_bytes),
    ] {
        if value > most {
            let error = Error::new(Code::LimitExceeded, "P-IDX-1", problem);
            return Err(error.with_expected(format_args!("at most {most}")).with_found(value));
        }
    }
    Ok(())
}

impl Index {
    /// Checks that the index starts as the footer says (P-IDX-2).
    pub(super) fn new(data: Vec<u8>, footer: Footer) -> Result<Self> {
        let head = footer.index_head();
        match Parts::of(&footer) {
            Some(parts) if data.starts_with(&head) && data.get(parts.metadata.clone()).is_some() => {
                let (offsets_checked, lookup_checked) = Default::default();
                Ok(Self { footer, data, parts, offsets_checked, lookup_checked })
            }
            _ => {
                let problem = "the head of the index contradicts the footer";
                let found = data.get(..INDEX_HEAD_SIZE).unwrap_or_default();
                let error = Error::new(Code::SizeMismatch, "P-IDX-2", problem);
                Err(error.with_expected(format_args!("{head:02x?}")).with_found(format_args!("{found:02x?}")))
            }
        }
    }

    /// A part whose checksum fits.
    fn checked(&self, range: Range<usize>, stated: u32, problem: &'static str, rule: &'static str) -> Result<&[u8]> {
        let part = self.data.get(range).unwrap_or_default();
        let found = crc32c(part);
        if found == stated {
            return Ok(part);
        }
        Err(wrong_checksum(rule, problem, stated, found))
    }

    /// Checks P-IDX-3 and P-IDX-4.
    pub(super) fn check_offsets(&self) -> Result<()> {
        if self.offsets_checked.get().is_some() {
            return Ok(());
        }
        let problem = "the offsets of the records are damaged";
        let part = self.checked(self.parts.offsets.clone(), self.footer.offsets_crc32c, problem, "P-IDX-3")?;
        let mut next = None; // before the first, any offset is the next
        let ascends = u64s(part).all(|offset| match next.replace(offset) {
            None => offset == 0,
            Some(before) => before < offset,
        });
        if !ascends || next != Some(self.footer.index_offset) {
            let problem = "the offsets of the records do not ascend from 0 to the index";
            return Err(Error::new(Code::BadOffset, "P-IDX-4", problem));
        }
        let _ = self.offsets_checked.set(());
        Ok(())
    }

    /// Checks P-IDX-5 and P-IDX-6.
    pub(super) fn check_lookup(&self) -> Result<()> {
        if self.lookup_checked.get().is_some() {
            return Ok(());
        }
        let both = self.parts.hashes.start..self.parts.numbers.end;
        self.checked(both, self.footer.lookup_crc32c, "the key hashes are damaged", "P-IDX-5")?;
        let hashes = u64s(self.data.get(self.parts.hashes.clone()).unwrap_or_default());
        let mut numbers = u32s(self.data.get(self.parts.numbers.clone()).unwrap_or_default());
        if !hashes.is_sorted() || numbers.any(|number| u64::from(number) >= self.footer.record_count) {
            let problem = "the key hashes are not sorted, or name records that do not exist";
            return Err(Error::new(Code::BadOffset, "P-IDX-6", problem));
        }
        let _ = self.lookup_checked.set(());
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.parts.numbers.len() / 4
    }

    /// Where a record starts and how many bytes it takes.
    pub(super) fn place(&self, number: usize) -> Option<(u64, u64)> {
        let part = self.data.get(self.parts.offsets.clone())?;
        let mut offsets = u64s(part.get(number.checked_mul(8)?..)?);
        let (start, end) = (offsets.next()?, offsets.next()?);
        Some((start, end.checked_sub(start)?))
    }

    /// All offsets, and where the last record ends.
    pub(super) fn offsets(&self) -> Vec<u64> {
        u64s(self.data.get(self.parts.offsets.clone()).unwrap_or_default()).collect()
    }

    /// The numbers of the records whose keys have a hash.
    pub(super) fn with_hash(&self, hash: u64) -> impl Iterator<Item = usize> {
        let hashes = self.data.get(self.parts.hashes.clone()).unwrap_or_default().as_chunks::<8>().0;
        let numbers = self.data.get(self.parts.numbers.clone()).unwrap_or_default().as_chunks::<4>().0;
        let first = hashes.partition_point(|one| u64::from_le_bytes(*one) < hash);
        hashes
            .iter()
            .zip(numbers)
            .skip(first)
            .take_while(move |(one, _)| u64::from_le_bytes(**one) == hash)
            .map(|(_, number)| u32::from_le_bytes(*number) as usize)
    }

    /// Checks P-IDX-7 and P-IDX-8.
    pub(super) fn metadata(&self, limits: &Limits) -> Result<Object> {
        let problem = "the metadata of the shard is damaged";
        let text = self.checked(self.parts.metadata.clone(), self.footer.metadata_crc32c, problem, "P-IDX-7")?;
        json::parse_object(text, "the metadata of the shard", "P-IDX-8", limits)
    }
}

fn u64s(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks().0.iter().map(|one| u64::from_le_bytes(*one))
}

fn u32s(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks().0.iter().map(|one| u32::from_le_bytes(*one))
}

/// Gives what follows the last record, footer included. `keys` has where each record starts, and the hash of its key.
pub(super) fn build(records: &[(u64, u64)], end: u64, metadata: &[u8]) -> Result<(Vec<u8>, Footer)> {
    let too_large = || Error::new(Code::LimitExceeded, "P-IDX-1", "the shard is too large for an index");
    let mut order: Vec<(u64, u32)> = Vec::with_capacity(records.len());
    for (number, (_, hash)) in records.iter().enumerate() {
        order.push((*hash, u32::try_from(number).map_err(|_| too_large())?));
    }
    order.sort_unstable(); // equal hashes by number
    let mut footer = Footer {
        index_offset: end,
        record_count: records.len() as u64,
        metadata_size: metadata.len() as u64,
        total_size: 0,
        offsets_crc32c: 0,
        lookup_crc32c: 0,
        metadata_crc32c: crc32c(metadata),
    };
    footer.total_size = footer.expected_size().ok_or_else(too_large)?;
    let offsets: Vec<u8> = records.iter().map(|(offset, _)| *offset).chain([end]).flat_map(u64::to_le_bytes).collect();
    let mut lookup: Vec<u8> = order.iter().flat_map(|(hash, _)| hash.to_le_bytes()).collect();
    lookup.extend(order.iter().flat_map(|(_, number)| number.to_le_bytes()));
    footer.offsets_crc32c = crc32c(&offsets);
    footer.lookup_crc32c = crc32c(&lookup);
    Ok(([&footer.index_head(), &offsets, &lookup, metadata, &footer.to_bytes()].concat(), footer))
}
