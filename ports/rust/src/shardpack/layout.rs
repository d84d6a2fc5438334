//! The bytes of records, index and footer, with every offset of the format (spec/shardpack.md, sections 2, 4, 7 and 8).
//!
//! Everything here is pure: bytes in, value or error out.

use std::fmt;

use crate::hash::crc32c;
use crate::{Code, Error, Result};

use super::encoding::Encoding;

const VERSION: u8 = 1;
pub(super) const RECORD_MARKER: [u8; 4] = *b"SPR1";
pub(super) const INDEX_MARKER: [u8; 4] = *b"SPI1";
const FOOTER_MAGIC: [u8; 8] = *b"SHRDPACK";

pub(super) const BLOCK_START_SIZE: usize = 12;
pub(super) const MARKER_AT: usize = 8;
pub(super) const FIXED_HEAD_SIZE: usize = 32;
pub(super) const ROW_SIZE: usize = 24;
const CHECKSUM_SIZE: usize = 4;
const SMALLEST_RECORD: u64 = 36;
pub(super) const INDEX_HEAD_SIZE: usize = 32;
pub(super) const FOOTER_SIZE: usize = 64;
const FOOTER_CHECKSUM_AT: usize = 52;
const SMALLEST_FILE: u64 = 104;
/// What each record adds to the index: an offset, a hash and a number.
pub(super) const PER_RECORD: u64 = 20;

/// The CRC-32C of any bytes that are followed by their own CRC-32C.
const CHECKED: u32 = 0x4867_4BC7;

// The limits of section 10 that a caller cannot change.
pub(super) const LONGEST_KEY: usize = 65_536;
pub(super) const LONGEST_NAME: usize = 65_535;
pub(super) const LONGEST_CONTENT_TYPE: usize = 255;
pub(super) const MOST_ENTRIES: usize = 1 << 20;
pub(super) const LARGEST_METADATA: usize = 16 << 20;
pub(super) const LARGEST_HEAD: usize = 64 << 20;
pub(super) const MOST_RECORDS: u64 = u32::MAX as u64;

/// Reads little-endian fields one after the other.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn bytes(&mut self, size: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        Some(first)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

/// How the metadata of a record is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataEncoding {
    /// There is none.
    None = 0,
    /// A JSON object.
    Json = 1,
    /// A map of MessagePack.
    MessagePack = 2,
}

impl MetadataEncoding {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::None, Self::Json, Self::MessagePack].into_iter().find(|one| *one as u8 == byte)
    }
}

impl fmt::Display for MetadataEncoding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::None => "none",
            Self::Json => "json",
            Self::MessagePack => "messagepack",
        })
    }
}

pub(super) fn is_alignment(alignment: u8) -> bool {
    matches!(alignment, 1 | 8 | 64)
}

/// Rounds up to a multiple of an alignment.
pub(super) fn align_up(position: u64, alignment: u8) -> Option<u64> {
    position.checked_next_multiple_of(u64::from(alignment))
}

// --- records (sections 2 and 4)

/// How a record or the index starts: its size and its marker.
pub(super) fn block_start(start: &[u8]) -> Option<(u64, [u8; 4])> {
    let mut fields = Fields(start);
    Some((fields.u64()?, fields.take()?))
}

/// The part of a record's head that has a fixed size.
#[derive(Clone, Copy, Debug)]
pub(super) struct FixedHead {
    pub record_size: u64,
    pub metadata_encoding: MetadataEncoding,
    pub alignment: u8,
    pub entry_count: u32,
    pub kinds_size: u32,
    pub key_size: u32,
    pub metadata_size: u32,
}

impl FixedHead {
    /// Reads the head of a record that takes `size` bytes of the file, and checks P-REC-1 to P-REC-7.
    pub(super) fn parse(bytes: &[u8], size: u64) -> Result<Self> {
        let too_small = || {
            Error::new(Code::BadOffset, "P-REC-1", "a record is smaller than its head")
                .with_expected(format_args!("at least {SMALLEST_RECORD} bytes"))
                .with_found(size)
        };
        if size < SMALLEST_RECORD {
            return Err(too_small());
        }
        Self::unpack(bytes, size).ok_or_else(too_small)?
    }

