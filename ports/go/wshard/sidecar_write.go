package wshard

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/internal/files"
	"github.com/shard-format/shard/ports/go/shard"
)

// newSuffix is where the next content of an episode is while its sidecars still belong to this one.
const newSuffix = ".new~"

// --- adding lanes and edits

// AddLanes adds lanes to an episode on disk without rewriting it: the observations, actions, omens, uncertainties, residuals,
// labels and extra entries of lanes, of which nothing else counts. They are in the sidecar name, whose path is returned, and
// are read with the episode from then on.
func AddLanes(path, name string, lanes *Episode, options ...SaveOptions) (string, error) {
	target := filepath.Join(path+sidecarSuffix, name+fileSuffix)
	if err := checkID(name); err != nil || strings.ContainsAny(name, "/\\\x00") || name+fileSuffix == editFile || name[0] == '.' {
		return "", fault.Located(invalid("%q cannot be the name of a sidecar", name), path, "")
	}
	err := changing(path, func(base *Episode, sidecars []string) error {
		if slices.Contains(sidecars, target) {
			return fault.Located(invalid("there is a sidecar of this name"), target, "")
		}
		side := sideOf(base)
		side.Observations, side.Actions, side.Omens, side.Uncerts = lanes.Observations, lanes.Actions, lanes.Omens, lanes.Uncerts
		side.Residuals, side.Labels, side.ResidualEdges = lanes.Residuals, lanes.Labels, lanes.ResidualEdges
		for key, extra := range lanes.Extras {
			side.Extras[key] = extra
		}
		if err := checkAdded(side, base, sidecars); err != nil {
			return err
		}
		return writeSidecar(side, target, base, true, chosenSave(options))
	})
	return target, err
}

// Edit changes metadata and labels of an episode on disk without rewriting it; a nil value removes. Later edits add to
// earlier ones.
func Edit(path string, metadata shard.Object, labels map[string]*Label, options ...SaveOptions) error {
	target := filepath.Join(path+sidecarSuffix, editFile)
	changes := &edit{metadata: shard.Object{}, labels: map[string]*Label{}}
	return changing(path, func(base *Episode, sidecars []string) error {
		if slices.Contains(sidecars, target) {
			before, err := readOwnEdit(target, base)
			if err != nil {
				return err
			}
			changes.add(before.metadata, before.labels)
		}
		changes.add(metadata, labels)
		fields, err := changes.fields()
		if err != nil {
			return err
		}
		side := sideOf(base)
		text, err := shard.CanonicalJSON(fields)
		if err != nil {
			return fault.Located(err, path, MetaEdit)
		}
		side.Extras[MetaEdit] = NewExtra(text, shard.ContentTypeJSON)
		return writeSidecar(side, target, base, false, chosenSave(options))
	})
}

// changing opens an episode without its sidecars while no other writer can change them (W-SID-7).
func changing(path string, change func(base *Episode, sidecars []string) error) error {
	unlock, err := lockEpisode(path)
	if err != nil {
		return err
	}
	defer unlock()
	sidecars, err := settle(path)
	if err != nil {
		return err
	}
	base, err := openOnce(path, Options{Sidecars: NoSidecars})
	if err != nil {
		return err
	}
	defer func() { _ = base.Close() }()
	return fault.Located(change(base, sidecars), path, "")
}

// sideOf is the episode of a sidecar, without lanes.
func sideOf(base *Episode) *Episode {
	side := New(base.ID, base.LengthT)
	side.EnvID, side.Timebase = base.EnvID, base.Timebase
	return side
}

// checkAdded checks that neither the episode nor another sidecar holds what is added (W-SID-3).
func checkAdded(side, base *Episode, sidecars []string) error {
	side.Extras[MetaSidecar] = NewExtra(nil, shard.ContentTypeJSON) // so that no clock of the steps is made
	entries, err := newPlanner(side).plan()
	delete(side.Extras, MetaSidecar)
	if err != nil {
		return err
	}
	taken := map[string]bool{}
	files := append([]*shard.ShardReader{base.origin.reader}, base.origin.others...)
	for _, file := range sidecars {
		reader, err := shard.OpenShard(file)
		if err != nil {
			continue // whoever reads the episode reports it
		}
		defer func() { _ = reader.Close() }()
		files = append(files, reader)
	}
	for _, reader := range files {
		for _, name := range reader.EntryNames() {
			taken[name] = true
		}
	}
	count := 0
	for _, entry := range entries {
		if strings.HasPrefix(entry.name, "meta/") {
			continue
		}
		count++
		if taken[entry.name] {
			e := broken(shard.CodeDuplicateName, "W-SID-3", "the episode has this lane already")
			e.Entry = entry.name
			return e
		}
	}
	if count == 0 {
		return invalid("there is no lane to add")
	}
	return nil
}

