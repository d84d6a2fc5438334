//! What the program can do with set files of ShardPack.

use std::path::Path;

use shard_format::Result;
use shard_format::json::{self, Object, Value};
use shard_format::shardpack::Set;

use crate::{Kind, UNSUPPORTED, limits, text, wrong};

pub const KIND: Kind = Kind { name: "set", features: "T", read, step, ..UNSUPPORTED };

fn read(file: &Path) -> Result<Object> {
    let set = Set::open(file)?;
    let keys = set.records().map(|record| Ok(record?.key().into()));
    let names = set.shards().iter().map(|shard| shard.name.as_str());
    Ok(json::object([
        ("fields", set.fields().clone().into()),
        ("keys", keys.collect::<Result<Vec<Value>>>()?.into()),
        ("shards", names.collect()),
    ]))
}

fn step(file: &Path, case: &Object) -> Result<()> {
    let set = Set::open_with(file, &limits(case))?;
    if text(case, "when") != "shard" {
        return Ok(());
    }
    let found = set.shards().iter().position(|shard| shard.name == text(case, "shard"));
    set.shard(found.ok_or_else(|| wrong("no such shard"))?).map(drop)
}