    fn unpack(bytes: &[u8], size: u64) -> Option<Result<Self>> {
        let mut fields = Fields(bytes);
        let record_size = fields.u64()?;
        let marker: [u8; 4] = fields.take()?;
        let [version, encoding, alignment, flags] = fields.take()?;
        let counts = [fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?];
        if marker != RECORD_MARKER {
            return Some(Err(Error::new(Code::BadMagic, "P-REC-2", "no record starts here")
                .with_expected("SPR1")
                .with_found(marker.escape_ascii())));
        }
        if version != VERSION {
            return Some(Err(unknown_version("P-REC-3", version)));
        }
        let known = MetadataEncoding::from_byte(encoding);
        let Some(metadata_encoding) = known.filter(|_| is_alignment(alignment) && flags == 0) else {
            let problem = "metadata encoding, alignment or flags of a record are not allowed";
            return Some(Err(Error::new(Code::BadHeader, "P-REC-4", problem)
                .with_expected("0 to 2; 1, 8 or 64; 0")
                .with_found(format_args!("{encoding}; {alignment}; {flags}"))));
        };
        let [entry_count, kinds_size, key_size, metadata_size] = counts;
        let head = Self { record_size, metadata_encoding, alignment, entry_count, kinds_size, key_size, metadata_size };
        Some(head.check(size).map(|()| head))
    }

    fn check(&self, size: u64) -> Result<()> {
        if self.key_size == 0 {
            return Err(Error::new(Code::BadName, "P-REC-5", "a record has no key"));
        }
        let head_size = self.head_size();
        for (problem, value, most, rule) in [
            ("the key of a record is too long", u64::from(self.key_size), LONGEST_KEY, "P-REC-5"),
            ("a record has too many entries", u64::from(self.entry_count), MOST_ENTRIES, "P-REC-6"),
            ("the metadata of a record is too large", u64::from(self.metadata_size), LARGEST_METADATA, "P-REC-6"),
            ("the head of a record is too large", head_size, LARGEST_HEAD, "P-REC-6"),
        ] {
            if value > most as u64 {
                let error = Error::new(Code::LimitExceeded, rule, problem);
                return Err(error.with_expected(format_args!("at most {most}")).with_found(value));
            }
        }
        if self.record_size != size {
            let problem = "the size of a record does not match its place in the shard";
            let error = Error::new(Code::SizeMismatch, "P-REC-7", problem);
            return Err(error.with_expected(size).with_found(self.record_size));
        }
        if head_size > size {
            let error = Error::new(Code::BadOffset, "P-REC-7", "the head of a record is larger than the record");
            return Err(error.with_expected(format_args!("at most {size}")).with_found(head_size));
        }
        Ok(())
    }

    /// Bytes of the whole head. No sum of 32-bit sizes wraps.
    pub(super) fn head_size(&self) -> u64 {
        u64::from(self.entry_count)
            .saturating_mul(ROW_SIZE as u64)
            .saturating_add(u64::from(self.kinds_size))
            .saturating_add(u64::from(self.key_size))
            .saturating_add(u64::from(self.metadata_size))
            .saturating_add(SMALLEST_RECORD)
    }

    pub(super) fn append_to(&self, out: &mut Vec<u8>) {
        out.extend(self.record_size.to_le_bytes());
        out.extend(RECORD_MARKER);
        out.extend([VERSION, self.metadata_encoding as u8, self.alignment, 0]);
        for size in [self.entry_count, self.kinds_size, self.key_size, self.metadata_size] {
            out.extend(size.to_le_bytes());
        }
    }
}

fn unknown_version(rule: &'static str, found: u8) -> Error {
    Error::new(Code::UnsupportedVersion, rule, "unknown version of the format").with_expected(VERSION).with_found(found)
}

/// The parts of a whole head, after its checksum was checked (P-REC-8).
#[derive(Default)]
pub(super) struct HeadParts<'a> {
    pub rows: &'a [u8],
    pub kinds: &'a [u8],
    pub key: &'a [u8],
    pub metadata: &'a [u8],
}

