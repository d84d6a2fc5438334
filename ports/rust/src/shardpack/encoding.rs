//! How the bytes of an entry are stored (spec/shardpack.md, section 5).

use std::borrow::Cow;
use std::fmt;

use flate2::{Crc, Decompress, FlushDecompress, Status};

use crate::registry::PACK_CONTENT_TYPES;
use crate::shard::{codec, lz4, reserve};
use crate::{Code, Error, Limits, Result};

use super::layout::{Fields, Row};

const GZIP_EXPANSION: u64 = 1032;
const ZSTD_EXPANSION: u64 = 32_768;
/// Up to this size, entries are stored raw.
const LARGEST_RAW: usize = 256;

/// How the bytes of an entry are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// As they are.
    #[default]
    None,
    /// One gzip member. It is read, but not written.
    Gzip,
    /// One lz4 block.
    Lz4,
    /// Frames of zstd.
    Zstd,
    /// An encoding that the format does not have.
    Unknown(u8),
}

impl Encoding {
    pub(super) fn from_byte(byte: u8) -> Self {
        match byte {
            0 => Self::None,
            1 => Self::Gzip,
            2 => Self::Lz4,
            3 => Self::Zstd,
            _ => Self::Unknown(byte),
        }
    }

    pub(super) fn byte(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Gzip => 1,
            Self::Lz4 => 2,
            Self::Zstd => 3,
            Self::Unknown(byte) => byte,
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => out.write_str("none"),
            Self::Gzip => out.write_str("gzip"),
            Self::Lz4 => out.write_str("lz4"),
            Self::Zstd => out.write_str("zstd"),
            Self::Unknown(byte) => write!(out, "unknown ({byte})"),
        }
    }
}

impl Row {
    /// Makes all checks that need no data (P-ENT-2, P-ENC-1, P-ENC-3, P-ENC-4).
    pub(super) fn check(&self, limits: &Limits) -> Result<()> {
        let (expansion, slack) = match self.encoding {
            Encoding::None if self.stored_size == self.original_size => return Ok(()),
            Encoding::None => {
                let problem = "an entry that is not compressed has two different sizes";
                let error = Error::new(Code::SizeMismatch, "P-ENT-2", problem);
                return Err(error.with_expected(self.stored_size).with_found(self.original_size));
            }
            Encoding::Gzip => (GZIP_EXPANSION, 0),
            Encoding::Lz4 => (lz4::EXPANSION, lz4::SLACK),
            Encoding::Zstd => (ZSTD_EXPANSION, 0),
            Encoding::Unknown(byte) => {
                return Err(Error::new(Code::UnknownCodec, "P-ENC-1", "unknown encoding")
                    .with_expected("0 (none), 1 (gzip), 2 (lz4) or 3 (zstd)")
                    .with_found(byte));
            }
        };
        if self.original_size > limits.max_decompressed_bytes {
            return Err(Error::new(Code::LimitExceeded, "P-ENC-3", "the entry is too large after decompression")
                .with_expected(format_args!("at most {}", limits.max_decompressed_bytes))
                .with_found(self.original_size));
        }
        if self.stored_size == 0 {
            return Err(bad("a compressed entry has no bytes"));
        }
        let most = self.stored_size.saturating_mul(expansion).saturating_add(slack);
        if self.original_size > most {
            return Err(Error::new(Code::SizeMismatch, "P-ENC-4", "the stored bytes cannot expand to this size")
                .with_expected(format_args!("at most {most} for {} bytes of {}", self.stored_size, self.encoding))
                .with_found(self.original_size));
        }
        Ok(())
    }

    /// Gives the content of a compressed entry whose row was checked (P-ENC-3 to P-ENC-5).
    pub(super) fn decode(&self, stored: &[u8], limits: &Limits) -> Result<Vec<u8>> {
        let size = usize::try_from(self.original_size)
            .map_err(|_| Error::new(Code::LimitExceeded, "P-ENC-3", "more bytes than this machine can hold"))?;
        if self.encoding == Encoding::Zstd {
            return codec::decode_zstd_to_vec(stored, size, limits.max_window_bytes).map_err(as_pack_error);
        }
        let mut content = reserve(size)?;
        content.resize(size, 0);
        if self.encoding == Encoding::Lz4 {
            lz4::decode(stored, &mut content).map_err(as_pack_error)?;
        } else {
            decode_gzip(stored, &mut content)?;
        }
        Ok(content)
    }
}

/// Gives an error of the container's codecs the rule of this format.
fn as_pack_error(error: Error) -> Error {
    let rule = match error.rule() {
        "" => return error, // not about the file
        "S-CMP-2" | "S-CMP-7" => "P-ENC-3",
        "S-CMP-3" | "S-CMP-8" => "P-ENC-4",
        _ => "P-ENC-5",
    };
    error.with_rule(rule)
}

/// Gives the form in which an entry is stored (P-ENC-6).
pub(super) fn encode(data: &[u8], encoding: Encoding, level: i32) -> Result<(Cow<'_, [u8]>, Encoding)> {
    let is_small = data.len() <= LARGEST_RAW;
    let is_large = data.len() as u64 > Limits::default().max_decompressed_bytes;
    let stored = match encoding {
        Encoding::Lz4 if !is_small && !is_large => Some(lz4::compress(data)?),
        Encoding::Zstd if !is_small && !is_large => {
            let mut stored = Vec::new();
            codec::append_zstd(&mut stored, data, level, false)?;
            Some(stored)
        }
        _ => None,
    };
    let bound = (data.len() as u64).saturating_mul(9) / 10;
    Ok(match stored {
        Some(stored) if (stored.len() as u64) < bound => (Cow::Owned(stored), encoding),
        _ => (Cow::Borrowed(data), Encoding::None),
    })
}

