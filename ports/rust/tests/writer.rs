//! What the writer promises beyond the bytes: whole files or none, and errors that say what is wrong.

mod common;

use std::sync::Arc;

use common::Folder;
use shard_format::json::{self, Value};
use shard_format::shard::{
    Codec, Delta, EntryOptions, FileSource, Filters, Layout, Source, StoredRun, WriterOptions, reference_to,
    write_manifest,
};
use shard_format::{Code, ContentType, Role, ShardReader, ShardWriter};

fn options(layout: Layout) -> WriterOptions {
    WriterOptions { layout, sync: false, ..WriterOptions::default() }
}

#[test]
fn a_dropped_writer_leaves_what_was_there() {
    let folder = Folder::new("dropped");
    let path = folder.path("a.shard");
    std::fs::write(&path, b"before").unwrap();
    let mut writer = ShardWriter::create(&path, options(Layout::Moved)).unwrap();
    writer.write("a", &vec![1; 3 << 20]).unwrap(); // more than the buffer holds
    drop(writer);
    assert_eq!(std::fs::read(&path).unwrap(), b"before");
    assert_eq!(folder.names(), ["a.shard"]);
}

#[test]
fn moved_and_declared_files_are_the_same_and_large_ones_too() {
    let folder = Folder::new("same");
    let names = vec!["b".to_owned(), "a".to_owned()];
    for (layout, file) in [(Layout::Moved, "moved"), (Layout::Declared(names), "declared")] {
        let mut writer = ShardWriter::create(folder.path(file), options(layout)).unwrap();
        writer.write("b", &vec![7; (2 << 20) + 5]).unwrap();
        writer.write("a", &[]).unwrap();
        writer.finish().unwrap();
    }
    let read = |file| std::fs::read(folder.path(file)).unwrap();
    assert_eq!(read("moved"), read("declared"));
}

#[test]
fn names_that_cannot_be_stored_are_refused() {
    let folder = Folder::new("names");
    let mut writer = ShardWriter::create(folder.path("a.shard"), options(Layout::Moved)).unwrap();
    for name in ["", "a\0b", &"x".repeat(65_536)] {
        let error = writer.write(name, b"").unwrap_err();
        assert_eq!((error.code(), error.rule()), (Code::InvalidArgument, "S-NAM-6"));
    }
    writer.write("a", b"1").unwrap();
    assert_eq!(writer.write("a", b"2").unwrap_err().code(), Code::DuplicateName);
    writer.finish().unwrap();
    let reader = ShardReader::open(folder.path("a.shard")).unwrap();
    assert_eq!(reader.read("a").unwrap(), b"1");
    assert_eq!(reader.read("b").unwrap_err().code(), Code::EntryNotFound);
}