impl<'a> HeadParts<'a> {
    /// Splits the bytes of a whole head.
    pub(super) fn parse(head: &'a [u8], fixed: &FixedHead) -> Result<Self> {
        if crc32c(head) != CHECKED {
            return Err(damaged_head(head));
        }
        Self::split(head, fixed).ok_or_else(|| damaged_head(head))
    }

    /// Splits a head that was checked before.
    pub(super) fn split(head: &'a [u8], fixed: &FixedHead) -> Option<Self> {
        let mut fields = Fields(head);
        fields.bytes(FIXED_HEAD_SIZE)?;
        Some(Self {
            rows: fields.bytes((fixed.entry_count as usize).checked_mul(ROW_SIZE)?)?,
            kinds: fields.bytes(fixed.kinds_size as usize)?,
            key: fields.bytes(fixed.key_size as usize)?,
            metadata: fields.bytes(fixed.metadata_size as usize)?,
        })
    }
}

fn damaged_head(head: &[u8]) -> Error {
    let (covered, stored) = head.split_last_chunk::<CHECKSUM_SIZE>().unwrap_or((head, &[0; 4]));
    wrong_checksum("P-REC-8", "the head of a record is damaged", u32::from_le_bytes(*stored), crc32c(covered))
}

pub(super) fn wrong_checksum(rule: &'static str, problem: &'static str, stated: u32, found: u32) -> Error {
    Error::new(Code::ChecksumMismatch, rule, problem)
        .with_expected(format_args!("{stated:08x}"))
        .with_found(format_args!("{found:08x}"))
}

/// Checks P-REC-5 but for the size.
pub(super) fn check_key(key: &[u8]) -> Result<&str> {
    std::str::from_utf8(key).ok().filter(|text| !text.contains('\0')).ok_or_else(|| {
        Error::new(Code::BadName, "P-REC-5", "the key of a record cannot be read")
            .with_expected("UTF-8 without U+0000")
            .with_found(format_args!("{:.80}", key.escape_ascii().to_string()))
    })
}

/// What the head says about one entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub stored_size: u64,
    pub original_size: u64,
    pub crc32c: u32,
    pub encoding: Encoding,
}

impl Row {
    fn unpack(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        Some(Self {
            stored_size: fields.u64()?,
            original_size: fields.u64()?,
            crc32c: fields.u32()?,
            encoding: Encoding::from_byte(fields.u8()?),
        })
    }

    /// All rows of a record.
    pub(super) fn unpack_all(bytes: &[u8]) -> Vec<Self> {
        bytes.chunks_exact(ROW_SIZE).filter_map(Self::unpack).collect()
    }

    pub(super) fn append_to(&self, out: &mut Vec<u8>) {
        out.extend(self.stored_size.to_le_bytes());
        out.extend(self.original_size.to_le_bytes());
        out.extend(self.crc32c.to_le_bytes());
        out.extend([self.encoding.byte(), 0, 0, 0]);
    }
}

// --- index and footer (sections 7 and 8)

/// The last 64 bytes of a shard, without version and magic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footer {
    /// Where the index starts and the records end.
    pub index_offset: u64,
    /// The number of records.
    pub record_count: u64,
    /// Bytes of the metadata of the shard.
    pub metadata_size: u64,
    /// Bytes of the file.
    pub total_size: u64,
    /// CRC-32C of the offsets of the records.
    pub offsets_crc32c: u32,
    /// CRC-32C of the key hashes and the record numbers.
    pub lookup_crc32c: u32,
    /// CRC-32C of the metadata of the shard.
    pub metadata_crc32c: u32,
}

