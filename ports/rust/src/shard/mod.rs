//! Containers: files of named entries, each raw or compressed on its own, with a checksum for each.

pub(crate) mod codec;
mod content;
mod encode;
mod filters;
#[allow(dead_code)] // for recordings
pub(crate) mod frames;
mod identity;
mod index;
mod layout;
pub(crate) mod lz4;
mod manifest;
#[cfg(feature = "mmap")]
#[allow(unsafe_code)]
mod mmap;
mod options;
pub(crate) mod parallel;
mod reader;
mod schema;
mod seekable;
#[cfg(feature = "sign")]
mod signature;
mod source;
mod verify;
mod writer;

pub use filters::{Delta, Filters};
pub use identity::Identity;
pub use layout::{Codec, Header, IndexEntry, align_up};
pub use manifest::{reference_to, write_manifest};
pub use options::{EntryOptions, Layout, StoredRun, WriterOptions};
pub use reader::{EntryInfo, ReaderOptions, ShardReader};
pub use seekable::SeekFrame;
#[cfg(feature = "sign")]
pub use signature::{Signature, load_private_key, load_public_key};
pub use source::{FileSource, Source, View};
pub use writer::ShardWriter;

/// The entry that may hold the identity of the file.
pub const IDENTITY_ENTRY: &str = "meta/identity";
/// The entry that holds a manifest.
pub const MANIFEST_ENTRY: &str = "meta/manifest";
/// The entry that every episode has.
pub const EPISODE_ENTRY: &str = "meta/episode";
