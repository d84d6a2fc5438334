//! Names and content types of the entries of a record (spec/shardpack.md, section 3).

use std::sync::{Arc, Mutex, PoisonError};

use crate::{Code, Error, Result};

use super::layout::{Fields, LONGEST_CONTENT_TYPE};

const SIZES: usize = 4;

/// The names and content types of the entries of a record. Most records of a shard share theirs.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    pub stored: Vec<u8>,
    /// The name and the content type of each entry, one after the other, and where each of them ends.
    text: String,
    ends: Vec<usize>,
    /// The numbers of the entries, in the order of their names.
    sorted: Vec<usize>,
}

impl Kinds {
    /// Checks every rule of names and content types (P-KND).
    pub(super) fn parse(stored: &[u8], count: usize) -> Result<Self> {
        let wrong_size = || {
            Error::new(Code::SizeMismatch, "P-KND-1", "names and content types do not fill their area")
                .with_expected(format_args!("{count} entries"))
                .with_found(format_args!("{} bytes", stored.len()))
        };
        if stored.len() / SIZES < count {
            return Err(wrong_size());
        }
        let mut kinds = Self {
            stored: stored.to_vec(), // the block that it is part of may be large
            text: String::with_capacity(stored.len()),
            ends: Vec::with_capacity(count.saturating_mul(2)),
            sorted: (0..count).collect(),
        };
        let mut fields = Fields(stored);
        for _ in 0..count {
            let (name, content_type) = take_kind(&mut fields).ok_or_else(wrong_size)?;
            kinds.add(name, content_type)?;
        }
        if !fields.0.is_empty() {
            return Err(wrong_size());
        }
        let mut sorted = std::mem::take(&mut kinds.sorted);
        sorted.sort_unstable_by_key(|number| kinds.name(*number));
        for (one, next) in sorted.iter().zip(sorted.iter().skip(1)) {
            if kinds.name(*one) == kinds.name(*next) {
                let error = Error::new(Code::DuplicateName, "P-KND-4", "a record has two entries of this name");
                return Err(error.with_entry(kinds.name(*one)));
            }
        }
        kinds.sorted = sorted;
        Ok(kinds)
    }

    fn add(&mut self, name: &[u8], content_type: &[u8]) -> Result<()> {
        let Some(name) = std::str::from_utf8(name).ok().filter(|name| !name.is_empty() && !name.contains('\0')) else {
            return Err(Error::new(Code::BadName, "P-KND-2", "the name of an entry cannot be read")
                .with_expected("UTF-8 without U+0000, not empty")
                .with_found(format_args!("{:.80}", name.escape_ascii().to_string())));
        };
        let is_printable = content_type.iter().all(|byte| (0x20..=0x7E).contains(byte));
        let (true, Ok(content_type)) =
            (is_printable && content_type.len() <= LONGEST_CONTENT_TYPE, std::str::from_utf8(content_type))
        else {
            return Err(Error::new(Code::BadHeader, "P-KND-3", "a content type cannot be read")
                .with_entry(name)
                .with_expected("at most 255 printable ASCII characters")
                .with_found(format_args!("{:.80}", content_type.escape_ascii().to_string())));
        };
        for part in [name, content_type] {
            self.text.push_str(part);
            self.ends.push(self.text.len());
        }
        Ok(())
    }

    fn part(&self, number: usize) -> &str {
        let end = |number: usize| self.ends.get(number).copied();
        let start = number.checked_sub(1).and_then(end).unwrap_or(0);
        end(number).and_then(|end| self.text.get(start..end)).unwrap_or("")
    }

    pub(super) fn len(&self) -> usize {
        self.sorted.len()
    }

    pub(super) fn name(&self, number: usize) -> &str {
        self.part(number.saturating_mul(2))
    }

    pub(super) fn content_type(&self, number: usize) -> &str {
        self.part(number.saturating_mul(2).saturating_add(1))
    }

    /// The number of the entry of a name.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        let place = self.sorted.binary_search_by_key(&name, |number| self.name(*number)).ok()?;
        self.sorted.get(place).copied()
    }
}

fn take_kind<'a>(fields: &mut Fields<'a>) -> Option<(&'a [u8], &'a [u8])> {
    let (name_size, type_size) = (fields.u16()?, fields.u16()?);
    Some((fields.bytes(usize::from(name_size))?, fields.bytes(usize::from(type_size))?))
}

/// Adds a name and a content type, which have at most 65 535 bytes, to the stored form of kinds.
pub(super) fn append_kind(name: &str, content_type: &str, out: &mut Vec<u8>) {
    for part in [name, content_type] {
        out.extend(u16::try_from(part.len()).unwrap_or(u16::MAX).to_le_bytes());
    }
    out.extend(name.as_bytes());
    out.extend(content_type.as_bytes());
}

/// Remembers the kinds of the last record.
#[derive(Debug, Default)]
pub(super) struct KindsCache(Mutex<Arc<Kinds>>);

impl KindsCache {
    pub(super) fn parse(&self, stored: &[u8], count: usize) -> Result<Arc<Kinds>> {
        let last = Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner));
        if last.len() == count && last.stored == stored {
            return Ok(last);
        }
        let kinds = Arc::new(Kinds::parse(stored, count)?);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&kinds);
        Ok(kinds)
    }
}
