//! Manifests.

use std::path::Path;

use crate::Result;
use crate::json::Object;

/// The row of a manifest for a file as it is now; the manifest will be in the folder.
pub fn reference_to(path: &Path, folder: &Path) -> Result<Object> {
    let _ = (path, folder);
    todo!()
}

/// Writes a file of role 4 with the object of a manifest, whose list is under `files` or `chunks` (S-MAN-6).
pub fn write_manifest(path: &Path, fields: &Object) -> Result<()> {
    let _ = (path, fields);
    todo!()
}
