package wshard

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

const (
	// sidecarSuffix is what the folder of an episode's sidecars adds to the episode's name.
	sidecarSuffix = ".lanes"
	// editFile is the sidecar that holds edits.
	editFile   = "meta.edit.wshard"
	fileSuffix = ".wshard"
)

// SidecarFiles gives the sidecars beside an episode, in the order in which they are read.
func SidecarFiles(path string) ([]string, error) {
	folder := path + sidecarSuffix
	entries, err := os.ReadDir(folder) // sorted by name
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		if status, statErr := os.Stat(folder); statErr == nil && !status.IsDir() {
			return nil, nil
		}
		return nil, fault.IO("cannot list the sidecars", folder, err)
	}
	var files []string
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name(), fileSuffix) {
			files = append(files, filepath.Join(folder, entry.Name()))
		}
	}
	return files, nil
}

// facts are the size and the checksum of an entry's content.
type facts struct {
	size uint64
	crc  uint32
}

func indexFacts(reader *shard.ShardReader) map[string]facts {
	found := make(map[string]facts, reader.EntryCount())
	for i := range reader.EntryCount() {
		entry := reader.EntryAt(i)
		found[reader.EntryName(i)] = facts{entry.OrigSize, entry.CRC32C}
	}
	return found
}

// Fingerprint is a hash of what the index of a file says about its content: names, sizes and checksums, without
// meta/identity. Sidecars and manifests name files by it.
func Fingerprint(reader *shard.ShardReader) (string, error) {
	held := indexFacts(reader)
	object := make(shard.Object, len(held))
	for name, one := range held {
		if name != MetaIdentity {
			object[name] = []any{one.size, uint64(one.crc)}
		}
	}
	text, err := shard.CanonicalJSON(object)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// --- what a sidecar belongs to

// baseFacts say which content of an episode a sidecar belongs to.
type baseFacts struct {
	episodeID, fingerprint, identity string
	length                           int64
}

// readBinding gives the contents that a sidecar fits: one, or two while its episode is being replaced (W-SID-1).
func readBinding(reader *shard.ShardReader) ([]baseFacts, error) {
	if !reader.HasEntry(MetaSidecar) {
		return nil, badMetadata("W-SID-1", "not a sidecar: it has no meta/sidecar")
	}
	fields, err := reader.ReadJSON(MetaSidecar)
	if err != nil {
		return nil, withRule(err, "W-SID-1")
	}
	if fields["v"] != int64(1) {
		return nil, wrongField("W-SID-1", "v", "1", fields["v"])
	}
	values := []any{fields["base"]}
	if before := fields["before"]; before != nil {
		values = append(values, before)
	}
	bases := make([]baseFacts, len(values))
	for i, value := range values {
		if bases[i], err = parseBase(value, reader.HasEntry(MetaEdit)); err != nil {
			return nil, fault.Located(err, "", MetaSidecar)
		}
	}
	return bases, nil
}

func parseBase(value any, isEdit bool) (baseFacts, error) {
	var found baseFacts
	fields, ok := value.(map[string]any)
	if !ok {
		return found, wrongField("W-SID-1", "base", "an object", value)
	}
	if found.episodeID, ok = fields["episode_id"].(string); !ok {
		return found, wrongField("W-SID-1", "episode_id", "a string", fields["episode_id"])
	}
	if found.fingerprint, ok = fields["fingerprint"].(string); !ok || !isDigest(found.fingerprint) {
		return found, wrongField("W-SID-1", "fingerprint", "64 lower-case hex digits", fields["fingerprint"])
	}
	identity, isStated := fields["identity"]
	if found.identity, ok = identity.(string); (isStated || !isEdit) && (!ok || !isDigest(found.identity)) {
		return found, wrongField("W-SID-1", "identity", "64 lower-case hex digits", identity)
	}
	if found.length, ok = asCount(fields["length_T"]); !ok {
		return found, wrongField("W-SID-1", "length_T", "an integer of 0 or more", fields["length_T"])
	}
	return found, nil
}

// checkFit checks that a sidecar was made for this content of its episode (W-SID-2).
func checkFit(bases []baseFacts, ep *Episode, fingerprint string) error {
	for _, base := range bases {
		if base.episodeID == ep.ID && base.length == int64(ep.LengthT) && base.fingerprint == fingerprint {
			return nil
		}
	}
	e := broken(shard.CodeReferenceMismatch, "W-SID-2", "this sidecar belongs to another episode, or to other content of it")
	e.Entry, e.Expected, e.Found = MetaSidecar, bases[0].episodeID+" "+bases[0].fingerprint[:16], ep.ID+" "+fingerprint[:16]
	return e
}

// isFoldedIn tells whether an episode that holds these entries holds all that a sidecar adds (W-SID-6).
func isFoldedIn(sidecar *shard.ShardReader, held map[string]facts) bool {
	if sidecar.HasEntry(MetaEdit) {
		return false
	}
	added := indexFacts(sidecar)
	count := 0
	for name, one := range added {
		if strings.HasPrefix(name, "meta/") {
			continue
		}
		if other, there := held[name]; !there || other != one {
			return false
		}
		count++
	}
	return count > 0
}

// --- reading

// attachSidecars reads the sidecars beside an episode into it.
func (ep *Episode) attachSidecars(path string, options Options) error {
	files, err := SidecarFiles(path)
	if err != nil || len(files) == 0 {
		return err
	}
	own, err := Fingerprint(ep.origin.reader)
	if err != nil {
		return err
	}
	held := indexFacts(ep.origin.reader)
	taken := make(map[string]bool, len(held))
	for name := range held {
		taken[name] = true
	}
	for _, chunk := range ep.origin.others { // of an episode in chunks
		for _, name := range chunk.EntryNames() {
			taken[name] = true
		}
	}
	for _, file := range files {
		if err := ep.attach(file, own, held, taken, options); err != nil {
			err = fault.Located(err, file, "")
			if options.Sidecars == StrictSidecars {
				return err
			}
			ep.Warnings = append(ep.Warnings, err)
		}
	}
	return nil
}

func (ep *Episode) attach(file, fingerprint string, held map[string]facts, taken map[string]bool, options Options) (err error) {
	reader, err := shard.OpenShard(file, options.Options)
	if err != nil {
		return err
	}
	isUsed := false
	defer func() {
		if !isUsed {
			_ = reader.Close()
		}
	}()
	if role := reader.Header().Role; role != shard.RoleWSHARD {
		return broken(shard.CodeBadProfile, "W-ROL-1", "not a sidecar: it is not of role 5")
	}
	if isFoldedIn(reader, held) {
		return nil
	}
	bases, err := readBinding(reader)
	if err != nil {
		return err
	}
	if err := checkFit(bases, ep, fingerprint); err != nil {
		return err
	}
	if reader.HasEntry(MetaEdit) {
		edit, err := readEdit(reader)
		if err != nil {
			return err
		}
		ep.apply(edit)
	} else if err := ep.adopt(reader, taken); err != nil {
		return err
	}
	isUsed = true
	ep.origin.others = append(ep.origin.others, reader)
	return nil
}

// adopt takes over the lanes of a sidecar (W-SID-3).
func (ep *Episode) adopt(reader *shard.ShardReader, taken map[string]bool) error {
	for _, name := range reader.EntryNames() {
		if !strings.HasPrefix(name, "meta/") && taken[name] {
			e := broken(shard.CodeDuplicateName, "W-SID-3", "the sidecar holds a block that the episode has already")
			e.Entry = name
			return e
		}
	}
	side, err := openFile(reader, ep)
	if err != nil {
		return err
	}
	for _, name := range reader.EntryNames() {
		taken[name] = taken[name] || !strings.HasPrefix(name, "meta/")
	}
	side.moveTo(ep)
	return nil
}

// moveTo gives the lanes of a sidecar to its episode. A place that is taken there makes an extra entry.
func (ep *Episode) moveTo(to *Episode) {
	keep := func(c *Channel) { to.Extras[c.names.data] = &Extra{data: c.data, channel: c} }
	move := func(from, to map[string]*Channel) {
		for key, c := range from {
			if to[key] == nil {
				to[key] = c
			} else {
				keep(c)
			}
		}
	}
	move(ep.Observations, to.Observations)
	move(ep.Actions, to.Actions)
	for channel, models := range ep.Omens {
		for model, c := range models {
			if to.Omens[channel][model] == nil {
				to.SetOmen(channel, model, c)
			} else {
				keep(c)
			}
		}
	}
	for channel, models := range ep.Uncerts {
		for model, kinds := range models {
			for kind, c := range kinds {
				if to.Uncerts[channel][model][kind] == nil {
					to.SetUncert(channel, model, kind, c)
				} else {
					keep(c)
				}
			}
		}
	}
	for key, residual := range ep.Residuals {
		to.Residuals[key] = residual
	}
	for key, label := range ep.Labels {
		to.Labels[key] = label
	}
	for name, extra := range ep.Extras {
		if to.Extras[name] == nil {
			to.Extras[name] = extra
		}
	}
	for _, pair := range []struct{ from, to **Channel }{
		{&ep.Rewards, &to.Rewards}, {&ep.Terminations, &to.Terminations}, {&ep.Truncations, &to.Truncations},
		{&ep.Ticks, &to.Ticks}, {&ep.TimestampsNS, &to.TimestampsNS},
	} {
		if *pair.to == nil {
			*pair.to = *pair.from
		}
	}
}

// --- edits

// edit changes metadata and labels; nil values remove.
type edit struct {
	metadata shard.Object
	labels   map[string]*Label
}

// readEdit gives the meta/edit of a sidecar (W-SID-5).
func readEdit(reader *shard.ShardReader) (*edit, error) {
	fields, err := reader.ReadJSON(MetaEdit)
	if err != nil {
		return nil, withRule(err, "W-SID-5")
	}
	if fields["v"] != int64(1) {
		return nil, fault.Located(wrongField("W-SID-5", "v", "1", fields["v"]), "", MetaEdit)
	}
	object := func(field string) (shard.Object, error) {
		value, there := fields[field]
		found, ok := value.(map[string]any)
		if there && !ok {
			return nil, fault.Located(wrongField("W-SID-5", field, "an object", value), "", MetaEdit)
		}
		return found, nil
	}
	found := &edit{labels: map[string]*Label{}}
	if found.metadata, err = object("metadata"); err != nil {
		return nil, err
	}
	labels, err := object("labels")
	if err != nil {
		return nil, err
	}
	for name, value := range labels {
		if value == nil {
			found.labels[name] = nil
			continue
		}
		fields, ok := value.(map[string]any)
		if !ok {
			return nil, fault.Located(wrongField("W-SID-5", name, "an object", value), "", MetaEdit)
		}
		if found.labels[name], err = parseLabel(fields); err != nil {
			return nil, fault.Located(err, "", MetaEdit)
		}
	}
	return found, nil
}

func (ep *Episode) apply(e *edit) {
	for key, value := range e.metadata {
		if value == nil {
			delete(ep.Metadata, key)
		} else {
			ep.Metadata[key] = value
		}
	}
	for name, label := range e.labels {
		if label == nil {
			delete(ep.Labels, name)
		} else {
			ep.Labels[name] = label
		}
	}
}
