//! Adds lanes and edits to an episode without changing its file (spec/wshard.md, section 12).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::check::check_identity;
use super::episode::{Episode, Extra};
use super::journal::{exists, with};
use super::label::Label;
use super::names::{META_EDIT, META_IDENTITY, META_SIDECAR, check_id};
use super::open::{OpenOptions, SUFFIX, Sidecars, fingerprint, open_with, sidecar_files};
use super::plan::Plan;
use super::save::{SaveOptions, lock, write_file};
use crate::atomic::{folder_of, sync_folder};
use crate::hash::sha256_hex;
use crate::json::{self, Object, Value};
use crate::shard::ShardReader;
use crate::{Code, ContentType, Error, Result, Role};

const FOLDER: &str = ".lanes";
/// The sidecar that holds all edits.
const EDIT: &str = "meta.edit";
/// Where the next content of an episode is while its sidecars are bound to it.
const NEW: &str = ".new~";

/// Adds lanes to an episode on disk without rewriting it: all channels, residuals, labels and extra entries of `lanes`, of
/// which nothing else counts. They are in the sidecar of that name, whose path is returned, and are read with the episode from
/// then on.
pub fn add_lanes(path: impl AsRef<Path>, name: &str, lanes: &Episode, options: &SaveOptions) -> Result<PathBuf> {
    let path = path.as_ref();
    if check_id(name).is_err() || name.contains(['/', '\\', '\0']) || name.starts_with('.') || name == EDIT {
        return Err(Error::invalid(format!("{name:.80?} cannot be the name of a sidecar")).with_path(Some(path)));
    }
    let target = sidecar(path, name);
    let (base, _lock) = open_base(path)?;
    if exists(&target) {
        return Err(Error::invalid("there is a sidecar of this name").with_path(Some(&target)));
    }
    let mut side = side_of(&base);
    side.lanes.clone_from(&lanes.lanes);
    side.residuals.clone_from(&lanes.residuals);
    side.labels.clone_from(&lanes.labels);
    side.extras.clone_from(&lanes.extras);
    side.overlaps = lanes.overlaps;
    side.extras.insert(META_SIDECAR.into(), text_entry(&binding(&base, true)?)?);
    check_added(&side, &base, path).map_err(|e| e.with_path(Some(path)))?;
    write_sidecar(&target, &side, options)?;
    Ok(target)
}

/// Changes metadata and labels of an episode on disk without rewriting it; null and `None` remove. Later edits add to earlier
/// ones.
pub fn edit(
    path: impl AsRef<Path>,
    metadata: Object,
    labels: BTreeMap<String, Option<Label>>,
    options: &SaveOptions,
) -> Result<()> {
    let path = path.as_ref();
    let target = sidecar(path, EDIT);
    let (base, _lock) = open_base(path)?;
    let mut fields =
        json::object([("labels", Object::new().into()), ("metadata", Object::new().into()), ("v", 1.into())]);
    if exists(&target) {
        // It must fit the episode, or its edits are not for this content.
        open_with(path, &OpenOptions { sidecars: Sidecars::Strict, ..OpenOptions::default() })?;
        fields.extend(ShardReader::open(&target)?.read_json(META_EDIT, "W-SID-5")?);
    }
    let labels = labels.into_iter().map(|(name, label)| {
        check_id(&name)?;
        let fields = label.map(|label| label.fields());
        fields.as_ref().map_or(Ok(()), |fields| Label::parse(fields).map(drop))?;
        Ok((name, fields.into()))
    });
    for (field, changes) in [("metadata", metadata), ("labels", labels.collect::<Result<Object>>()?)] {
        if let Some(Value::Object(before)) = fields.get_mut(field) {
            before.extend(changes);
        }
    }
    let mut side = side_of(&base);
    side.extras.insert(META_EDIT.into(), text_entry(&fields)?);
    side.extras.insert(META_SIDECAR.into(), text_entry(&binding(&base, false)?)?);
    write_sidecar(&target, &side, options)
}

/// Removes a sidecar that [`add_lanes`] made.
pub fn remove_lanes(path: impl AsRef<Path>, name: &str) -> Result<()> {
    let path = path.as_ref();
    let _lock = lock(path)?;
    let target = sidecar(path, name);
    if check_id(name).is_err() || name.contains('/') || !exists(&target) {
        return Err(Error::new(Code::EntryNotFound, "", "there is no such sidecar").with_path(Some(&target)));
    }
    remove(path, &[target])
}

/// Makes the lanes and edits of all sidecars part of the episode's own file, and removes them.
pub fn fold_sidecars(path: impl AsRef<Path>, options: &SaveOptions) -> Result<()> {
    let path = path.as_ref();
    let _lock = lock(path)?;
    let files = sidecar_files(path)?;
    let ep = open_with(path, &OpenOptions { sidecars: Sidecars::Strict, ..OpenOptions::default() })?;
    let Some(origin) = ep.origin.clone().filter(|_| !files.is_empty()) else {
        return Ok(());
    };
    if origin.reader.role() == Role::MANIFEST {
        return Err(Error::invalid("sidecars of an episode in chunks cannot be folded in").with_path(Some(path)));
    }
    let (identity, own) = (origin.reader.identity()?, fingerprint(&origin.reader)?);
    for side in &origin.others {
        check_identity(side, &own, &identity).map_err(|e| e.with_path(side.path()).with_entry(META_SIDECAR))?;
    }
    let beside = with(path, NEW);
    let replaced = write_file(&beside, &ep, options).and_then(|()| {
        let edits = sidecar(path, EDIT);
        if files.contains(&edits) {
            bind_to_both(&edits, &beside, &ep, options)?;
        }
        let failed = |e| Error::io("cannot rename", Some(path), e);
        if let Ok(status) = fs::metadata(path) {
            fs::set_permissions(&beside, status.permissions()).map_err(failed)?; // who may read the old file may read the new one
        }
        fs::rename(&beside, path).map_err(failed)?;
        if options.sync { sync_folder(folder_of(path)).map_err(failed) } else { Ok(()) }
    });
    if let Err(e) = replaced {
        let _ = fs::remove_file(&beside); // the first error counts
        return Err(e.with_path(Some(path)));
    }
    remove(path, &files)
}

