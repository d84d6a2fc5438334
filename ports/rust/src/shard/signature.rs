//! Signatures.
/// A detached signature of the identity of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {}
/// Reads a key.
pub fn load_private_key() {}
/// Reads a key.
pub fn load_public_key() {}
