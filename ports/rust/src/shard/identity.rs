//! The identity of a file (S-IDN-1 to S-IDN-5).

use std::collections::BTreeMap;
use std::sync::OnceLock;

use super::reader::ShardReader;
use super::{IDENTITY_ENTRY, parallel};
use crate::hash::{Sha256Hex, is_sha256_hex, sha256_hex};
use crate::json::{self, Object, Value};
use crate::registry::{Code, Limits, Role};
use crate::{Error, Result};

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
    /// The canonical text that is hashed, and that a file may carry as `meta/identity`.
    pub fn text(&self) -> String {
        let mut out = String::from("{\"entries\":{");
        for (i, (name, digest)) in self.entries.iter().enumerate() {
            if i > 0 {
                out.push(',');
            }
            json::write_string(&mut out, name);
            out.push(':');
            json::write_string(&mut out, digest);
        }
        out.push_str("},\"leaf\":\"sha256\"");
        if self.version >= 2 {
            out.push_str(&format!(",\"role\":{},\"schema\":", self.role.0));
            json::write_string(&mut out, &self.schema);
        }
        out.push_str(&format!(",\"v\":{}}}", self.version));
        out
    }

    /// The identity: 64 hex digits.
    pub fn digest(&self) -> String {
        sha256_hex(self.text().as_bytes())
    }

    /// Names the first difference from what was stated (S-IDN-2).
    fn compare(&self, stated: &Identity) -> Result<()> {
        let bad = |problem| Error::new(Code::IdentityMismatch, "S-IDN-2", problem);
        if self.version >= 2 && self.role != stated.role {
            return Err(bad("the role is not that of the identity"));
        }
        if self.version >= 2 && self.schema != stated.schema {
            return Err(bad("the schema section is not that of the identity"));
        }
        let names = self.entries.keys().chain(stated.entries.keys());
        let first = names.filter(|name| self.entries.get(*name) != stated.entries.get(*name));
        let Some(name) = first.min() else {
            return Ok(());
        };
        let problem = match (self.entries.get(name), stated.entries.get(name)) {
            (None, _) => "an entry of the identity is missing",
            (_, None) => "the identity does not have this entry",
            _ => "the entry is not that of the identity",
        };
        Err(bad(problem).with_entry(name))
    }
}

impl ShardReader {
    /// Computes the identity of the file, of version 2. It reads every entry.
    pub fn identity(&self) -> Result<Identity> {
        let digests: Vec<OnceLock<String>> = (0..self.len()).map(|_| OnceLock::new()).collect();
        parallel::for_each(self.len(), |row| {
            let mut digest = Sha256Hex::default();
            self.scan(row, |piece| digest.update(piece))?;
            if let Some(place) = digests.get(row) {
                let _ = place.set(digest.finish());
            }
            Ok(())
        })?;
        let digests = digests.into_iter().filter_map(OnceLock::into_inner);
        let named = self.names().map(str::to_owned).zip(digests);
        Ok(Identity {
            entries: named.filter(|(name, _)| name != IDENTITY_ENTRY).collect(),
            role: self.role(),
            schema: schema_digest(self.schema()?.as_ref())?,
            version: 2,
        })
    }

    /// Compares the stored `meta/identity` with the file, and returns its version (S-IDN-1, S-IDN-2, S-IDN-4).
    ///
    /// It finds damage; against deliberate changes use signatures. Version 1 does not cover the role and the schema section.
    pub fn verify_identity(&self) -> Result<u8> {
        self.row(IDENTITY_ENTRY)?;
        let check = || {
            let found = self.compare_stored(self.identity()?)?;
            self.check_manifest(&found)?;
            Ok(found.version)
        };
        check().map_err(|e: Error| e.with_path(self.path()))
    }

    /// Compares the stored identity with the computed one, which it returns in the version of the stored one.
    pub(super) fn compare_stored(&self, mut found: Identity) -> Result<Identity> {
        let stored = self.stored_identity()?;
        found.version = stored.version;
        found.compare(&stored)?;
        Ok(found)
    }

