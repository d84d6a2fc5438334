//! The header and the index of a file: checked, and kept as bytes.

use std::cmp::Ordering;
use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering as Memory};

use super::layout::{
    HEADER_SIZE, Header, INDEX_ENTRY_SIZE, IndexEntry, MAGIC, Row, VERSION, block_place, flags, is_alignment,
    name_place,
};
use super::parallel;
use crate::error::quoted;
use crate::registry::{Code, Limits};
use crate::{Error, Result};

/// Rows that are checked together.
const ROWS_IN_RUN: usize = 1 << 14;

/// Checks S-HDR-1 to S-HDR-12; `head` has the first bytes of the file.
pub(crate) fn parse_header(head: &[u8], file_size: u64, limits: &Limits) -> Result<Header> {
    let known = head.len().min(MAGIC.len());
    if head.get(..known) != MAGIC.get(..known) {
        return Err(Error::new(Code::BadMagic, "S-HDR-2", "not a Shard file")
            .with_found(format_args!("{:02x?}", head.get(..known).unwrap_or_default())));
    }
    let Some(bytes) = head.first_chunk::<HEADER_SIZE>() else {
        return Err(Error::new(Code::Truncated, "S-HDR-1", "the file ends inside its header")
            .with_expected(format_args!("at least {HEADER_SIZE} bytes"))
            .with_found(file_size));
    };
    let h = Header::unpack(bytes);
    let index_size = u64::from(h.entry_count).saturating_mul(INDEX_ENTRY_SIZE as u64);
    let index_end = index_size.saturating_add(HEADER_SIZE as u64);
    let fail = |code, rule, problem| Err(Error::new(code, rule, problem));
    let differ = |code, rule, problem: &'static str, expected: u64, found: u64| {
        Err(Error::new(code, rule, problem).with_expected(expected).with_found(found))
    };
    if h.version != VERSION {
        let problem = "unknown version of the format";
        return differ(Code::UnsupportedVersion, "S-HDR-3", problem, VERSION.into(), h.version.into());
    }
    if usize::from(h.index_entry_size) != INDEX_ENTRY_SIZE {
        let problem = "wrong size of an index entry";
        return differ(Code::BadHeader, "S-HDR-4", problem, INDEX_ENTRY_SIZE as u64, h.index_entry_size.into());
    }
    if !is_alignment(h.alignment) {
        return Err(Error::new(Code::BadHeader, "S-HDR-5", "the alignment is not allowed")
            .with_expected("0, 16, 32 or 64")
            .with_found(h.alignment));
    }
    if h.flags & flags::BIG_ENDIAN != 0 {
        return fail(Code::BadHeader, "S-HDR-6", "the header claims big-endian numbers");
    }
    match h.total_file_size.cmp(&file_size) {
        Ordering::Equal => {}
        Ordering::Greater => {
            let problem = "the file is shorter than its header says";
            return differ(Code::Truncated, "S-HDR-7", problem, h.total_file_size, file_size);
        }
        Ordering::Less => {
            let problem = "the file goes on after its stated end";
            return differ(Code::TrailingData, "S-HDR-7", problem, h.total_file_size, file_size);
        }
    }
    if u64::from(h.entry_count) > limits.max_entries || index_size > limits.max_index_bytes {
        let problem = "too many entries";
        return differ(Code::LimitExceeded, "S-HDR-8", problem, limits.max_entries, h.entry_count.into());
    }
    if index_end > file_size {
        return differ(Code::BadOffset, "S-HDR-9", "the index does not fit in the file", file_size, index_end);
    }
    if h.string_table_offset != index_end {
        let problem = "the string table does not follow the index";
        return differ(Code::BadOffset, "S-HDR-10", problem, index_end, h.string_table_offset);
    }
    if !(index_end..=file_size).contains(&h.data_section_offset) {
        return Err(Error::new(Code::BadOffset, "S-HDR-11", "the data section is out of range")
            .with_expected(format_args!("{index_end} to {file_size}"))
            .with_found(h.data_section_offset));
    }
    let table = h.data_section_offset.saturating_sub(index_end);
    if table > limits.max_string_table_bytes {
        let problem = "the string table is too large";
        return differ(Code::LimitExceeded, "S-HDR-12", problem, limits.max_string_table_bytes, table);
    }
    Ok(h)
}

/// The checked index. It keeps the bytes of the head, and unpacks a row when one is asked for.
pub(crate) struct Index {
    head: Vec<u8>,
    /// Where the names start.
    table: usize,
    /// Finds rows by name; names that ascend need none.
    slots: Option<Slots>,
}

