//! The header and the rows of the index: the only place that knows their offsets.

use crate::registry::{ContentType, Role};

pub(crate) const MAGIC: &[u8; 4] = b"SHRD";
pub(crate) const VERSION: u8 = 2;
pub(crate) const HEADER_SIZE: usize = 64;
pub(crate) const INDEX_ENTRY_SIZE: usize = 48;
/// What a reserved head has for each name.
pub(crate) const ROOM_FOR_NAME: u64 = 64;

pub(crate) mod flags {
    //! Flags of the header.
    pub(crate) const LITTLE_ENDIAN: u16 = 0x0002;
    pub(crate) const BIG_ENDIAN: u16 = 0x0004;
    pub(crate) const SCHEMA: u16 = 0x0010;
    pub(crate) const CHECKSUMS: u16 = 0x0020;
    pub(crate) const RESERVED_HEAD: u16 = 0x0040;
    pub(crate) const CONTENT_TYPES: u16 = 0x0080;
    pub(crate) const KNOWN: u16 = 0x00F7;
}

pub(crate) mod entry_flags {
    //! Flags of an entry.
    pub(crate) const COMPRESSED: u16 = 0x0001;
    pub(crate) const ZSTD: u16 = 0x0002;
    pub(crate) const LZ4: u16 = 0x0004;
    pub(crate) const FILTERED: u16 = 0x0010;
    pub(crate) const KNOWN: u16 = 0x0017;
}

/// How the bytes of an entry are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Codec {
    /// As they are.
    #[default]
    None,
    /// Frames of zstd.
    Zstd,
    /// One raw block of lz4.
    Lz4,
}

impl Codec {
    /// The name in the specification.
    pub const fn as_str(self) -> &'static str {
        match self {
            Codec::None => "none",
            Codec::Zstd => "zstd",
            Codec::Lz4 => "lz4",
        }
    }

    /// The codec of a name.
    pub fn parse(name: &str) -> Option<Codec> {
        [Codec::None, Codec::Zstd, Codec::Lz4].into_iter().find(|codec| codec.as_str() == name)
    }

    pub(crate) const fn number(self) -> u8 {
        match self {
            Codec::None => 0,
            Codec::Zstd => 1,
            Codec::Lz4 => 2,
        }
    }

    pub(crate) const fn flags(self) -> u16 {
        match self {
            Codec::None => 0,
            Codec::Zstd => entry_flags::COMPRESSED | entry_flags::ZSTD,
            Codec::Lz4 => entry_flags::COMPRESSED | entry_flags::LZ4,
        }
    }
}

/// `N` bytes at an offset. Callers give constant offsets inside the array.
#[inline(always)]
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    match bytes.get(at..).and_then(|rest| rest.first_chunk::<N>()) {
        Some(field) => *field,
        None => [0; N],
    }
}

#[inline(always)]
fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    if let Some(place) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<N>()) {
        *place = value;
    }
}

/// The first 64 bytes of a file, without the magic and the reserved bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The version of the format.
    pub version: u8,
    /// What the file is for.
    pub role: Role,
    /// The flags.
    pub flags: u16,
    /// Blocks start on multiples of it; 0 for no alignment.
    pub alignment: u8,
    /// The number of the codec of entries that name none.
    pub compression_default: u8,
    /// The size of a row of the index.
    pub index_entry_size: u16,
    /// The number of entries.
    pub entry_count: u32,
    /// Where the names start.
    pub string_table_offset: u64,
    /// Where the blocks start.
    pub data_section_offset: u64,
    /// Where the schema section starts; 0 for none.
    pub schema_offset: u64,
    /// The size of the file.
    pub total_file_size: u64,
}

impl Header {
    pub(crate) fn unpack(b: &[u8; HEADER_SIZE]) -> Header {
        Header {
            version: b[4],
            role: Role(b[5]),
            flags: u16::from_le_bytes(field(b, 6)),
            alignment: b[8],
            compression_default: b[9],
            index_entry_size: u16::from_le_bytes(field(b, 10)),
            entry_count: u32::from_le_bytes(field(b, 12)),
            string_table_offset: u64::from_le_bytes(field(b, 16)),
            data_section_offset: u64::from_le_bytes(field(b, 24)),
            schema_offset: u64::from_le_bytes(field(b, 32)),
            total_file_size: u64::from_le_bytes(field(b, 40)),
        }
    }

