//! Manifests: files of role 4, which name other files (S-MAN-1 to S-MAN-7).

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use super::identity::Identity;
use super::options::{EntryOptions, Layout, WriterOptions};
use super::reader::ShardReader;
use super::source::{FileSource, Source};
use super::writer::ShardWriter;
use super::{IDENTITY_ENTRY, MANIFEST_ENTRY};
use crate::atomic::folder_of;
use crate::error::quoted;
use crate::hash::{Sha256Hex, is_sha256_hex, sha256_hex};
use crate::json::{self, Object, Value};
use crate::registry::{Code, ContentType, Limits, Role};
use crate::{Error, Result};

const LONGEST_URI: usize = 4096;
const MOST_PARTS: usize = 256;

#[cold]
fn bad(rule: &'static str, problem: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(Code::BadMetadata, rule, problem)
}

impl ShardReader {
    /// The rows of a manifest, with their fields as they are stored (S-MAN-1, S-MAN-2).
    pub fn manifest(&self) -> Result<Vec<Object>> {
        let fields = self.manifest_fields()?;
        check_references(&fields).map_err(|e| e.with_path(self.path()))
    }

    /// The object of a manifest, from the entry or from the schema section. Its list is under `files` or `chunks`.
    pub fn manifest_fields(&self) -> Result<Object> {
        self.read_manifest().map_err(|e| e.with_path(self.path()))
    }

    fn read_manifest(&self) -> Result<Object> {
        if self.role() != Role::MANIFEST {
            return Err(bad("", "the file is not a manifest")
                .with_expected("role 4")
                .with_found(format_args!("role {}", self.role().0)));
        }
        if self.contains(IDENTITY_ENTRY) {
            self.check_manifest(&self.stored_identity()?)?;
        }
        if self.contains(MANIFEST_ENTRY) {
            return self.read_json(MANIFEST_ENTRY, "S-MAN-1");
        }
        match self.schema()?.and_then(|mut schema| schema.remove("manifest")) {
            Some(Value::Object(fields)) => Ok(fields),
            _ => Err(bad("S-MAN-1", "the file has no manifest")),
        }
    }

    /// Checks that an identity covers all that a manifest lists (S-MAN-7).
    pub(super) fn check_manifest(&self, identity: &Identity) -> Result<()> {
        let uncovered = |problem| Err(Error::new(Code::IdentityMismatch, "S-MAN-7", problem));
        if self.role() != Role::MANIFEST {
            return Ok(());
        }
        if identity.version >= 2 && identity.role != self.role() {
            return uncovered("the file was not a manifest when the identity was made");
        }
        let has_entry = self.contains(MANIFEST_ENTRY);
        let digest = match has_entry {
            true => Some(sha256_hex(&self.read(MANIFEST_ENTRY)?)),
            false => None,
        };
        if identity.entries.get(MANIFEST_ENTRY) != digest.as_ref() {
            return uncovered("the identity does not cover the manifest");
        }
        let section = self.schema()?.and_then(|mut schema| schema.remove("manifest"));
        let mut entry = None;
        for key in ["files", "chunks"] {
            let Some(listed) = section.as_ref().and_then(|section| section.get(key)) else {
                continue;
            };
            if entry.is_none() && has_entry {
                entry = Some(self.read_json(MANIFEST_ENTRY, "S-MAN-1")?);
            }
            let covered = entry.as_ref().and_then(|entry| entry.get(key));
            let is_same = match covered {
                Some(covered) => covered.canonical()? == listed.canonical()?,
                None => false,
            };
            if !is_same {
                return uncovered("the schema section lists files that the entry meta/manifest does not list");
            }
        }
        Ok(())
    }

    /// The path of a file that a manifest names, without links. The file must be there, in the folder of the manifest or
    /// below it (S-MAN-4).
    pub fn resolve_uri(&self, uri: &str) -> Result<PathBuf> {
        let Some(path) = self.path() else {
            return Err(Error::invalid("the manifest is not a file with a path"));
        };
        resolve(path, uri).map_err(|e| e.with_path(Some(path)))
    }