impl Index {
    /// Checks S-NAM-1 to S-NAM-4, S-NAM-9 and S-DAT-1 to S-DAT-3. The head reaches to the data section.
    pub(crate) fn parse(head: Vec<u8>, header: &Header, limits: &Limits) -> Result<Index> {
        let table = usize::try_from(header.string_table_offset).unwrap_or(usize::MAX);
        let mut index = Index { head, table, slots: None };
        let shape = index.check_rows(header, limits.max_string_table_bytes)?;
        if !shape.names_ascend {
            index.slots = Some(Slots::of(&index)?);
        }
        if !shape.blocks_ascend {
            index.check_overlaps()?;
        }
        Ok(index)
    }

    pub(crate) fn rows(&self) -> &[Row] {
        let rows = self.head.get(HEADER_SIZE..self.table);
        rows.unwrap_or_default().as_chunks().0
    }

    fn names(&self) -> &[u8] {
        self.head.get(self.table..).unwrap_or_default()
    }

    pub(crate) fn header_bytes(&self) -> &[u8] {
        &self.head
    }

    pub(crate) fn len(&self) -> usize {
        self.rows().len()
    }

    /// A row; `None` behind the last.
    pub(crate) fn entry(&self, row: usize) -> Option<IndexEntry> {
        self.rows().get(row).map(IndexEntry::unpack)
    }

    pub(crate) fn entries(&self) -> impl ExactSizeIterator<Item = IndexEntry> {
        self.rows().iter().map(IndexEntry::unpack)
    }

    /// The name of a row; empty if there is no such row.
    pub(crate) fn name(&self, row: usize) -> &str {
        // The bytes were checked.
        std::str::from_utf8(self.name_bytes(row)).unwrap_or_default()
    }

    pub(crate) fn name_bytes(&self, row: usize) -> &[u8] {
        let row = self.rows().get(row);
        row.and_then(|row| name_of(self.names(), row)).unwrap_or_default()
    }

    /// The row of a name.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        if let Some(slots) = &self.slots {
            return slots.find(self, name.as_bytes());
        }
        let names = self.names();
        let name = Some(name.as_bytes());
        let rows = self.rows();
        rows.binary_search_by(|row| name_of(names, row).cmp(&name)).ok()
    }

    /// Checks the rows one by one, in runs.
    fn check_rows(&self, header: &Header, longest: u64) -> Result<Shape> {
        let runs = self.rows().chunks(ROWS_IN_RUN);
        // A table that is ASCII has no name that is not UTF-8.
        let is_ascii = self.names().is_ascii();
        let length = AtomicU64::new(0);
        let shapes = Mutex::new(vec![Shape::default(); runs.len()]);
        parallel::for_each(runs.len(), |i| {
            let rows = self.rows().chunks(ROWS_IN_RUN).nth(i).unwrap_or_default();
            let mut shape = Shape::default();
            let count = self.check_run(rows, header, is_ascii, &mut shape)?;
            if length.fetch_add(count, Memory::Relaxed).saturating_add(count) > longest {
                return Err(Error::new(Code::LimitExceeded, "S-NAM-9", "the names are too long together")
                    .with_expected(format_args!("at most {longest} bytes")));
            }
            if let Ok(mut shapes) = shapes.lock()
                && let Some(place) = shapes.get_mut(i)
            {
                *place = shape;
            }
            Ok(())
        })?;
        let shapes = shapes.into_inner().unwrap_or_default();
        let (mut all, mut end) = (Shape::default(), 0);
        let mut last_name = None;
        for (shape, rows) in shapes.iter().zip(runs) {
            all.blocks_ascend &= shape.blocks_ascend && shape.start >= end;
            end = shape.end.max(end);
            let name = |row: Option<&Row>| row.and_then(|row| name_of(self.names(), row));
            all.names_ascend &= shape.names_ascend && last_name < name(rows.first());
            last_name = name(rows.last());
        }
        Ok(all)
    }

    /// Checks S-NAM-1 to S-NAM-3, S-DAT-1 and S-DAT-2 of some rows, and returns the length of their names.
    fn check_run(&self, rows: &[Row], header: &Header, is_ascii: bool, shape: &mut Shape) -> Result<u64> {
        let table = self.names();
        let (mut length, mut before) = (0u64, &[][..]);
        for row in rows {
            let Some(name) = name_of(table, row) else {
                return Err(Error::new(Code::BadName, "S-NAM-1", "a name is outside the string table"));
            };
            if name.is_empty() {
                return Err(Error::new(Code::BadName, "S-NAM-2", "a name is empty"));
            }
            if !is_ascii && std::str::from_utf8(name).is_err() {
                return Err(Error::new(Code::BadName, "S-NAM-3", "a name is not valid UTF-8")
                    .with_found(quoted(&String::from_utf8_lossy(name))));
            }
            length = length.saturating_add(name.len() as u64);
            shape.names_ascend &= before < name;
            before = name;
            let (offset, size) = block_place(row);
            if offset < header.data_section_offset {
                return Err(
                    Error::new(Code::BadOffset, "S-DAT-1", "a block starts before the data section").with_found(offset)
                );
            }
            match offset.checked_add(size) {
                Some(end) if end <= header.total_file_size => {
                    if size > 0 {
                        shape.blocks_ascend &= offset >= shape.end;
                        shape.start = shape.start.min(offset);
                        shape.end = end;
                    }
                }
                _ => {
                    return Err(Error::new(Code::BadOffset, "S-DAT-2", "a block ends after the end of the file")
                        .with_found(format_args!("{size} bytes at {offset}")));
                }
            }
        }
        Ok(length)
    }

    /// Checks S-DAT-3 of blocks in any order.
    fn check_overlaps(&self) -> Result<()> {
        let blocks = self.rows().iter().map(block_place).enumerate();
        let mut blocks: Vec<(u64, u64, usize)> = blocks
            .filter(|(_, (_, size))| *size > 0)
            .map(|(row, (start, size))| (start, start.saturating_add(size), row))
            .collect();
        blocks.sort_unstable();
        for pair in blocks.windows(2) {
            if let [(_, end, first), (start, _, second)] = *pair
                && start < end
            {
                return Err(Error::new(Code::Overlap, "S-DAT-3", "the blocks of two entries overlap")
                    .with_found(format_args!("{} and {}", quoted(self.name(first)), quoted(self.name(second)))));
            }
        }
        Ok(())
    }
}