/// The content type for the ending of a name; a name without a dot is an ending itself.
pub fn content_type_of(name: &str) -> &'static str {
    let ending = name.rsplit('.').next().unwrap_or(name);
    PACK_CONTENT_TYPES
        .iter()
        .find(|(_, endings, _)| endings.iter().any(|one| one.eq_ignore_ascii_case(ending)))
        .map_or("application/octet-stream", |(content_type, ..)| content_type)
}

/// Whether compressing contents of this type is worth a try.
pub(super) fn is_compressible(content_type: &str) -> bool {
    match PACK_CONTENT_TYPES.iter().find(|(known, ..)| *known == content_type) {
        Some((.., is_compressed)) => !is_compressed,
        None => !["image/", "video/", "audio/"].iter().any(|family| content_type.starts_with(family)),
    }
}

// --- gzip (RFC 1952)

const GZIP_MAGIC: [u8; 3] = [0x1F, 0x8B, 8];
const GZIP_HEAD_CHECK: u8 = 0x02;
const GZIP_EXTRA: u8 = 0x04;
const GZIP_NAME: u8 = 0x08;
const GZIP_COMMENT: u8 = 0x10;
const GZIP_RESERVED: u8 = 0xE0;

fn bad(problem: &'static str) -> Error {
    Error::new(Code::BadCompression, "P-ENC-5", problem)
}

fn wrong_size(problem: &'static str) -> Error {
    Error::new(Code::SizeMismatch, "P-ENC-4", problem)
}

/// Decodes one member into memory of exactly the size of the entry.
fn decode_gzip(stored: &[u8], content: &mut [u8]) -> Result<()> {
    let body = gzip_body(stored)?;
    let mut inflater = Decompress::new(false);
    let (mut taken, mut count) = (0, 0);
    loop {
        // The end of the stream may follow the last byte of the content.
        let mut more = [0];
        let rest = body.get(taken..).unwrap_or_default();
        let out = match content.get_mut(count..) {
            Some(out) if !out.is_empty() => out,
            _ => &mut more,
        };
        let status = inflater
            .decompress(rest, out, FlushDecompress::None)
            .map_err(|error| bad("gzip cannot decode it").with_source(error))?;
        let before = (taken, count);
        taken = usize::try_from(inflater.total_in()).unwrap_or(usize::MAX);
        count = usize::try_from(inflater.total_out()).unwrap_or(usize::MAX);
        if count > content.len() {
            return Err(wrong_size("the gzip member holds more than the entry").with_expected(content.len()));
        }
        if status == Status::StreamEnd {
            break;
        }
        if (taken, count) == before {
            return Err(bad("the gzip member is incomplete"));
        }
    }
    let end = body.get(taken..).unwrap_or_default();
    let (8, Some(decoded)) = (end.len(), content.get(..count)) else {
        return Err(bad("not exactly one complete gzip member"));
    };
    let mut crc = Crc::new();
    crc.update(decoded);
    let mut end = Fields(end);
    if (end.u32(), end.u32()) != (Some(crc.sum()), Some(crc.amount())) {
        return Err(bad("the gzip member does not fit its checksum or its size"));
    }
    if count != content.len() {
        return Err(wrong_size("the gzip member holds less than the entry")
            .with_expected(content.len())
            .with_found(count));
    }
    Ok(())
}

/// Checks the head of a member and gives what follows.
fn gzip_body(stored: &[u8]) -> Result<&[u8]> {
    let mut fields = Fields(stored);
    if fields.take() != Some(GZIP_MAGIC) {
        return Err(bad("no gzip member starts here"));
    }
    let flags = fields.take::<1>().map_or(0, |[flags]| flags);
    if flags & GZIP_RESERVED != 0 {
        return Err(bad("reserved bits of a gzip member are set"));
    }
    let cut = || bad("the head of a gzip member is incomplete");
    fields.take::<6>().ok_or_else(cut)?; // time, level and system
    if flags & GZIP_EXTRA != 0 {
        let size = fields.u16().ok_or_else(cut)?;
        fields.bytes(usize::from(size)).ok_or_else(cut)?;
    }
    for flag in [GZIP_NAME, GZIP_COMMENT] {
        if flags & flag != 0 {
            let end = fields.0.iter().position(|byte| *byte == 0).ok_or_else(cut)?;
            fields.bytes(end.saturating_add(1)).ok_or_else(cut)?;
        }
    }
    if flags & GZIP_HEAD_CHECK != 0 {
        let mut crc = Crc::new();
        let covered = stored.len().saturating_sub(fields.0.len());
        crc.update(stored.get(..covered).unwrap_or_default());
        let stated = fields.u16().ok_or_else(cut)?;
        if u32::from(stated) != crc.sum() & 0xFFFF {
            return Err(bad("the head of a gzip member does not fit its checksum"));
        }
    }
    Ok(fields.0)
}
