//! Seekable entries.

/// One frame of a seekable entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeekFrame {
    /// Stored bytes.
    pub compressed_size: u32,
    /// Bytes of content.
    pub decompressed_size: u32,
    /// The low half of the XXH64 of the content, if the table has it.
    pub checksum: Option<u32>,
}
