//! Descriptions of an episode that was loaded: what is still true stays as it is (spec/wshard.md, section 15).

use std::collections::{BTreeMap, BTreeSet};

use super::episode::{Episode, Origin};
use super::names::{META_CHANNELS, META_EPISODE, META_WSHARD, row_place};
use super::plan::Plan;
use super::route::open_file;
use super::rows::{is_known_field, parse_rows};
use crate::Result;
use crate::json::{self, Object, Value};

/// Rows in the order of a new file: by groups, and by id within each.
pub(crate) fn row_list<'a>(
    rows: &BTreeMap<String, Object>,
    blocks: impl IntoIterator<Item = &'a String>,
) -> Vec<Value> {
    let mut list: Vec<(usize, &str, &Object)> = Vec::new();
    for block in blocks {
        if let Some(row) = rows.get(block) {
            let id = row.get("id").and_then(Value::as_str).unwrap_or_default();
            list.push((row_place(block), id, row));
        }
    }
    list.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)));
    list.into_iter().map(|(_, _, row)| row.clone().into()).collect()
}

/// Plans `meta/wshard`, `meta/episode` and `meta/channels` of an episode that was loaded.
pub(crate) fn keep_descriptions(plan: &mut Plan<'_>, origin: &Origin) -> Result<()> {
    // What was true is what the file says when it is read again.
    let before = open_file(&origin.reader, None)?;
    let mut wshard = merged(&origin.wshard, &before.wshard_fields(), &plan.ep.wshard_fields());
    if before.timebase != plan.ep.timebase {
        wshard.remove("timebase");
    }
    let episode = merged(&origin.episode, &before.episode_fields(), &plan.ep.episode_fields());
    let channels = changed_rows(plan, origin, &before)?;
    for (name, old, now) in [
        (META_WSHARD, &origin.wshard, wshard),
        (META_EPISODE, &origin.episode, episode),
        (META_CHANNELS, &origin.channels, channels),
    ] {
        let is_there = origin.reader.contains(name);
        if is_there && is_same(old, &now) {
            plan.keep_text(name)?;
        } else if is_there || !now.is_empty() {
            plan.add_json(name, &now)?;
        }
    }
    Ok(())
}

fn is_same(a: &Object, b: &Object) -> bool {
    matches!((json::canonical(a), json::canonical(b)), (Ok(a), Ok(b)) if a == b)
}

fn is_same_value(a: Option<&Value>, b: Option<&Value>) -> bool {
    let text = |value: Option<&Value>| value.map(Value::canonical).transpose().ok();
    text(a).is_some_and(|a| text(b) == Some(a))
}

/// The stored fields with those replaced that mean something else now.
fn merged(stored: &Object, before: &Object, wanted: &Object) -> Object {
    let mut fields = stored.clone();
    let keys: BTreeSet<&String> = before.keys().chain(wanted.keys()).collect();
    for key in keys {
        if wanted.contains_key(key) && is_same_value(before.get(key), wanted.get(key)) {
            continue;
        }
        match key.as_str() {
            "episode_id" => drop(fields.remove("id")),
            "length_T" => drop(fields.remove("length_t")),
            _ => {}
        }
        match wanted.get(key) {
            Some(value) => fields.insert(key.clone(), value.clone()),
            None => fields.remove(key),
        };
    }
    fields
}

/// `meta/channels` of an episode that was loaded: a row that still says what is true stays as it is.
fn changed_rows(plan: &Plan<'_>, origin: &Origin, before: &Episode) -> Result<Object> {
    let loaded = Plan::rows(before);
    let is_true = |block: &str| match (plan.rows.get(block), loaded.get(block)) {
        (None, None) => true,
        (Some(mine), Some(old)) => {
            let is_outdated = plan.ep.length != before.length && mine.contains_key("length");
            !is_outdated && is_same(mine, old)
        }
        _ => false,
    };
    let listed = parse_rows(&origin.channels)?;
    let mut kept = Vec::new();
    let mut is_changed = false;
    for row in &listed {
        let is_gone = origin.reader.contains(&row.block) && !plan.entries.contains_key(&row.block);
        if !is_gone && is_true(&row.block) {
            // An older map has the block as its key.
            let mut fields =
                json::object([("id", row.id.as_str().into()), ("signal_block", row.block.as_str().into())]);
            if row.fields.contains_key("id") {
                fields.clear();
            }
            fields.extend(row.fields.clone());
            kept.push(fields.into());
            continue;
        }
        is_changed = true;
        if let Some(mine) = plan.rows.get(&row.block).filter(|_| !is_gone) {
            let unknown = row.fields.iter().filter(|(field, _)| !is_known_field(field));
            let mut fields: Object = unknown.map(|(field, value)| (field.clone(), value.clone())).collect();
            fields.extend(mine.clone());
            kept.push(fields.into());
        }
    }
    let known: BTreeSet<&String> = listed.iter().map(|row| &row.block).collect();
    // What another description than a row says need not be said again.
    let is_said = |block: &String| known.contains(block) || (origin.reader.contains(block) && is_true(block));
    let added: Vec<&String> = plan.rows.keys().filter(|block| !is_said(block)).collect();
    if added.is_empty() && !is_changed {
        return Ok(origin.channels.clone());
    }
    let mut fields = if origin.channels.contains_key("channels") { origin.channels.clone() } else { Object::new() };
    fields.remove("modality_groups"); // derived by older writers, and no longer right
    kept.extend(row_list(&plan.rows, added));
    fields.insert("channels".into(), Value::List(kept));
    Ok(fields)
}