    pub(crate) fn pack(&self) -> [u8; HEADER_SIZE] {
        let mut b = [0; HEADER_SIZE];
        put(&mut b, 0, *MAGIC);
        b[4] = self.version;
        b[5] = self.role.0;
        put(&mut b, 6, self.flags.to_le_bytes());
        b[8] = self.alignment;
        b[9] = self.compression_default;
        put(&mut b, 10, self.index_entry_size.to_le_bytes());
        put(&mut b, 12, self.entry_count.to_le_bytes());
        put(&mut b, 16, self.string_table_offset.to_le_bytes());
        put(&mut b, 24, self.data_section_offset.to_le_bytes());
        put(&mut b, 32, self.schema_offset.to_le_bytes());
        put(&mut b, 40, self.total_file_size.to_le_bytes());
        b
    }
}

/// The bytes of a header that writers leave zero.
pub(crate) fn reserved_bytes(head: &[u8]) -> &[u8] {
    head.get(48..HEADER_SIZE).unwrap_or_default()
}

/// One row of the index, as stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexEntry {
    /// The XXH64 of the name, as stored: it may be wrong.
    pub name_hash: u64,
    /// Where the name starts in the string table.
    pub name_offset: u32,
    /// The bytes of the name.
    pub name_length: u16,
    /// The flags.
    pub flags: u16,
    /// Where the block starts in the file.
    pub data_offset: u64,
    /// The stored bytes.
    pub disk_size: u64,
    /// The bytes after decompression.
    pub orig_size: u64,
    /// The CRC-32C of the uncompressed bytes.
    pub crc32c: u32,
    /// A hint about the content.
    pub content_type: ContentType,
    /// Bit k stands for the k-th name of the schema's `tag_dictionary`.
    pub tag_bits: u16,
}

/// A row of the index in its stored form.
pub(crate) type Row = [u8; INDEX_ENTRY_SIZE];

impl IndexEntry {
    pub(crate) fn unpack(b: &Row) -> IndexEntry {
        let (name_offset, name_length) = name_place(b);
        let (data_offset, disk_size) = block_place(b);
        IndexEntry {
            name_hash: u64::from_le_bytes(field(b, 0)),
            name_offset,
            name_length,
            flags: u16::from_le_bytes(field(b, 14)),
            data_offset,
            disk_size,
            orig_size: u64::from_le_bytes(field(b, 32)),
            crc32c: u32::from_le_bytes(field(b, 40)),
            content_type: ContentType(u16::from_le_bytes(field(b, 44))),
            tag_bits: u16::from_le_bytes(field(b, 46)),
        }
    }

    pub(crate) fn pack(&self) -> Row {
        let mut b = [0; INDEX_ENTRY_SIZE];
        put(&mut b, 0, self.name_hash.to_le_bytes());
        put(&mut b, 8, self.name_offset.to_le_bytes());
        put(&mut b, 12, self.name_length.to_le_bytes());
        put(&mut b, 14, self.flags.to_le_bytes());
        put(&mut b, 16, self.data_offset.to_le_bytes());
        put(&mut b, 24, self.disk_size.to_le_bytes());
        put(&mut b, 32, self.orig_size.to_le_bytes());
        put(&mut b, 40, self.crc32c.to_le_bytes());
        put(&mut b, 44, self.content_type.0.to_le_bytes());
        put(&mut b, 46, self.tag_bits.to_le_bytes());
        b
    }
}

/// The place of the name of a row in the string table.
#[inline(always)]
pub(crate) fn name_place(b: &Row) -> (u32, u16) {
    (u32::from_le_bytes(field(b, 8)), u16::from_le_bytes(field(b, 12)))
}

/// The place of the block of a row in the file.
#[inline(always)]
pub(crate) fn block_place(b: &Row) -> (u64, u64) {
    (u64::from_le_bytes(field(b, 16)), u64::from_le_bytes(field(b, 24)))
}

/// Rounds an offset up to a multiple of the alignment; 0 does not round.
pub fn align_up(offset: u64, alignment: u8) -> u64 {
    match u64::from(alignment) {
        0 => offset,
        alignment => offset.checked_next_multiple_of(alignment).unwrap_or(u64::MAX),
    }
}

pub(crate) fn is_alignment(alignment: u8) -> bool {
    matches!(alignment, 0 | 16 | 32 | 64)
}
