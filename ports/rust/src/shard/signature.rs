//! Detached Ed25519 signatures of identities (S-SIG-1 to S-SIG-3).

use std::io::Read;
use std::path::Path;

use ed25519_dalek::pkcs8::{DecodePrivateKey, DecodePublicKey};
use ed25519_dalek::{Signer, SigningKey, VerifyingKey};

use super::IDENTITY_ENTRY;
use super::identity::Identity;
use super::reader::ShardReader;
use super::source::FileSource;
use crate::hash::{hex, is_hex, unhex};
use crate::json::{self, Value};
use crate::registry::{Code, Limits};
use crate::{Error, Result};

const ALGORITHM: &str = "ed25519";
const LONGEST_FILE: u64 = 4096;

/// A detached signature of the identity of a file, by convention in `<file>.sig`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// What was signed: 64 hex digits.
    pub identity: String,
    /// The key that the signature claims: 64 hex digits. Verification does not use it.
    pub public_key: String,
    /// The Ed25519 signature: 128 hex digits.
    pub signature: String,
    /// The version of the identity: 2, or 1 for one that does not cover the role and the schema section.
    pub version: u8,
}

impl Signature {
    /// The content of a signature file.
    pub fn text(&self) -> String {
        let fields = json::object([
            ("algorithm", ALGORITHM.into()),
            ("identity", self.identity.as_str().into()),
            ("public_key", self.public_key.as_str().into()),
            ("signature", self.signature.as_str().into()),
            ("v", self.version.into()),
        ]);
        json::canonical(&fields).unwrap_or_default() // no number here is infinite
    }

    /// Reads the content of a signature file (S-SIG-2).
    pub fn parse(text: &[u8]) -> Result<Signature> {
        let fields = json::parse_object(text, "the signature", "S-SIG-2", &Limits::default())?;
        let digits = |key: &str, count| {
            let text = fields.get(key).and_then(Value::as_str);
            text.filter(|text| is_hex(text, count)).map(str::to_owned)
        };
        let version = fields.get("v").and_then(Value::as_i64);
        let version = version.filter(|v| (1..=2).contains(v)).and_then(|v| u8::try_from(v).ok());
        let found = || {
            Some(Signature {
                identity: digits("identity", 64)?,
                public_key: digits("public_key", 64)?,
                signature: digits("signature", 128)?,
                version: version?,
            })
        };
        let algorithm = fields.get("algorithm").and_then(Value::as_str);
        found().filter(|_| algorithm == Some(ALGORITHM)).ok_or_else(|| {
            Error::new(Code::BadMetadata, "S-SIG-2", "not a signature").with_expected(
                "v 1 or 2, algorithm ed25519, and hex digits: identity (64), public_key (64), signature (128)",
            )
        })
    }

    /// Reads a signature file.
    pub fn read(path: impl AsRef<Path>) -> Result<Signature> {
        let path = path.as_ref();
        Signature::parse(read_short(path)?.as_bytes()).map_err(|e| e.with_path(Some(path)))
    }

    /// What is signed. It has the version, so a signature fits one version only.
    fn message(identity: &str, version: u8) -> String {
        format!("shard-identity-v{version}:{identity}")
    }
}

impl ShardReader {
    /// Computes the identity of the file and signs it (S-SIG-3).
    pub fn sign(&self, key: &SigningKey) -> Result<Signature> {
        let identity = self.identity()?;
        self.check_manifest(&identity).map_err(|e| e.with_path(self.path()))?;
        let digest = identity.digest();
        let signature = key.sign(Signature::message(&digest, identity.version).as_bytes());
        Ok(Signature {
            public_key: hex(key.verifying_key().as_bytes()),
            signature: hex(&signature.to_bytes()),
            version: identity.version,
            identity: digest,
        })
    }

    /// Returns the identity if the file has the content that the holder of the key signed (S-SIG-1).
    ///
    /// The key must come from somewhere you trust. Look at the version of the identity: version 1 does not cover the role
    /// and the schema section of the file.
    pub fn verify_signature(&self, signature: &Signature, key: &VerifyingKey) -> Result<Identity> {
        self.check_signature(signature, key).map_err(|e| e.with_path(self.path()))
    }

    fn check_signature(&self, signature: &Signature, key: &VerifyingKey) -> Result<Identity> {
        let message = Signature::message(&signature.identity, signature.version);
        let bytes = unhex(&signature.signature).and_then(|bytes| bytes.try_into().ok());
        let bytes = bytes.map(|bytes: [u8; 64]| ed25519_dalek::Signature::from_bytes(&bytes));
        let fits = bytes.is_some_and(|bytes| key.verify_strict(message.as_bytes(), &bytes).is_ok());
        if !fits {
            let problem = "the signature was not made with this key for this identity";
            return Err(Error::new(Code::BadSignature, "S-SIG-1", problem)
                .with_found(format_args!("the claimed key {}", signature.public_key)));
        }
        let mut found = self.identity()?;
        if self.contains(IDENTITY_ENTRY) {
            self.compare_stored(found.clone())?;
        }
        found.version = signature.version;
        let digest = found.digest();
        if digest != signature.identity {
            let problem = "the content does not fit the signed identity";
            return Err(Error::new(Code::IdentityMismatch, "S-SIG-1", problem)
                .with_expected(&signature.identity)
                .with_found(digest));
        }
        self.check_manifest(&found)?;
        Ok(found)
    }
}

/// Reads an Ed25519 key from an unencrypted PEM file (`openssl genpkey -algorithm ed25519`).
pub fn load_private_key(path: impl AsRef<Path>) -> Result<SigningKey> {
    let path = path.as_ref();
    SigningKey::from_pkcs8_pem(&read_short(path)?).map_err(|e| bad_key(path, e))
}

/// Reads an Ed25519 key from a PEM file (`openssl pkey -pubout`).
pub fn load_public_key(path: impl AsRef<Path>) -> Result<VerifyingKey> {
    let path = path.as_ref();
    VerifyingKey::from_public_key_pem(&read_short(path)?).map_err(|e| bad_key(path, e))
}

fn bad_key(path: &Path, reason: impl std::fmt::Display) -> Error {
    Error::invalid("not an Ed25519 key in a PEM file").with_path(Some(path)).with_source(reason.to_string())
}

/// Reads a file of a few lines.
fn read_short(path: &Path) -> Result<String> {
    let source = FileSource::open(path)?;
    let mut text = String::new();
    let mut limited = source.file().take(LONGEST_FILE.saturating_add(1));
    limited.read_to_string(&mut text).map_err(|e| Error::io("cannot read", Some(path), e))?;
    if text.len() as u64 > LONGEST_FILE {
        return Err(Error::new(Code::LimitExceeded, "", "the file is too long")
            .with_path(Some(path))
            .with_expected(format_args!("at most {LONGEST_FILE} bytes")));
    }
    Ok(text)
}
