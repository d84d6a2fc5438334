//! Records as they are written (spec/shardpack.md, sections 2 to 6).

use std::borrow::Cow;
use std::sync::Arc;

use crate::hash::crc32c;
use crate::json;
use crate::{Code, Error, Limits, Result};

use super::encoding::{Encoding, encode, is_compressible};
use super::kinds::{Kinds, KindsCache, append_kind};
use super::layout::{
    FixedHead, LARGEST_HEAD, LARGEST_METADATA, LONGEST_CONTENT_TYPE, LONGEST_KEY, LONGEST_NAME, MOST_ENTRIES,
    MetadataEncoding, Row, align_up, check_key,
};
use super::messagepack;
use super::record::{Metadata, Record, StoredEntry, StoredRecord, in_record};

const ZEROS: [u8; 64] = [0; 64];

/// A record that can be written to any shard of the same alignment.
pub(super) struct EncodedRecord<'a> {
    pub key: String,
    pub kinds: Arc<Kinds>,
    pub size: u64,
    head: Vec<u8>,
    /// The stored bytes of the entries; they follow the head, each aligned.
    contents: Vec<Cow<'a, [u8]>>,
    alignment: u8,
}

/// An entry in the form in which it is written.
pub(super) struct Content<'a> {
    row: Row,
    name: &'a str,
    content_type: &'a str,
    data: Cow<'a, [u8]>,
}

impl<'a> Content<'a> {
    /// An entry of another shard as it is stored. Its checksum is checked.
    pub(super) fn stored(entry: StoredEntry<'a>) -> Result<Self> {
        let data = entry.stored()?;
        Ok(Self { row: entry.row(), name: entry.name(), content_type: entry.content_type(), data })
    }
}

/// Turns records into bytes.
pub(super) struct Encoder {
    pub alignment: u8,
    pub compression: Encoding,
    pub level: i32,
    pub kinds: KindsCache,
}

impl Encoder {
    /// Encodes a record. All that can be wrong with it is found here, before anything is written.
    pub(super) fn record<'a>(&self, record: &'a Record) -> Result<EncodedRecord<'a>> {
        let contents = record.file_entries.iter().map(|entry| {
            let may_compress = entry.compressed && is_compressible(&entry.content_type);
            let encoding = if may_compress { self.compression } else { Encoding::None };
            let (data, encoding) = encode(&entry.data, encoding, self.level)?;
            let row = Row {
                stored_size: data.len() as u64,
                original_size: entry.data.len() as u64,
                crc32c: crc32c(&data),
                encoding,
            };
            Ok(Content { row, name: &entry.file_name, content_type: &entry.content_type, data })
        });
        let contents = contents.collect::<Result<_>>()?;
        let (encoding, metadata) = encode_metadata(&record.metadata).map_err(|error| in_record(error, &record.key))?;
        self.assemble(&record.key, contents, encoding, &metadata)
    }

    /// Encodes a record of another shard without decoding its entries, which are checked.
    pub(super) fn stored<'a>(&self, record: &'a StoredRecord) -> Result<EncodedRecord<'a>> {
        let key = check_key(record.parts().key)?;
        record.check_no_metadata().map_err(|error| record.failed(error))?;
        let contents = record.entries().map(Content::stored).collect::<Result<_>>()?;
        let (encoding, metadata) = record.stored_metadata();
        self.assemble(key, contents, encoding, metadata)
    }

    /// Puts a record together.
    pub(super) fn assemble<'a>(
        &self,
        key: &str,
        contents: Vec<Content<'a>>,
        mut encoding: MetadataEncoding,
        mut metadata: &[u8],
    ) -> Result<EncodedRecord<'a>> {
        if key.is_empty() || key.len() > LONGEST_KEY || key.contains('\0') {
            let error = Error::new(Code::InvalidArgument, "P-REC-5", "the key cannot be stored");
            return Err(in_record(error.with_expected("1 to 65536 bytes without U+0000"), key));
        }
        // An empty object reads the same as none, and a record has one form.
        if metadata == b"{}" || metadata == [0x80] {
            (encoding, metadata) = (MetadataEncoding::None, &[]);
        }
        self.lay_out(key, contents, encoding, metadata).map_err(|error| in_record(error, key))
    }

    fn lay_out<'a>(
        &self,
        key: &str,
        contents: Vec<Content<'a>>,
        metadata_encoding: MetadataEncoding,
        metadata: &[u8],
    ) -> Result<EncodedRecord<'a>> {
        let kinds = self.encode_kinds(&contents)?;
        let too_large = || {
            Error::new(Code::LimitExceeded, "P-REC-6", "the metadata or the head of the record is too large")
                .with_expected("at most 16 and 64 MiB")
        };
        let size = |value: usize| u32::try_from(value).map_err(|_| too_large());
        let mut head = FixedHead {
            record_size: 0,
            metadata_encoding,
            alignment: self.alignment,
            entry_count: size(contents.len())?,
            kinds_size: size(kinds.stored.len())?,
            key_size: size(key.len())?,
            metadata_size: size(metadata.len())?,
        };
        if metadata.len() > LARGEST_METADATA || head.head_size() > LARGEST_HEAD as u64 {
            return Err(too_large());
        }
        let mut end = Some(head.head_size());
        for content in &contents {
            let start = end.and_then(|end| align_up(end, self.alignment));
            end = start.and_then(|start| start.checked_add(content.row.stored_size));
        }
        head.record_size = end.and_then(|end| align_up(end, self.alignment)).ok_or_else(too_large)?;
        let mut bytes = Vec::new();
        head.append_to(&mut bytes);
        contents.iter().for_each(|content| content.row.append_to(&mut bytes));
        for part in [&kinds.stored, key.as_bytes(), metadata] {
            bytes.extend_from_slice(part);
        }
        bytes.extend(crc32c(&bytes).to_le_bytes());
        Ok(EncodedRecord {
            key: key.to_owned(),
            kinds,
            size: head.record_size,
            head: bytes,
            contents: contents.into_iter().map(|content| content.data).collect(),
            alignment: self.alignment,
        })
    }

    /// Checks names and content types as a reader does.
    fn encode_kinds(&self, contents: &[Content]) -> Result<Arc<Kinds>> {
        let refused = |rule, problem| Err(Error::new(Code::InvalidArgument, rule, problem));
        if contents.len() > MOST_ENTRIES {
            return refused("P-REC-6", "the record has too many entries");
        }
        let mut stored = Vec::new();
        for Content { name, content_type, .. } in contents {
            if name.len() > LONGEST_NAME {
                return refused("P-KND-2", "the name of an entry is too long");
            }
            if content_type.len() > LONGEST_CONTENT_TYPE {
                return refused("P-KND-3", "the content type of an entry is too long");
            }
            append_kind(name, content_type, &mut stored);
            if stored.len() > LARGEST_HEAD {
                let problem = "the names of the entries are too long";
                return Err(Error::new(Code::LimitExceeded, "P-REC-6", problem));
            }
        }
        self.kinds.parse(&stored, contents.len()).map_err(|error| error.with_code(Code::InvalidArgument))
    }
}