// --- what a sidecar belongs to

// binding is the meta/sidecar for the content of a file. The identity of a file that does not store it takes reading all
// of it.
func binding(reader *shard.ShardReader, id string, length int, withIdentity bool) (shard.Object, error) {
	print, err := Fingerprint(reader)
	if err != nil {
		return nil, err
	}
	base := shard.Object{"episode_id": id, "fingerprint": print, "length_T": length}
	if reader.HasEntry(MetaIdentity) {
		text, err := reader.ReadEntry(MetaIdentity)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(text)
		base["identity"] = hex.EncodeToString(sum[:])
	} else if withIdentity {
		identity, err := reader.Identity()
		if err != nil {
			return nil, err
		}
		base["identity"] = identity.Digest()
	}
	return shard.Object{"base": base, "v": int64(1)}, nil
}

func writeSidecar(side *Episode, target string, base *Episode, withIdentity bool, options SaveOptions) error {
	bound, err := binding(base.origin.reader, base.ID, base.LengthT, withIdentity)
	if err != nil {
		return err
	}
	text, err := shard.CanonicalJSON(bound)
	if err != nil {
		return err
	}
	side.Extras[MetaSidecar] = NewExtra(text, shard.ContentTypeJSON)
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return fault.IO("cannot make the folder", filepath.Dir(target), err)
	}
	return fault.Located(writeFile(target, side, options), target, "")
}

// settle removes what a killed writer has left, and returns the sidecars that are not folded in (W-SID-6).
func settle(path string) ([]string, error) {
	if !exists(path) {
		return nil, nil
	}
	if err := os.Remove(path + newSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fault.IO("cannot remove", path+newSuffix, err)
	}
	files, err := SidecarFiles(path)
	if err != nil || len(files) == 0 {
		return nil, err
	}
	base, err := shard.OpenShard(path)
	if err != nil {
		return nil, err
	}
	held := indexFacts(base)
	_ = base.Close()
	var left, folded []string
	for _, file := range files {
		isFolded := false
		if reader, err := shard.OpenShard(file); err == nil { // else whoever reads the episode reports it
			isFolded = isFoldedIn(reader, held)
			_ = reader.Close()
		}
		if isFolded {
			folded = append(folded, file)
		} else {
			left = append(left, file)
		}
	}
	return left, removeSidecars(path, folded)
}

// removeSidecars deletes sidecars, and their folder if it is empty then.
func removeSidecars(path string, files []string) error {
	for _, file := range files {
		if err := os.Remove(file); err != nil {
			return fault.IO("cannot remove", file, err)
		}
	}
	_ = os.Remove(path + sidecarSuffix) // fails if something is in it
	return nil
}

// --- replacing an episode that has sidecars

// replaceWithSidecars saves an episode over one that has sidecars. What sidecars hold stays in them; edits that were read
// are part of the new file.
func replaceWithSidecars(path string, ep *Episode, sidecars []string, options SaveOptions) error {
	own := map[*shard.ShardReader]bool{}
	var edits []string
	if ep.origin != nil {
		for _, reader := range ep.origin.others {
			if slices.ContainsFunc(sidecars, func(file string) bool { return samePath(file, reader.Name()) }) {
				own[reader] = true
				if filepath.Base(reader.Name()) == editFile {
					edits = append(edits, filepath.Join(path+sidecarSuffix, editFile))
				}
			}
		}
	}
	return replaceEpisode(path, ep.without(own), sidecars, edits, options)
}

func samePath(a, b string) bool {
	x, err1 := filepath.Abs(a)
	y, err2 := filepath.Abs(b)
	return err1 == nil && err2 == nil && x == y
}