/// Binds the edits of an episode to its old and to its new content. They give both the same metadata and labels: a reader
/// that finds the old file and one that finds the new file see the same episode.
fn bind_to_both(edits: &Path, beside: &Path, ep: &Episode, options: &SaveOptions) -> Result<()> {
    let reader = ShardReader::open(edits)?;
    let base = open_with(beside, &OpenOptions { sidecars: Sidecars::Ignore, ..OpenOptions::default() })?;
    let mut bound = binding(&base, false)?;
    let old = reader.read_json(META_SIDECAR, "W-SID-1")?;
    bound.insert("before".into(), old.get("base").cloned().unwrap_or_default());
    let mut side = side_of(ep);
    side.extras.insert(META_EDIT.into(), text_entry(&reader.read_json(META_EDIT, "W-SID-5")?)?);
    side.extras.insert(META_SIDECAR.into(), text_entry(&bound)?);
    write_sidecar(edits, &side, options)
}

fn sidecar(path: &Path, name: &str) -> PathBuf {
    with(path, FOLDER).join(format!("{name}{SUFFIX}"))
}

/// Opens an episode without its sidecars while no other writer can change them (W-SID-7).
fn open_base(path: &Path) -> Result<(Episode, Option<fs::File>)> {
    let lock = lock(path)?;
    let ep = open_with(path, &OpenOptions { sidecars: Sidecars::Ignore, ..OpenOptions::default() })?;
    Ok((ep, lock))
}

/// The episode of a sidecar, without lanes.
fn side_of(base: &Episode) -> Episode {
    let mut side = Episode::new(base.id.as_str(), base.length);
    (side.env_id, side.timebase) = (base.env_id.clone(), base.timebase.clone());
    side.is_recorded = base.id.is_empty(); // an older writer may have left it empty
    side
}

/// `meta/sidecar` for the content of a file. The identity of a file that does not store it takes reading all of it.
fn binding(base: &Episode, with_identity: bool) -> Result<Object> {
    let Some(origin) = &base.origin else {
        return Err(Error::invalid("the episode has no file"));
    };
    let reader = &origin.reader;
    let mut fields = json::object([
        ("episode_id", base.id.as_str().into()),
        ("fingerprint", fingerprint(reader)?.into()),
        ("length_T", base.length.into()),
    ]);
    if reader.contains(META_IDENTITY) {
        fields.insert("identity".into(), sha256_hex(&reader.read(META_IDENTITY)?).into());
    } else if with_identity {
        fields.insert("identity".into(), reader.identity()?.digest().into());
    }
    Ok(json::object([("base", fields.into()), ("v", 1.into())]))
}

fn text_entry(fields: &Object) -> Result<Extra> {
    Ok(Extra::new(json::canonical(fields)?.into_bytes(), ContentType::JSON))
}

/// Checks that neither the episode nor another sidecar holds what is added (W-SID-3).
fn check_added(side: &Episode, base: &Episode, path: &Path) -> Result<()> {
    let Some(origin) = &base.origin else {
        return Ok(());
    };
    let mut taken: BTreeSet<String> = BTreeSet::new();
    // A sidecar that cannot be opened is reported by whoever reads the episode.
    let sidecars = sidecar_files(path)?.into_iter().filter_map(|file| ShardReader::open(file).ok().map(Arc::new));
    for reader in origin.others.iter().cloned().chain([Arc::clone(&origin.reader)]).chain(sidecars) {
        taken.extend(reader.names().map(str::to_owned));
    }
    let added: Vec<String> =
        Plan::entries(side)?.into_iter().map(|entry| entry.name).filter(|name| !name.starts_with("meta/")).collect();
    if added.is_empty() {
        return Err(Error::invalid("there is no lane to add"));
    }
    match added.iter().find(|name| taken.contains(*name)) {
        Some(name) => {
            Err(Error::new(Code::DuplicateName, "W-SID-3", "the episode has this lane already").with_entry(name))
        }
        None => Ok(()),
    }
}

fn write_sidecar(target: &Path, side: &Episode, options: &SaveOptions) -> Result<()> {
    let folder = folder_of(target);
    fs::create_dir_all(folder).map_err(|e| Error::io("cannot make the folder", Some(folder), e))?;
    write_file(target, side, options).map_err(|e| e.with_path(Some(target)))
}

/// Deletes sidecars, and their folder if it is empty then.
fn remove(path: &Path, files: &[PathBuf]) -> Result<()> {
    for file in files {
        fs::remove_file(file).map_err(|e| Error::io("cannot remove", Some(file), e))?;
    }
    let _ = fs::remove_dir(with(path, FOLDER)); // fails if something is in it
    Ok(())
}