#[test]
fn layouts_refuse_entries_that_they_have_no_place_for() {
    let folder = Folder::new("places");
    let declared = Layout::Declared(vec!["a".to_owned(), "b".to_owned()]);
    let mut writer = ShardWriter::create(folder.path("a.shard"), options(declared)).unwrap();
    assert_eq!(writer.write("b", b"").unwrap_err().code(), Code::InvalidArgument);
    writer.write("a", b"").unwrap();
    assert_eq!(writer.finish().unwrap_err().code(), Code::InvalidArgument);

    let mut writer = ShardWriter::create(folder.path("b.shard"), options(Layout::Reserved(1))).unwrap();
    writer.write(&"long".repeat(100), b"").unwrap();
    assert_eq!(writer.write("b", b"").unwrap_err().code(), Code::LimitExceeded);
    assert_eq!(writer.finish().unwrap_err().code(), Code::LimitExceeded);
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn a_view_outlives_its_reader() {
    let folder = Folder::new("view");
    let path = folder.path("a.shard");
    let content: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
    let mut writer = ShardWriter::create(&path, options(Layout::Moved)).unwrap();
    writer.write("raw", &content).unwrap();
    let zstd = EntryOptions { codec: Some(Codec::Zstd), ..EntryOptions::default() };
    writer.write_with("small", &[0; 1000], &zstd).unwrap();
    writer.finish().unwrap();
    let reader = ShardReader::open(&path).unwrap();
    assert_eq!(reader.view("small").unwrap_err().code(), Code::NotViewable);
    let view = reader.view("raw").unwrap();
    drop(reader);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(*view, *content);
    assert_eq!(view.as_ptr() as usize % 64, 0);
    let elsewhere = std::thread::spawn(move || view.len());
    assert_eq!(elsewhere.join().unwrap(), content.len());
}

#[test]
fn a_damaged_entry_has_no_view() {
    let folder = Folder::new("damaged");
    let path = folder.path("a.shard");
    let mut writer = ShardWriter::create(&path, options(Layout::Moved)).unwrap();
    writer.write("a", &[5; 1000]).unwrap();
    writer.finish().unwrap();
    let mut data = std::fs::read(&path).unwrap();
    *data.last_mut().unwrap() ^= 1;
    std::fs::write(&path, data).unwrap();
    let error = ShardReader::open(&path).unwrap().view("a").unwrap_err();
    assert_eq!((error.code(), error.rule()), (Code::ChecksumMismatch, "S-CRC-1"));
    assert_eq!((error.path(), error.entry()), (Some(&*path), Some("a")));
}

#[test]
fn frames_of_another_file_make_a_seekable_entry() {
    let folder = Folder::new("runs");
    let content: Vec<u8> = (0..9000u32).flat_map(|i| (i / 3).to_le_bytes()).collect();
    let filters = Filters { delta: Some(Delta { order: 1, width: 4, row: 12 }), planes: Some(4) };
    let given = EntryOptions {
        codec: Some(Codec::Zstd),
        frame_bytes: Some(12_000),
        filters: Some(filters),
        content_type: ContentType::BLOB,
        ..EntryOptions::default()
    };
    let mut writer = ShardWriter::create(folder.path("a"), options(Layout::Moved)).unwrap();
    writer.write_with("x", &content, &given).unwrap();
    writer.finish().unwrap();
    let reader = ShardReader::open(folder.path("a")).unwrap();
    let frames = reader.seek_frames("x").unwrap().unwrap();
    assert_eq!((frames.len(), reader.filters("x").unwrap()), (3, Some(filters)));
    // Where the frames are: behind the description of the filters.
    let source: Arc<dyn Source> = Arc::new(FileSource::open(folder.path("a")).unwrap());
    let stored = reader.read_stored("x").unwrap();
    let leading = 8 + u32::from_le_bytes(stored[4..8].try_into().unwrap()) as u64;
    let mut offset = reader.info("x").unwrap().row.data_offset + leading;
    let mut runs = Vec::new();
    for (frame, part) in frames.iter().zip(content.chunks(12_000)) {
        runs.push(StoredRun {
            source: &*source,
            offset,
            stored_size: frame.compressed_size,
            content_size: frame.decompressed_size,
            crc32c: shard_format::hash::crc32c(part),
        });
        offset += u64::from(frame.compressed_size);
    }
    let mut writer = ShardWriter::create(folder.path("b"), options(Layout::Reserved(9))).unwrap();
    writer.write_runs("x", &runs, &given).unwrap();
    let mut rest = &content[..];
    writer.write_stream("raw", content.len() as u64, &mut rest, &EntryOptions::default()).unwrap();
    writer.copy(&reader, "x").unwrap_err(); // the name is taken
    writer.finish().unwrap();
    let copy = ShardReader::open(folder.path("b")).unwrap();
    copy.verify().unwrap();
    assert_eq!(copy.read("x").unwrap(), content);
    assert_eq!(copy.read("raw").unwrap(), content);
    assert_eq!(copy.read_stored("x").unwrap(), stored);
}

#[test]
fn a_manifest_names_files_below_its_folder_only() {
    let folder = Folder::new("manifest");
    std::fs::create_dir(folder.path("parts")).unwrap();
    std::fs::write(folder.path("parts/a.shard"), b"content").unwrap();
    let row = reference_to(folder.path("parts/a.shard"), folder.path("")).unwrap();
    assert_eq!(row["uri"], Value::from("parts/a.shard"));
    let fields = json::object([("files", [row].into_iter().collect()), ("note", "mine".into())]);
    write_manifest(folder.path("all.shard"), &fields).unwrap();
    let reader = ShardReader::open(folder.path("all.shard")).unwrap();
    assert_eq!(reader.role(), Role::MANIFEST);
    assert_eq!(reader.manifest_fields().unwrap(), fields);
    reader.verify_files().unwrap();
    for uri in ["/etc/passwd", "../x", "a/../../x", "http://x/y", "C:/x", "a\\b", &"a/".repeat(300)] {
        let error = reader.resolve_uri(uri).unwrap_err();
        assert_eq!((error.code(), error.rule()), (Code::UnsafePath, "S-MAN-4"), "{uri}");
    }
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("/", folder.path("root")).unwrap();
        assert_eq!(reader.resolve_uri("root/etc").unwrap_err().code(), Code::UnsafePath);
    }
    std::fs::write(folder.path("parts/a.shard"), b"contenT").unwrap();
    assert_eq!(reader.verify_files().unwrap_err().code(), Code::ReferenceMismatch);
    std::fs::remove_file(folder.path("parts/a.shard")).unwrap();
    assert_eq!(reader.verify_files().unwrap_err().code(), Code::MissingFile);
}

#[test]
fn many_entries_are_found_in_any_order_of_names() {
    let folder = Folder::new("many");
    let path = folder.path("a.shard");
    let name = |i: u32| format!("entry/{}", i.wrapping_mul(2_654_435_761));
    let mut writer = ShardWriter::create(&path, options(Layout::Moved)).unwrap();
    for i in 0..40_000 {
        writer.write(&name(i), &i.to_le_bytes()).unwrap();
    }
    writer.finish().unwrap();
    let reader = ShardReader::open(&path).unwrap();
    for i in (0..40_000).step_by(97) {
        assert_eq!(reader.read(&name(i)).unwrap(), i.to_le_bytes());
    }
    assert!(!reader.contains("entry/none"));
    let names: Vec<&str> = reader.names().take(100).collect();
    assert_eq!(reader.read_many(&names).unwrap().len(), 100);
    reader.verify().unwrap();
}