    /// Checks that every file that a manifest names is there, with its size and SHA-256 (S-MAN-4, S-MAN-5). It opens none of
    /// them as a Shard file.
    pub fn verify_files(&self) -> Result<()> {
        for row in self.manifest()? {
            let uri = row.get("uri").and_then(Value::as_str).unwrap_or_default();
            let path = self.resolve_uri(uri)?;
            compare_file(&path, &row)?;
        }
        Ok(())
    }
}

/// The list of a manifest, checked (S-MAN-1, S-MAN-2).
fn check_references(fields: &Object) -> Result<Vec<Object>> {
    let list = fields.get("files").or_else(|| fields.get("chunks"));
    let Some(list) = list.and_then(Value::as_list) else {
        return Err(bad("S-MAN-1", "the manifest has no list of files"));
    };
    let mut seen = HashSet::new();
    let mut rows = Vec::with_capacity(list.len());
    for item in list {
        let Some(row) = item.as_object() else {
            return Err(bad("S-MAN-1", "a row of the manifest is not an object"));
        };
        let uri = check_reference(row)?;
        if !seen.insert(uri) {
            return Err(bad("S-MAN-2", "the manifest names a file twice").with_found(quoted(uri)));
        }
        rows.push(row.clone());
    }
    Ok(rows)
}

/// Checks one row of a manifest, and returns its uri (S-MAN-2).
fn check_reference(row: &Object) -> Result<&str> {
    let wrong =
        |field: &str, expected| Err(bad("S-MAN-2", format!("{field:?} of a row is wrong")).with_expected(expected));
    let given = |field| row.get(field).filter(|value| !value.is_null());
    let text = |value: &Value| value.as_str().is_some();
    let uri = match row.get("uri").and_then(Value::as_str) {
        Some(uri) if !uri.is_empty() && !uri.contains('\0') => uri,
        _ => return wrong("uri", "a string that is not empty, without NUL"),
    };
    let is_digest = |value: &Value| value.as_str().is_some_and(is_sha256_hex);
    if !given("sha256").is_none_or(is_digest) {
        return wrong("sha256", "64 lower-case hex digits");
    }
    if !given("size").is_none_or(Value::is_natural) {
        return wrong("size", "an integer of 0 or more");
    }
    for field in ["start_key", "end_key"] {
        if !given(field).is_none_or(text) {
            return wrong(field, "a string");
        }
    }
    Ok(uri)
}

// --- the files that a manifest names

fn resolve(manifest: &Path, uri: &str) -> Result<PathBuf> {
    let not_safe = |why: &str| {
        let problem = format!("the manifest names an unsafe path: {why}");
        Err(Error::new(Code::UnsafePath, "S-MAN-4", problem).with_found(quoted(uri)))
    };
    let is_letter = |c: char| c.is_ascii_alphanumeric() || "+.-".contains(c);
    let has_scheme = uri.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(is_letter)
    });
    if has_scheme || uri.contains('\\') {
        return not_safe("it is not a plain relative path");
    }
    if uri.len() > LONGEST_URI || uri.split('/').count() > MOST_PARTS {
        return not_safe("it is too long");
    }
    let mut depth = 0usize;
    for part in Path::new(uri).components() {
        let next = match part {
            Component::Normal(_) => depth.checked_add(1),
            Component::CurDir => Some(depth),
            Component::ParentDir => depth.checked_sub(1),
            Component::RootDir | Component::Prefix(_) => None,
        };
        match next {
            Some(next) => depth = next,
            None => return not_safe("it leaves the folder of the manifest"),
        }
    }
    let failed = |e| Error::io("cannot read", Some(manifest), e);
    let folder = fs::canonicalize(folder_of(manifest)).map_err(failed)?;
    let path = match fs::canonicalize(folder.join(uri)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let problem = "a file that the manifest names is missing";
            return Err(Error::new(Code::MissingFile, "S-MAN-5", problem).with_found(quoted(uri)));
        }
        result => result.map_err(failed)?,
    };
    if path == folder || !path.starts_with(&folder) {
        return not_safe("a link leads out of the folder of the manifest");
    }
    Ok(path)
}