#[inline]
fn name_of<'a>(table: &'a [u8], row: &Row) -> Option<&'a [u8]> {
    let (offset, length) = name_place(row);
    let start = usize::try_from(offset).ok()?;
    table.get(start..start.checked_add(usize::from(length))?)
}

/// What most files have in common, so that nothing must be sorted and no name can be there twice.
#[derive(Clone)]
struct Shape {
    names_ascend: bool,
    blocks_ascend: bool,
    /// Of the blocks.
    start: u64,
    end: u64,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { names_ascend: true, blocks_ascend: true, start: u64::MAX, end: 0 }
    }
}

/// A hash table with open addressing and at least twice as many slots as rows. The hashes have a secret seed: those that a
/// file stores may be wrong, and may all be the same.
struct Slots {
    /// The upper half of a slot is that of the hash, the lower half the number of the row plus one; 0 is free.
    slots: Vec<u64>,
    /// Makes the number of a slot from a hash.
    shift: u32,
    seed: RandomState,
}

impl Slots {
    /// Puts all rows into slots, and refuses two rows of the same name (S-NAM-4).
    fn of(index: &Index) -> Result<Slots> {
        let count = index.len();
        let size = count.saturating_mul(2).next_power_of_two().max(2);
        let mut made = Slots {
            slots: vec![0; size],
            shift: 64u32.saturating_sub(size.trailing_zeros()),
            seed: RandomState::new(),
        };
        // The slots of a large file do not fit in a cache. Rows go in by the order of the slots.
        let names = index.names();
        let mut keys: Vec<u64> = index
            .rows()
            .iter()
            .zip(1u64..)
            .map(|(row, number)| {
                let name = name_of(names, row).unwrap_or_default();
                made.seed.hash_one(name) & !u64::from(u32::MAX) | number
            })
            .collect();
        keys.sort_unstable();
        for key in keys {
            let mut at = made.place(key);
            while let Some(slot) = made.slots.get(at)
                && *slot != 0
            {
                // Names are far apart in memory: they are compared only if the hashes agree.
                let name = || index.name_bytes(row_of(key));
                if slot >> 32 == key >> 32 && index.name_bytes(row_of(*slot)) == name() {
                    return Err(Error::new(Code::DuplicateName, "S-NAM-4", "two entries have the same name")
                        .with_found(quoted(&String::from_utf8_lossy(name()))));
                }
                at = made.after(at);
            }
            if let Some(slot) = made.slots.get_mut(at) {
                *slot = key;
            }
        }
        Ok(made)
    }

    fn place(&self, hash: u64) -> usize {
        usize::try_from(hash.checked_shr(self.shift).unwrap_or_default()).unwrap_or_default()
    }

    fn after(&self, at: usize) -> usize {
        at.wrapping_add(1) & self.slots.len().wrapping_sub(1)
    }

    fn find(&self, index: &Index, name: &[u8]) -> Option<usize> {
        let hash = self.seed.hash_one(name);
        let mut at = self.place(hash);
        loop {
            let slot = *self.slots.get(at).filter(|slot| **slot != 0)?;
            if slot >> 32 == hash >> 32 && index.name_bytes(row_of(slot)) == name {
                return Some(row_of(slot));
            }
            at = self.after(at);
        }
    }
}

fn row_of(slot: u64) -> usize {
    (slot & u64::from(u32::MAX)).wrapping_sub(1) as usize
}