    /// Reads `meta/identity` (S-IDN-1, S-IDN-4). What it says is not compared with the file.
    pub(super) fn stored_identity(&self) -> Result<Identity> {
        let row = self.row(IDENTITY_ENTRY)?;
        let limits = self.identity_limits();
        let what = "meta/identity";
        json::check_length(self.entry(row)?.orig_size, what, &limits).map_err(|e| e.with_entry(IDENTITY_ENTRY))?;
        let text = self.read_at(row)?;
        parse_identity(&text, &limits).map_err(|e| e.with_entry(IDENTITY_ENTRY))
    }

    /// Lets `meta/identity` be as long as the names of the file make it.
    fn identity_limits(&self) -> Limits {
        let count = self.len() as u64;
        let rows = self.index.entries();
        let names = rows.fold(0u64, |sum, row| sum.saturating_add(row.name_length.into()));
        let bytes = count.saturating_mul(72).saturating_add(names.saturating_mul(6));
        let mut limits = self.limits().clone();
        limits.max_json_bytes = limits.max_json_bytes.max(bytes.saturating_add(256));
        let nodes = count.saturating_mul(2).saturating_add(8);
        limits.max_json_nodes = limits.max_json_nodes.max(nodes);
        limits
    }
}

/// The SHA-256 of a schema section, or of `{}` if there is none.
pub(super) fn schema_digest(schema: Option<&Object>) -> Result<String> {
    let text = json::canonical(schema.unwrap_or(&Object::new()))?;
    Ok(sha256_hex(text.as_bytes()))
}

fn parse_identity(text: &[u8], limits: &Limits) -> Result<Identity> {
    let bad = |problem| Error::new(Code::IdentityMismatch, "S-IDN-1", problem);
    let fields = json::parse_object(text, "the identity", "S-IDN-1", limits).map_err(|e| {
        if e.code() == Code::LimitExceeded {
            return e;
        }
        e.with_code(Code::IdentityMismatch)
    })?;
    let version = match fields.get("v") {
        Some(Value::Int(1)) => 1,
        Some(Value::Int(2)) => 2,
        Some(Value::Int(other)) => {
            return Err(
                Error::new(Code::UnsupportedVersion, "S-IDN-4", "unknown version of the identity").with_found(other)
            );
        }
        Some(Value::BigInt(_)) | Some(_) | None => return Err(bad("the identity has no version")),
    };
    let Some(found) = identity_of(&fields, version) else {
        return Err(bad("the identity has other fields than it must have"));
    };
    if version >= 2 && fields.get("role").and_then(Value::as_i64) != Some(found.role.0.into()) {
        return Err(Error::new(Code::IdentityMismatch, "S-IDN-2", "the role is not that of the identity"));
    }
    if found.text().as_bytes() != text {
        return Err(bad("the identity is not the canonical text"));
    }
    Ok(found)
}

/// The identity that an object states; `None` if it has other fields.
fn identity_of(fields: &Object, version: u8) -> Option<Identity> {
    let digest = |value: &Value| value.as_str().filter(|text| is_sha256_hex(text)).map(str::to_owned);
    let mut entries = BTreeMap::new();
    for (name, value) in fields.get("entries")?.as_object()? {
        entries.insert(name.clone(), digest(value)?);
    }
    let is_right = fields.get("leaf")?.as_str() == Some("sha256")
        && !entries.contains_key(IDENTITY_ENTRY)
        && fields.len() == if version >= 2 { 5 } else { 3 };
    if !is_right {
        return None;
    }
    let (mut role, mut schema) = (Role::UNKNOWN, String::new());
    if version >= 2 {
        let number = fields.get("role")?.as_i64()?;
        role = Role(u8::try_from(number).unwrap_or_default());
        schema = digest(fields.get("schema")?)?;
    }
    Some(Identity { entries, role, schema, version })
}
