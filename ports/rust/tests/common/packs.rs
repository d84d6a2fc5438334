//! What the tests of packs share.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use shard_format::shardpack::{FileEntry, Record, ShardPackReader, ShardPackWriter, WriterOptions};
use shard_format::{Limits, Result};

/// Memory that a writer writes to.
#[derive(Clone, Default)]
pub struct Memory(Arc<Mutex<Vec<u8>>>);

impl Memory {
    pub fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

impl Write for Memory {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub fn options() -> WriterOptions {
    WriterOptions { created: Some("2024-01-01T00:00:00Z".to_owned()), sync: false, ..WriterOptions::default() }
}

pub fn packed(records: &[Record], options: WriterOptions) -> Result<Vec<u8>> {
    let memory = Memory::default();
    let mut writer = ShardPackWriter::to_stream(memory.clone(), options)?;
    records.iter().try_for_each(|record| writer.write_record(record))?;
    writer.finalize()?;
    Ok(memory.bytes())
}

pub fn open(bytes: &[u8]) -> Result<ShardPackReader> {
    ShardPackReader::from_source(Arc::new(Arc::<[u8]>::from(bytes)), &Limits::default())
}

pub fn record(key: &str, entries: &[(&str, &[u8])]) -> Record {
    let file_entries = entries.iter().map(|(name, data)| FileEntry::new(*name, *data)).collect();
    Record { key: key.to_owned(), file_entries, ..Record::default() }
}

/// A record whose entries do not say how they are stored.
pub fn plain(mut record: Record) -> Record {
    record.file_entries.iter_mut().for_each(|entry| entry.compressed = false);
    record
}
