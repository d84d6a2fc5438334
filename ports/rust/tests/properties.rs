//! What holds for every input.

mod common;

use common::Folder;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use shard_format::json::{self, Object, Value};
use shard_format::shard::{Codec, Delta, EntryOptions, Filters, Layout, WriterOptions};
use shard_format::{ContentType, Role, ShardReader, ShardWriter};

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_filter("finite", |v| v.is_finite()).prop_map(Value::Float),
        any::<String>().prop_map(Value::String),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::List),
            btree_map(any::<String>(), inner, 0..6).prop_map(Value::Object),
        ]
    })
}

/// Content that compresses, and content that does not.
fn any_content() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), 0..2000),
        (vec(any::<u8>(), 1..40), 1usize..400).prop_map(|(piece, count)| piece.repeat(count)),
    ]
}

fn any_filters() -> impl Strategy<Value = Option<Filters>> {
    let width = prop_oneof![Just(1usize), Just(2), Just(4), Just(8)];
    (width, 1usize..9, 1u8..3, any::<(bool, bool)>()).prop_map(|(width, items, order, (delta, planes))| {
        let filters = Filters {
            delta: delta.then_some(Delta { order, width, row: width * items }),
            planes: (planes && width > 1).then_some(width),
        };
        (filters != Filters::default()).then_some(filters)
    })
}

fn any_options() -> impl Strategy<Value = EntryOptions> {
    let codec = prop_oneof![Just(Codec::None), Just(Codec::Zstd), Just(Codec::Lz4)];
    (any::<(u16, u16)>(), codec, any_filters(), proptest::option::of(1usize..9)).prop_map(
        |((content_type, tag_bits), codec, filters, frames)| {
            let is_zstd = codec == Codec::Zstd;
            let filters = filters.filter(|_| is_zstd);
            // Rows of filters divide 64 × 9 × 8 bytes: frames of a multiple of that suit all of them.
            EntryOptions {
                content_type: ContentType(content_type),
                tag_bits,
                codec: Some(codec),
                frame_bytes: frames.filter(|_| is_zstd).map(|count| count * 72 * 35 * 8),
                filters,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn json_reads_back_as_it_was_written(value in any_json()) {
        let text = value.canonical().unwrap();
        let read = Value::parse(text.as_bytes()).unwrap();
        prop_assert_eq!(read.canonical().unwrap(), text);
    }

    #[test]
    fn numbers_read_back_as_the_same_float(bits in any::<u64>()) {
        let value = f64::from_bits(bits);
        prop_assume!(value.is_finite());
        prop_assert_eq!(json::number(value).parse::<f64>().unwrap(), value);
    }

    #[test]
    fn any_text_is_a_value_or_an_error(text in any::<Vec<u8>>()) {
        if let Ok(value) = Value::parse(&text) {
            prop_assert!(Value::parse(value.canonical().unwrap().as_bytes()).is_ok());
        }
    }

    #[test]
    fn what_is_written_is_read(
        entries in btree_map("[a-zé/]{1,12}", (any_content(), any_options()), 0..6),
        alignment in prop_oneof![Just(0u8), Just(16), Just(32), Just(64)],
        role in any::<u8>(),
        layout in 0usize..3,
        identity in any::<bool>(),
        schema in proptest::option::of(btree_map("[f-h]{1,3}", any_json(), 0..3)),
        cut in any::<(u16, u16)>(),
    ) {
        let folder = Folder::new("written");
        let path = folder.path("a.shard");
        let layout = match layout {
            0 => Layout::Moved,
            1 => Layout::Declared(entries.keys().cloned().collect()),
            _ => Layout::Reserved(7),
        };
        let schema: Option<Object> = schema;
        let options = WriterOptions {
            role: Role(role), alignment, layout, identity, schema: schema.clone(), sync: false,
            ..WriterOptions::default()
        };
        let mut writer = ShardWriter::create(&path, options).unwrap();
        let mut kept = Vec::new();
        for (name, (content, options)) in &entries {
            let mut options = options.clone();
            if let Some(filters) = options.filters {
                // Whole rows only.
                let row = filters.delta.map_or(8, |delta| delta.row);
                if content.len() % row != 0 {
                    options.filters = None;
                }
            }
            match writer.write_with(name, content, &options) {
                Ok(()) => kept.push(name),
                Err(error) => panic!("{error}"),
            }
        }
        writer.finish().unwrap();
        prop_assert_eq!(folder.names(), ["a.shard"]);
        let reader = ShardReader::open(&path).unwrap();
        prop_assert_eq!(reader.len(), entries.len() + usize::from(identity));
        prop_assert_eq!(reader.role(), Role(role));
        if let (Some(written), Some(read)) = (&schema, reader.schema().unwrap()) {
            prop_assert_eq!(json::canonical(&read).unwrap(), json::canonical(written).unwrap());
        }
        for (name, (content, options)) in &entries {
            let info = reader.info(name).unwrap();
            prop_assert_eq!(info.row.content_type, options.content_type);
            prop_assert_eq!(info.row.tag_bits, options.tag_bits);
            prop_assert_eq!(&reader.read(name).unwrap(), content);
            let (a, b) = (usize::from(cut.0) % (content.len() + 1), usize::from(cut.1) % (content.len() + 1));
            let (start, end) = (a.min(b), a.max(b));
            prop_assert_eq!(&reader.read_range(name, start as u64..end as u64).unwrap(), &content[start..end]);
        }
        if role != 4 && role != 5 {
            reader.verify().unwrap();
        }
        if identity && role != 4 {
            prop_assert_eq!(reader.verify_identity().unwrap(), 2);
        }
        prop_assert_eq!(reader.warnings().unwrap().len(), 0);
    }
}