// without is an episode without the lanes that some files hold.
func (ep *Episode) without(readers map[*shard.ShardReader]bool) *Episode {
	isTheirs := func(b Block) bool {
		entry, isEntry := b.(*entryBlock)
		return isEntry && readers[entry.reader]
	}
	alone := *ep
	alone.makeLanes()
	for at, c := range ep.lanes() {
		if !isTheirs(c.data) {
			alone.setLane(at, c)
		}
	}
	for key, residual := range ep.Residuals {
		if !isTheirs(residual.Values.data) {
			alone.Residuals[key] = residual
		}
	}
	for key, label := range ep.Labels {
		if !isTheirs(label.raw) {
			alone.Labels[key] = label
		}
	}
	for name, extra := range ep.Extras {
		if !isTheirs(extra.data) {
			alone.Extras[name] = extra
		}
	}
	for _, place := range []**Channel{&alone.Rewards, &alone.Terminations, &alone.Truncations, &alone.Ticks, &alone.TimestampsNS} {
		if *place != nil && isTheirs((*place).data) {
			*place = nil
		}
	}
	return &alone
}

// replaceEpisode replaces an episode and binds its sidecars to the new file, so that they fit at any time (section 12). Those
// that the new file holds, folded, are removed at the end.
func replaceEpisode(path string, ep *Episode, sidecars, folded []string, options SaveOptions) error {
	beside := path + newSuffix
	err := writeFile(beside, ep, options)
	if err == nil {
		err = bindAll(path, beside, sidecars, folded, options)
	}
	if err == nil {
		if status, statErr := os.Stat(path); statErr == nil {
			_ = os.Chmod(beside, status.Mode().Perm()) // who may read the old file may read the new one
		}
		if err = os.Rename(beside, path); err != nil {
			err = fault.IO("cannot rename", path, err)
		}
	}
	if err != nil {
		_ = os.Remove(beside)
		return err
	}
	if !options.NoSync {
		if err := files.SyncFolder(filepath.Dir(path)); err != nil {
			return fault.IO("cannot sync", path, err)
		}
	}
	return removeSidecars(path, folded)
}

func bindAll(path, beside string, sidecars, folded []string, options SaveOptions) error {
	old, err := openOnce(path, Options{Sidecars: NoSidecars})
	if err != nil {
		return err
	}
	defer func() { _ = old.Close() }()
	now, err := openOnce(beside, Options{Sidecars: NoSidecars})
	if err != nil {
		return err
	}
	defer func() { _ = now.Close() }()
	if len(folded) < len(sidecars) {
		if err := checkGroundTruth(old, now, sidecars, folded); err != nil {
			return err
		}
	}
	for _, file := range sidecars {
		if err := rebind(file, old, now, slices.Contains(folded, file), options); err != nil {
			return fault.Located(err, file, "")
		}
	}
	return nil
}

// checkGroundTruth checks that sidecars that stay fit the new file as they fit the old one.
func checkGroundTruth(old, now *Episode, sidecars, folded []string) error {
	refused := func(entry string) error {
		e := invalid("the episode has sidecars, which belong to what it held before: fold them in or remove them first")
		e.Entry = entry
		return e
	}
	if old.ID != now.ID || old.LengthT != now.LengthT {
		return refused(MetaEpisode)
	}
	after := indexFacts(now.origin.reader)
	for name, one := range indexFacts(old.origin.reader) {
		if strings.HasPrefix(name, "meta/") || strings.HasPrefix(name, "label/") {
			continue
		}
		if other, there := after[name]; !there || other != one {
			return refused(name)
		}
	}
	for _, file := range sidecars {
		if slices.Contains(folded, file) {
			continue
		}
		reader, err := shard.OpenShard(file)
		if err != nil {
			return err
		}
		names := reader.EntryNames()
		_ = reader.Close()
		for _, name := range names {
			if _, there := after[name]; there && !strings.HasPrefix(name, "meta/") {
				return refused(name)
			}
		}
	}
	return nil
}

