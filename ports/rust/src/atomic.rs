//! Files that appear under their name complete and synced to disk, or not at all.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// A file that is written beside its final name. Dropping it without [`publish`](NewFile::publish) removes it.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
    published: bool,
}

impl NewFile {
    /// Starts a file that will have this path.
    pub fn create(path: &Path) -> Result<NewFile> {
        let (file, temporary) = create_beside(path).map_err(|e| Error::io("cannot write", Some(path), e))?;
        Ok(NewFile { file, temporary, path: path.to_path_buf(), published: false })
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The final path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Syncs the file and gives it its name. Without `sync`, a power failure can lose it.
    pub fn publish(mut self, sync: bool) -> Result<()> {
        let failed = |problem| {
            let path = self.path.clone();
            move |e| Error::io(problem, Some(&path), e)
        };
        // As private as the file was before.
        if let Ok(before) = fs::symlink_metadata(&self.path)
            && before.is_file()
        {
            self.file.set_permissions(before.permissions()).map_err(failed("cannot write"))?;
        }
        if sync {
            self.file.sync_all().map_err(failed("cannot sync"))?;
        }
        fs::rename(&self.temporary, &self.path).map_err(failed("cannot rename"))?;
        self.published = true;
        if sync {
            sync_folder(folder_of(&self.path)).map_err(failed("cannot sync the folder"))?;
        }
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.published {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// A file without a name, beside another, for what is written twice. It goes with its handle.
pub(crate) fn spool_beside(path: &Path) -> io::Result<Spool> {
    let (file, temporary) = create_beside(path)?;
    // Where an open file cannot be removed, dropping removes it.
    let left = fs::remove_file(&temporary).is_err().then_some(temporary);
    Ok(Spool { file, left })
}

#[derive(Debug)]
pub(crate) struct Spool {
    pub(crate) file: File,
    left: Option<PathBuf>,
}

impl Drop for Spool {
    fn drop(&mut self) {
        if let Some(path) = &self.left {
            let _ = fs::remove_file(path);
        }
    }
}

/// A new file with a name of its own in the folder of another, with the permissions that new files get.
fn create_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    loop {
        let random = RandomState::new().hash_one(std::process::id());
        let temporary = folder_of(path).join(format!(".shard-{random:016x}.partial"));
        match options.open(&temporary) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            result => return Ok((result?, temporary)),
        }
    }
}

/// The folder that holds a file.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Makes a change of names in a folder last.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}
