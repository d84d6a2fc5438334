//! What a checking tool reports.

use std::collections::BTreeSet;

use super::EPISODE_ENTRY;
use super::content::block;
use super::layout::{entry_flags, flags, reserved_bytes};
use super::parallel;
use super::reader::ShardReader;
use crate::hash::xxh64;
use crate::registry::{Code, Role, Warning};
use crate::{Error, Result};

const LARGEST_ALIGNMENT: u64 = 64;
const GAP_PIECE: u64 = 1 << 16;

impl ShardReader {
    /// Reads and checks every entry, the schema section, and what the role promises.
    ///
    /// The work is bounded by the file: blocks do not overlap, and a stored byte becomes at most 32 768 bytes. The limit of
    /// decompressed bytes bounds memory.
    pub fn verify(&self) -> Result<()> {
        parallel::for_each(self.len(), |row| self.scan(row, |_| {}))?;
        self.schema()?;
        self.verify_profile().map_err(|e| e.with_path(self.path()))
    }

    /// Checks S-ROL-2 and S-ROL-3.
    fn verify_profile(&self) -> Result<()> {
        let broken = |rule, problem| move |e: Error| Error::new(Code::BadProfile, rule, problem).with_source(e);
        match self.role() {
            Role::MANIFEST => {
                let problem = "not a manifest, as its role promises";
                self.manifest().map_err(broken("S-ROL-2", problem))?;
            }
            Role::WSHARD => {
                let problem = "not an episode, as its role promises";
                self.read_json(EPISODE_ENTRY, "S-SCH-2").map_err(broken("S-ROL-3", problem))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// What a checking tool reports about a file that can be read, sorted by code. It reads the bytes between blocks.
    pub fn warnings(&self) -> Result<Vec<Warning>> {
        let mut found = BTreeSet::new();
        let mut report = |warning, is_found| {
            if is_found {
                found.insert(warning);
            }
        };
        let alignment = u64::from(self.header.alignment.max(1));
        let mut before = 0;
        for (row, entry) in self.index.entries().enumerate() {
            let hash = xxh64(self.index.name_bytes(row));
            let is_aligned = entry.data_offset.is_multiple_of(alignment);
            let is_unknown = entry.flags & !entry_flags::KNOWN != 0;
            report(Warning::NameHashMismatch, hash != entry.name_hash);
            report(Warning::Misaligned, entry.disk_size > 0 && !is_aligned);
            let is_unchecked = entry.orig_size > 0 && !self.has_checksum(&entry);
            report(Warning::NoChecksum, is_unchecked);
            report(Warning::NotAscending, entry.data_offset < before);
            report(Warning::NonzeroReserved, is_unknown);
            before = entry.data_offset;
        }
        let reserved = reserved_bytes(self.index.header_bytes());
        let is_unknown = self.header.flags & !flags::KNOWN != 0;
        report(Warning::NonzeroReserved, is_unknown || !is_zero(reserved));
        self.check_gaps(&mut report).map_err(|e| e.with_path(self.path()))?;
        let mut found: Vec<Warning> = found.into_iter().collect();
        found.sort_by_key(|warning| warning.as_str());
        Ok(found)
    }

    /// Looks at the bytes of the data section that belong to no block.
    fn check_gaps(&self, report: &mut dyn FnMut(Warning, bool)) -> Result<()> {
        let blocks = self.index.entries().map(|entry| block(&entry));
        let mut blocks: Vec<_> = blocks.filter(|block| !block.is_empty()).collect();
        blocks.sort_unstable_by_key(|block| block.start);
        let end = match self.header.schema_offset {
            0 => self.header.total_file_size,
            schema => schema.min(self.header.total_file_size),
        };
        blocks.push(end..end);
        let mut at = self.header.data_section_offset;
        for block in blocks {
            let gap = block.start.saturating_sub(at);
            report(Warning::UnreferencedBytes, gap >= LARGEST_ALIGNMENT);
            while at < block.start {
                let size = block.start.saturating_sub(at).min(GAP_PIECE);
                report(Warning::NonzeroPadding, !is_zero(&self.read_bytes(at, size)?));
                at = at.saturating_add(size);
            }
            at = at.max(block.end);
        }
        Ok(())
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}
