//! The identity of a file.

use std::collections::BTreeMap;

use crate::Role;

/// Names the content of a file, whatever its compression, alignment and order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The SHA-256 of the uncompressed bytes of each entry but `meta/identity`, in hex.
    pub entries: BTreeMap<String, String>,
    /// The role; covered from version 2 on.
    pub role: Role,
    /// The SHA-256 of the schema section; covered from version 2 on.
    pub schema: String,
    /// 1 or 2.
    pub version: u8,
}

impl Identity {
    /// The canonical text that is hashed.
    pub fn text(&self) -> String {
        todo!()
    }
    /// The identity: 64 hex digits.
    pub fn digest(&self) -> String {
        crate::hash::sha256_hex(self.text().as_bytes())
    }
}