/// What cannot be read is not written.
fn encode_metadata(metadata: &Metadata) -> Result<(MetadataEncoding, Vec<u8>)> {
    let limits = Limits::default();
    let encoded = match metadata {
        Metadata::Json(object) => json::canonical(object)
            .and_then(|text| {
                json::parse_object(text.as_bytes(), "the metadata", "P-MTD-2", &limits)?;
                Ok((MetadataEncoding::Json, text.into_bytes()))
            })
            .map_err(|error| (error, "P-MTD-2")),
        Metadata::MessagePack(value @ messagepack::Value::Map(_)) => messagepack::encode(value)
            .and_then(|bytes| {
                messagepack::decode(&bytes, limits.max_json_nodes)?;
                Ok((MetadataEncoding::MessagePack, bytes))
            })
            .map_err(|error| (error, "P-MTD-3")),
        Metadata::MessagePack(_) => Err((Error::invalid("it is not a map"), "P-MTD-3")),
    };
    encoded.map_err(|(error, rule)| {
        let problem = "the metadata of the record cannot be stored";
        Error::new(Code::InvalidArgument, rule, problem).with_source(error)
    })
}

impl EncodedRecord<'_> {
    /// Gives the bytes one after the other, with the padding between them (P-REC-9).
    pub(super) fn write(&self, mut write: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut position = 0_u64;
        let pad = |position: u64, write: &mut dyn FnMut(&[u8]) -> Result<()>| {
            let start = align_up(position, self.alignment).unwrap_or(position);
            let gap = usize::try_from(start.saturating_sub(position)).unwrap_or_default();
            write(ZEROS.get(..gap).unwrap_or_default()).map(|()| start)
        };
        for piece in std::iter::once(&*self.head).chain(self.contents.iter().map(|content| &**content)) {
            position = pad(position, &mut write)?.saturating_add(piece.len() as u64);
            write(piece)?;
        }
        pad(position, &mut write).map(drop)
    }
}