impl Footer {
    /// Reads the footer at the end of `tail`, the last bytes of a file of this size, and checks P-FTR.
    /// `start` is how the file starts, if that is known.
    pub(super) fn parse(tail: &[u8], file_size: u64, start: &[u8]) -> Result<Self> {
        let bytes = tail.last_chunk::<FOOTER_SIZE>().filter(|_| file_size >= SMALLEST_FILE);
        let Some((covered, end)) = bytes.and_then(|bytes| bytes.split_at_checked(FOOTER_CHECKSUM_AT)) else {
            return Err(Error::new(Code::Truncated, "P-FTR-1", "too short for a shard")
                .with_expected(format_args!("at least {SMALLEST_FILE} bytes"))
                .with_found(file_size));
        };
        let mut end = Fields(end);
        let (stored, magic) = (end.u32().unwrap_or_default(), end.take::<8>().unwrap_or_default());
        if magic != FOOTER_MAGIC {
            return Err(missing_magic(magic, start));
        }
        let found = crc32c(covered);
        if stored != found {
            return Err(wrong_checksum("P-FTR-3", "the footer is damaged", stored, found));
        }
        let (footer, version) = Self::unpack(covered).unwrap_or_default();
        if version != VERSION {
            return Err(unknown_version("P-FTR-4", version));
        }
        if footer.total_size != file_size {
            let code = if file_size < footer.total_size { Code::Truncated } else { Code::TrailingData };
            let problem = "the file does not have the size that its footer states";
            return Err(Error::new(code, "P-FTR-5", problem).with_expected(footer.total_size).with_found(file_size));
        }
        if footer.expected_size() != Some(footer.total_size) {
            let problem = "the parts of the index do not fill the space between records and footer";
            return Err(Error::new(Code::BadOffset, "P-FTR-6", problem));
        }
        Ok(footer)
    }

    /// The footer in a row of a set file, whose file may be elsewhere.
    pub(super) fn parse_alone(bytes: &[u8]) -> Result<Self> {
        let stated = Self::unpack(bytes).map_or(0, |(footer, _)| footer.total_size);
        Self::parse(bytes, stated, &[])
    }

    fn unpack(bytes: &[u8]) -> Option<(Self, u8)> {
        let mut fields = Fields(bytes);
        let footer = Self {
            index_offset: fields.u64()?,
            record_count: fields.u64()?,
            metadata_size: fields.u64()?,
            total_size: fields.u64()?,
            offsets_crc32c: fields.u32()?,
            lookup_crc32c: fields.u32()?,
            metadata_crc32c: fields.u32()?,
        };
        Some((footer, fields.u8()?))
    }

    /// The size of a file with these parts (P-FTR-6).
    pub(super) fn expected_size(&self) -> Option<u64> {
        self.record_count
            .checked_mul(PER_RECORD)?
            .checked_add(SMALLEST_FILE)?
            .checked_add(self.index_offset)?
            .checked_add(self.metadata_size)
    }

    /// The 64 bytes as they are in the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FOOTER_SIZE);
        for value in [self.index_offset, self.record_count, self.metadata_size, self.total_size] {
            out.extend(value.to_le_bytes());
        }
        for value in [self.offsets_crc32c, self.lookup_crc32c, self.metadata_crc32c] {
            out.extend(value.to_le_bytes());
        }
        out.extend([VERSION, 0, 0, 0, 0, 0, 0, 0]);
        out.extend(crc32c(&out).to_le_bytes());
        out.extend(FOOTER_MAGIC);
        out
    }

    /// Bytes from the start of the index to the end of the file.
    pub(super) fn index_size(&self) -> u64 {
        self.total_size.saturating_sub(self.index_offset)
    }

    /// How the index of a shard with this footer starts.
    pub(super) fn index_head(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(INDEX_HEAD_SIZE);
        out.extend(self.index_size().to_le_bytes());
        out.extend(INDEX_MARKER);
        out.extend([VERSION, 0, 0, 0]);
        out.extend(self.record_count.to_le_bytes());
        out.extend(self.metadata_size.to_le_bytes());
        out
    }
}

fn missing_magic(found: [u8; 8], start: &[u8]) -> Error {
    let is_shard = block_start(start).is_some_and(|(_, marker)| [RECORD_MARKER, INDEX_MARKER].contains(&marker));
    let (code, problem) = if is_shard {
        (Code::Truncated, "the shard has lost its end")
    } else {
        (Code::BadMagic, "not a ShardPack file")
    };
    Error::new(code, "P-FTR-2", problem).with_expected("SHRDPACK at its end").with_found(found.escape_ascii())
}