// rebind binds a sidecar to the new file of its episode, while it still fits the old one. If the new file holds what the
// sidecar says, its edits and labels become those of that file.
func rebind(path string, old, now *Episode, folds bool, options SaveOptions) error {
	reader, err := shard.OpenShard(path)
	if err != nil {
		return err
	}
	defer func() { _ = reader.Close() }()
	base := now.origin.reader
	if folds && isFoldedIn(reader, indexFacts(base)) {
		return nil // it says nothing beside the new file
	}
	fields, err := reader.ReadJSON(MetaSidecar)
	if err != nil {
		return err
	}
	before, _ := fields["base"].(map[string]any)
	_, hasIdentity := before["identity"]
	bound, err := binding(base, now.ID, now.LengthT, hasIdentity)
	if err != nil {
		return err
	}
	bound["before"] = before
	replaced := map[string]any{MetaSidecar: bound}
	if folds {
		between, err := editBetween(old, now)
		if err != nil {
			return err
		}
		replaced[MetaEdit] = between
	}
	names := []string{}
	for _, name := range reader.EntryNames() {
		isLabel := folds && strings.HasPrefix(name, "label/")
		if name == MetaIdentity || (isLabel && !base.HasEntry(name)) {
			continue
		}
		if isLabel {
			if replaced[name], err = base.ReadJSON(name); err != nil {
				return err
			}
		}
		names = append(names, name)
	}
	header := reader.Header()
	w, err := shard.NewShardStreamWriter(path, shard.ShardOptions{
		Role: shard.RoleWSHARD, Alignment: header.Alignment, Names: names, Identity: reader.HasEntry(MetaIdentity), NoSync: options.NoSync,
	})
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	for _, name := range names {
		info := reader.EntryAt(reader.Lookup(name))
		if fields, there := replaced[name]; there {
			text, err := shard.CanonicalJSON(fields)
			if err == nil {
				err = w.WriteEntryWith(name, text, shard.EntryOptions{ContentType: shard.ContentTypeJSON, HasCodec: true})
			}
			if err != nil {
				return err
			}
			continue
		}
		given := shard.EntryOptions{ContentType: info.ContentType, TagBits: info.TagBits}
		if err := w.CopyEntry(reader, name, given); err != nil {
			return err
		}
	}
	return w.Finalize()
}

// Fold writes the sidecars of an episode into its file and removes them. It first compares the episode with the identities
// that they state (W-SID-4).
func Fold(path string, options ...SaveOptions) error {
	unlock, err := lockEpisode(path)
	if err != nil {
		return err
	}
	defer unlock()
	sidecars, err := settle(path)
	if err != nil || len(sidecars) == 0 {
		return err
	}
	ep, err := openOnce(path, Options{Sidecars: StrictSidecars})
	if err != nil {
		return err
	}
	defer func() { _ = ep.Close() }()
	if ep.origin.reader.Header().Role == shard.RoleManifest {
		return fault.Located(invalid("a manifest cannot hold lanes: open the episode and save it under another name"), path, "")
	}
	identity, err := ep.origin.reader.Identity()
	if err != nil {
		return err
	}
	for _, sidecar := range ep.origin.others {
		if err := checkIdentity(sidecar, ep.origin.reader, identity); err != nil {
			return fault.Located(err, sidecar.Name(), MetaSidecar)
		}
	}
	return fault.Located(replaceEpisode(path, ep, sidecars, sidecars, chosenSave(options)), path, "")
}

// --- edits

func readOwnEdit(path string, base *Episode) (*edit, error) {
	reader, err := shard.OpenShard(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = reader.Close() }()
	bases, err := readBinding(reader)
	if err != nil {
		return nil, err
	}
	print, err := Fingerprint(base.origin.reader)
	if err != nil {
		return nil, err
	}
	// What was said about other content must not become true for this one.
	if err := checkFit(bases, base, print); err != nil {
		return nil, fault.Located(err, path, "")
	}
	return readEdit(reader)
}

// add puts later changes over earlier ones.
func (e *edit) add(metadata shard.Object, labels map[string]*Label) {
	for key, value := range metadata {
		e.metadata[key] = value
	}
	for name, label := range labels {
		e.labels[name] = label
	}
}

func (e *edit) fields() (shard.Object, error) {
	labels := shard.Object{}
	for name, label := range e.labels {
		if label == nil {
			labels[name] = nil
			continue
		}
		unit, intervals, err := label.Read()
		if err != nil {
			return nil, err
		}
		fields := labelFields(unit, intervals)
		if _, err := parseLabel(cloneObject(fields)); err != nil {
			return nil, invalid("readers would refuse the label %q: %v", name, err)
		}
		labels[name] = fields
	}
	return shard.Object{"labels": labels, "metadata": e.metadata, "v": int64(1)}, nil
}

// editBetween is the edit that gives an episode the metadata and labels of another one, and changes nothing in that.
func editBetween(old, now *Episode) (shard.Object, error) {
	changes := &edit{metadata: shard.Object{}, labels: map[string]*Label{}}
	for key := range old.Metadata {
		changes.metadata[key] = nil
	}
	for name := range old.Labels {
		changes.labels[name] = nil
	}
	changes.add(now.Metadata, now.Labels)
	return changes.fields()
}
