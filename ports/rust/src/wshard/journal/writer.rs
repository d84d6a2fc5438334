//! Appends frames to a journal.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::frame::{HEAD, Head, Kind};
use crate::atomic::{folder_of, sync_folder};
use crate::hash::crc32c;
use crate::json::{self, Object};
use crate::wshard::save::is_still;
use crate::{Code, Error, Limits, Result};

/// How much of small frames is written with one call.
const GATHERED: usize = 256 << 10;

/// A journal that is open for writing. Only one writer can have a journal open (J-4).
#[derive(Debug)]
pub(crate) struct JournalWriter {
    pub(crate) path: PathBuf,
    file: File,
    sequence: u64,
    /// The bytes of all frames, also of those that are gathered.
    pub(crate) position: u64,
    gathered: Vec<u8>,
    /// Whether the disk may not have everything that was written.
    pub(crate) is_unsynced: bool,
}

impl JournalWriter {
    /// Opens and locks a journal, which may hold an earlier recording.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let failed = |e| cannot_record(path, e);
        fs::create_dir_all(folder_of(path)).map_err(failed)?;
        loop {
            let file =
                OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
            if !file.metadata().map_err(failed)?.is_file() {
                return Err(Error::invalid("cannot record: not a regular file").with_path(Some(path))); // a pipe would fill up
            }
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let problem = "another writer is recording to this file; use one writer for each";
                    return Err(Error::invalid(problem).with_path(Some(path)));
                }
                Err(TryLockError::Error(e)) => return Err(failed(e)),
            }
            // Otherwise the other writer finished, and removed the file after it was opened here.
            if is_still(&file, path) {
                let path = path.to_path_buf();
                return Ok(Self { path, file, sequence: 0, position: 0, gathered: Vec::new(), is_unsynced: false });
            }
        }
    }

    /// The size of what an earlier recording has left.
    pub(crate) fn old_size(&self) -> Result<u64> {
        self.file.metadata().map(|status| status.len()).map_err(|e| cannot_record(&self.path, e))
    }

    /// Removes what an earlier recording has left.
    pub(crate) fn clear(&mut self) -> Result<()> {
        self.file.set_len(0).map_err(|e| cannot_record(&self.path, e))
    }

    /// Adds a start, note or end frame.
    pub(crate) fn add_text(&mut self, kind: Kind, fields: &Object) -> Result<()> {
        let text = json::canonical(fields).map_err(|e| e.with_path(Some(&self.path)))?;
        if text.len() as u64 > Limits::default().max_json_bytes {
            let problem = "this is longer than 16 MiB of JSON";
            return Err(Error::new(Code::LimitExceeded, "J-TXT-2", problem).with_path(Some(&self.path)));
        }
        self.add(kind, 0, 0, text.as_bytes(), None)
    }

    /// Adds a run; `stored` is its compressed form, if it has one.
    pub(crate) fn add_run(&mut self, channel: u16, entries: u32, content: &[u8], stored: Option<&[u8]>) -> Result<()> {
        self.add(Kind::Run, channel, entries, content, stored)
    }

    fn add(&mut self, kind: Kind, channel: u16, entries: u32, content: &[u8], stored: Option<&[u8]>) -> Result<()> {
        let too_long = || Error::invalid("a run is too large for a journal").with_path(Some(&self.path));
        let size = |data: &[u8]| u32::try_from(data.len()).map_err(|_| too_long());
        let content_crc = crc32c(content);
        let bytes = stored.unwrap_or(content);
        let head = Head {
            kind,
            is_compressed: stored.is_some(),
            channel,
            entries,
            stored_size: size(bytes)?,
            content_size: size(content)?,
            content_crc,
            sequence: self.sequence,
            stored_crc: stored.map_or(content_crc, crc32c),
        };
        let length = HEAD.saturating_add(bytes.len());
        if self.gathered.len().saturating_add(length) > GATHERED {
            self.flush()?;
        }
        self.gathered.extend(head.to_bytes());
        self.sequence = self.sequence.saturating_add(1);
        self.position = self.position.saturating_add(length as u64);
        if length <= GATHERED {
            self.gathered.extend_from_slice(bytes);
            return Ok(());
        }
        self.flush()?;
        self.write(bytes)
    }

    /// Hands everything to the system.
    pub(crate) fn flush(&mut self) -> Result<()> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let gathered = std::mem::take(&mut self.gathered);
        let written = self.write(&gathered);
        self.gathered = gathered;
        self.gathered.clear();
        written
    }

    fn write(&mut self, data: &[u8]) -> Result<()> {
        self.is_unsynced = true;
        self.file.write_all(data).map_err(|e| cannot_record(&self.path, e))
    }

    /// Waits until the disk has everything.
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.flush()?;
        if self.is_unsynced {
            self.file.sync_data().map_err(|e| cannot_record(&self.path, e))?;
            self.is_unsynced = false;
        }
        Ok(())
    }

    /// The file, for somebody else who syncs what was written so far.
    pub(crate) fn sync_handle(&mut self) -> Option<File> {
        let file = self.file.try_clone().ok()?; // or the next one syncs
        self.is_unsynced = false;
        Some(file)
    }

    /// Also makes the name of a new journal survive a loss of power.
    pub(crate) fn sync_with_name(&mut self) -> Result<()> {
        self.sync()?;
        sync_folder(folder_of(&self.path)).map_err(|e| cannot_record(&self.path, e))
    }

    /// Deletes the journal while the lock keeps others from starting a new one under its name (J-5).
    pub(crate) fn remove(self) -> Result<()> {
        if is_still(&self.file, &self.path) {
            fs::remove_file(&self.path).map_err(|e| cannot_record(&self.path, e))?;
        }
        Ok(())
    }
}

fn cannot_record(path: &Path, error: std::io::Error) -> Error {
    Error::io("cannot record", Some(path), error)
}
