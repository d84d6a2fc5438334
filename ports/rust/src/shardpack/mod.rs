//! Packs: shards of a dataset, in which each sample is a record with a key, metadata and named entries.
//!
//! A [`ShardPackReader`] finds records by number and by key. A [`Stream`] reads a shard from start to end without seeking.
//! A [`ShardPackWriter`] writes one shard, and [`recover`] saves what is intact of a damaged one. A [`SetWriter`] and a [`Set`] write and read the
//! shards that a set file lists.
//!
//! ```
//! use shard_format::shardpack::{FileEntry, Record, ShardPackReader, ShardPackWriter, WriterOptions};
//!
//! # fn main() -> shard_format::Result<()> {
//! # let folder = std::env::temp_dir().join(format!("shardpack-example-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder).unwrap();
//! # let path = folder.join("train-000000.shardpack");
//! let mut writer = ShardPackWriter::create(&path, WriterOptions::default())?;
//! writer.write_record(&Record {
//!     key: "cat/7".to_owned(),
//!     file_entries: vec![FileEntry::new("jpg", b"\xFF\xD8..."), FileEntry::new("cls", "3")],
//!     ..Record::default()
//! })?;
//! writer.finalize()?;
//!
//! let reader = ShardPackReader::open(&path)?;
//! assert_eq!(*reader.by_key("cat/7")?.read_entry("cls")?, *b"3");
//! for record in reader.iter_records() {
//!     let record = record?;
//!     assert_eq!(record.file_entries[0].content_type, "image/jpeg");
//! }
//! # std::fs::remove_dir_all(&folder).unwrap();
//! # Ok(())
//! # }
//! ```

mod encoder;
mod encoding;
mod index;
mod kinds;
mod layout;
pub mod messagepack;
mod reader;
mod record;
mod recover;
mod set;
mod setwriter;
mod stream;
mod writer;

pub use encoding::{Encoding, content_type_of};
pub use layout::{Footer, MetadataEncoding};
pub use reader::{Records, ShardPackReader};
pub use record::{FileEntry, Metadata, Record, StoredEntry, StoredRecord};
pub use recover::{LostPart, RecoverOptions, Recovery, recover};
pub use set::{Set, SetShard};
pub use setwriter::{SetOptions, SetWriter};
pub use stream::Stream;
pub use writer::{ShardPackWriter, WriterOptions};