fn compare_file(path: &Path, row: &Object) -> Result<()> {
    let mismatch = |problem| Error::new(Code::ReferenceMismatch, "S-MAN-5", problem).with_path(Some(path));
    let status = fs::metadata(path).map_err(|e| Error::io("cannot read", Some(path), e))?;
    if !status.is_file() {
        return Err(mismatch("what the manifest names is not a regular file"));
    }
    // A file of another size need not be read.
    if let Some(size) = row.get("size").filter(|size| !size.is_null())
        && size.as_u64() != Some(status.len())
    {
        return Err(mismatch("the size is not what the manifest says")
            .with_expected(size.canonical()?)
            .with_found(status.len()));
    }
    if let Some(digest) = row.get("sha256").and_then(Value::as_str) {
        let (found, _) = hash_file(path)?;
        if found != digest {
            return Err(mismatch("the SHA-256 is not what the manifest says").with_expected(digest).with_found(found));
        }
    }
    Ok(())
}

/// The SHA-256 and the size of a file.
fn hash_file(path: &Path) -> Result<(String, u64)> {
    let source = FileSource::open(path)?;
    let mut digest = Sha256Hex::default();
    let mut buffer = vec![0; 1 << 18];
    let mut size = 0u64;
    loop {
        let count = source.file().read(&mut buffer);
        match count.map_err(|e| Error::io("cannot read", source.path(), e))? {
            0 => return Ok((digest.finish(), size)),
            count => {
                digest.update(buffer.get(..count).unwrap_or_default());
                size = size.saturating_add(count as u64);
            }
        }
    }
}

/// The row of a manifest for a file as it is now. The manifest will be in the folder, and the file in it or below it.
pub fn reference_to(path: impl AsRef<Path>, folder: impl AsRef<Path>) -> Result<Object> {
    let (path, folder) = (path.as_ref(), folder.as_ref());
    let (digest, size) = hash_file(path)?;
    let failed = |e| Error::io("cannot read", Some(path), e);
    let real = fs::canonicalize(path).map_err(failed)?;
    let real_folder = fs::canonicalize(folder).map_err(failed)?;
    let parts = real.strip_prefix(&real_folder).ok().map(|inside| {
        let parts = inside.components().map(|part| part.as_os_str().to_str());
        parts.collect::<Option<Vec<&str>>>()
    });
    let Some(Some(parts)) = parts else {
        return Err(Error::invalid("the file is not below the folder of the manifest").with_path(Some(path)));
    };
    Ok(json::object([("uri", parts.join("/").into()), ("sha256", digest.into()), ("size", size.into())]))
}

/// Writes a file of role 4 with the object of a manifest, whose list is under `files` or `chunks`. Each row needs `uri`,
/// `sha256` and `size` (S-MAN-6).
pub fn write_manifest(path: impl AsRef<Path>, fields: &Object) -> Result<()> {
    let path = path.as_ref();
    let text = manifest_text(fields).map_err(|e| e.with_path(Some(path)))?;
    let options = WriterOptions {
        role: Role::MANIFEST,
        layout: Layout::Declared(vec![MANIFEST_ENTRY.to_owned()]),
        ..WriterOptions::default()
    };
    let mut writer = ShardWriter::create(path, options)?;
    let json = EntryOptions { content_type: ContentType::JSON, ..EntryOptions::default() };
    writer.write_with(MANIFEST_ENTRY, text.as_bytes(), &json)?;
    writer.finish()
}

fn manifest_text(fields: &Object) -> Result<String> {
    let text = json::canonical(fields)?;
    json::parse_object(text.as_bytes(), "the manifest", "S-MAN-1", &Limits::default())?;
    for row in check_references(fields)? {
        let given = |key| row.get(key).is_some_and(|value| !value.is_null());
        if !given("sha256") || !given("size") {
            return Err(Error::invalid("a row of the manifest has no sha256 or no size").with_rule("S-MAN-6"));
        }
    }
    Ok(text)
}
