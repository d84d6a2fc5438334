//! Where the bytes of a file come from.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::registry::Code;
use crate::{Error, Result};

/// Bytes that can be read at any offset: a file, memory, a part of a larger file, an object store.
///
/// Any number of threads may read at the same time.
pub trait Source: Send + Sync {
    /// The number of bytes.
    fn len(&self) -> u64;

    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills a buffer with the bytes at an offset. Fewer bytes are `io::ErrorKind::UnexpectedEof`.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// The file, for errors and for files that a manifest names.
    fn path(&self) -> Option<&Path> {
        None
    }

    /// Bytes in place, if they are in memory already.
    fn slice(&self, _range: Range<u64>) -> Option<&[u8]> {
        None
    }

    /// Bytes in place that stay valid without the source, if there can be such.
    fn view(&self, _range: Range<u64>) -> Option<View> {
        None
    }
}

/// The bytes of an entry, in place or copied. It stays valid without its reader.
#[derive(Clone)]
pub struct View {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl View {
    pub(crate) fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>, range: Range<u64>) -> Option<View> {
        let range = usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?;
        (*owner).as_ref().get(range.clone())?;
        Some(View { owner, range })
    }

    /// A view of memory of its own.
    pub fn of(data: Vec<u8>) -> View {
        let range = 0..data.len();
        View { owner: Arc::new(data), range }
    }
}

impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // The range was inside when the view was made.
        (*self.owner).as_ref().get(self.range.clone()).unwrap_or_default()
    }
}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({} bytes)", self.len())
    }
}

/// A range of bytes in memory.
fn part(data: &[u8], range: Range<u64>) -> Option<&[u8]> {
    data.get(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
}

/// The range of some bytes at an offset, or the error for reading behind the end.
fn range_of(offset: u64, length: usize) -> Range<u64> {
    offset..offset.saturating_add(length as u64)
}

/// Memory is a source, too.
impl Source for Arc<[u8]> {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let found = part(self, range_of(offset, buffer.len()));
        buffer.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn slice(&self, range: Range<u64>) -> Option<&[u8]> {
        part(self, range)
    }

    fn view(&self, range: Range<u64>) -> Option<View> {
        View::new(Arc::new(Arc::clone(self)), range)
    }
}

/// A file, which is read with positioned reads and mapped when a view is asked for.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    size: u64,
    path: PathBuf,
    #[cfg(feature = "mmap")]
    mapping: std::sync::OnceLock<Option<Arc<super::mmap::Mapping>>>,
}

impl FileSource {
    /// Opens a file that is not a folder, a pipe or a device. It does not wait for a pipe to get a writer.
    pub fn open(path: impl AsRef<Path>) -> Result<FileSource> {
        let path = path.as_ref();
        let failed = |e| Error::io("cannot open", Some(path), e);
        let mut options = OpenOptions::new();
        options.read(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
        let file = options.open(path).map_err(failed)?;
        let status = file.metadata().map_err(failed)?;
        if !status.is_file() {
            return Err(Error::invalid("not a regular file").with_path(Some(path)));
        }
        Ok(FileSource {
            file,
            size: status.len(),
            path: path.to_path_buf(),
            #[cfg(feature = "mmap")]
            mapping: std::sync::OnceLock::new(),
        })
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl Source for FileSource {
    fn len(&self) -> u64 {
        self.size
    }

    #[cfg(unix)]
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, buffer, offset)
    }

    #[cfg(windows)]
    fn read_at(&self, mut offset: u64, mut buffer: &mut [u8]) -> io::Result<()> {
        while !buffer.is_empty() {
            let count = std::os::windows::fs::FileExt::seek_read(&self.file, buffer, offset)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            offset = offset.saturating_add(count as u64);
            buffer = buffer.get_mut(count..).unwrap_or_default();
        }
        Ok(())
    }

    fn path(&self) -> Option<&Path> {
        Some(&self.path)
    }

    #[cfg(feature = "mmap")]
    fn slice(&self, range: Range<u64>) -> Option<&[u8]> {
        part((**self.mapping.get()?.as_ref()?).as_ref(), range)
    }

    #[cfg(feature = "mmap")]
    fn view(&self, range: Range<u64>) -> Option<View> {
        let mapping = self.mapping.get_or_init(|| super::mmap::Mapping::of(&self.file, self.size).map(Arc::new));
        View::new(Arc::clone(mapping.as_ref()?) as _, range)
    }
}

/// Reads bytes into memory of their size.
pub(crate) fn read_into(source: &dyn Source, offset: u64, buffer: &mut [u8]) -> Result<()> {
    source.read_at(offset, buffer).map_err(|e| {
        if e.kind() == io::ErrorKind::UnexpectedEof {
            return Error::new(Code::Truncated, "", "the file ends before it should")
                .with_expected(format_args!("{} bytes at offset {offset}", buffer.len()))
                .with_path(source.path());
        }
        Error::io("cannot read", source.path(), e)
    })
}
