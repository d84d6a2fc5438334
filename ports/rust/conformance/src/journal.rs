//! What the program can do with kind journal.

use std::path::Path;

use shard_format::json::{Object, Value, object};
use shard_format::{Result, wshard};

use crate::{Kind, UNSUPPORTED, decimal, episode};

pub const KIND: Kind = Kind {
    name: "journal",
    features: "OQ",
    read,
    rewrite: |file, out| wshard::recover_with(file, Some(out), false).map(drop),
    ..UNSUPPORTED
};

/// Tells what comes back of a recording: it is saved as an episode, and that is read.
fn read(file: &Path) -> Result<Object> {
    let out = std::env::temp_dir().join(format!("shard-conformance-{}.wshard", std::process::id()));
    let told = recover(file, &out);
    let _ = std::fs::remove_file(&out);
    told
}

fn recover(file: &Path, out: &Path) -> Result<Object> {
    let found = wshard::recover_with(file, Some(out), false)?;
    let cut: Object = found.cut.iter().map(|(block, count)| (block.clone(), decimal(count))).collect();
    let mut told = object([
        ("cut", cut.into()),
        ("episode", episode::tell(&wshard::open(out)?)?.into()),
        ("finished", found.is_finished.into()),
        ("read_bytes", decimal(found.read_bytes)),
    ]);
    if let Some(reason) = &found.reason {
        told.insert("error".into(), reason.code().as_str().into());
        told.insert("rule".into(), Value::from(reason.rule()));
    }
    Ok(told)
}
