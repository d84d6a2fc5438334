package wshard

import (
	"errors"
	"io/fs"
	"os"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

// SidecarMode says what Open does about the sidecars beside an episode.
type SidecarMode int

const (
	// ReadSidecars reads them; one that breaks a rule is left out, and Episode.Warnings says why.
	ReadSidecars SidecarMode = iota
	// StrictSidecars makes a sidecar that breaks a rule an error.
	StrictSidecars
	// NoSidecars reads the episode's own file only.
	NoSidecars
)

// Options changes how an episode is opened. The zero value is right for most.
type Options struct {
	// Options are those of the files.
	shard.Options
	Sidecars SidecarMode
}

func chosen(options []Options) Options {
	if len(options) > 0 {
		return options[0]
	}
	return Options{}
}

// origin is the file that an episode was opened from.
type origin struct {
	reader *shard.ShardReader
	// others are chunks and sidecars.
	others []*shard.ShardReader
	// episode, wshard and channels are the descriptions; rows are those of blocks in the file.
	episode, wshard, channels shard.Object
	rows                      map[string]*row
	// saved is the fingerprint of what was saved over this file since.
	saved string
}

// openAttempts bounds how often a reader looks again that was overtaken by a writer (W-SID-7).
const openAttempts = 3

// Open opens an episode: a file of its own, with the sidecars beside it, or the manifest of an episode in chunks. Arrays
// are not read. Close it.
func Open(path string, options ...Options) (*Episode, error) {
	for attempt := 1; ; attempt++ {
		ep, err := openOnce(path, chosen(options))
		fine := err == nil && len(ep.Warnings) == 0
		if fine || attempt == openAttempts || !wasOvertaken(path, ep, err) {
			return ep, err
		}
		if ep != nil {
			_ = ep.Close()
		}
	}
}

// wasOvertaken reports whether a writer may have replaced a file while it was opened.
func wasOvertaken(path string, ep *Episode, err error) bool {
	problems := []error{err}
	if ep != nil {
		problems = ep.Warnings
	}
	for _, problem := range problems {
		var known *shard.Error
		if !errors.As(problem, &known) {
			continue
		}
		switch known.Code {
		case shard.CodeMissingFile, shard.CodeReferenceMismatch, shard.CodeChunkDiscontinuity, shard.CodeDuplicateName:
			return true
		}
		if errors.Is(problem, fs.ErrNotExist) && known.Path != path {
			return true
		}
	}
	return false
}

func openOnce(path string, options Options) (*Episode, error) {
	reader, err := shard.OpenShard(path, options.Options)
	if err != nil {
		return nil, err
	}
	if reader.Header().Role == shard.RoleManifest {
		ep, err := openChunks(reader, options)
		if err != nil {
			_ = reader.Close()
			return nil, err
		}
		return withSidecars(ep, path, options)
	}
	ep, err := FromReader(reader)
	if err != nil {
		_ = reader.Close()
		return nil, err
	}
	return withSidecars(ep, path, options)
}

func withSidecars(ep *Episode, path string, options Options) (*Episode, error) {
	if options.Sidecars == NoSidecars {
		return ep, nil
	}
	if err := ep.attachSidecars(path, options); err != nil {
		_ = ep.Close()
		return nil, err
	}
	return ep, nil
}

// FromReader gives the episode in an open file, without sidecars. Closing the episode closes the file.
func FromReader(reader *shard.ShardReader) (*Episode, error) {
	ep, err := openFile(reader, nil)
	return ep, fault.Located(err, reader.Name(), "")
}

// Close closes the files of an opened episode. Its channels cannot be read any more.
func (ep *Episode) Close() error {
	if ep.origin == nil {
		return nil
	}
	err := ep.origin.reader.Close()
	for _, other := range ep.origin.others {
		err = errors.Join(err, other.Close())
	}
	return err
}

// Reader gives the file that an episode was opened from; nil for a new one.
func (ep *Episode) Reader() *shard.ShardReader {
	if ep.origin == nil {
		return nil
	}
	return ep.origin.reader
}

// openFile reads the descriptions of a file of role 5 and places its blocks (section 16). base is the episode of a sidecar,
// and nil otherwise.
func openFile(reader *shard.ShardReader, base *Episode) (*Episode, error) {
	if role := reader.Header().Role; role != shard.RoleWSHARD {
		e := broken(shard.CodeBadProfile, "W-ROL-1", "not an episode")
		e.Expected, e.Found = "a file of role 5", "role "+number(int(role))
		return nil, e
	}
	if base == nil && reader.HasEntry(MetaSidecar) {
		return nil, broken(shard.CodeBadProfile, "W-ROL-2", "this is a sidecar, which adds lanes to an episode: open the episode itself")
	}
	if !reader.HasEntry(MetaEpisode) {
		return nil, broken(shard.CodeBadProfile, "W-ROL-2", "the episode is not described: it has no meta/episode")
	}
	from := &origin{reader: reader, rows: map[string]*row{}}
	for _, one := range []struct {
		entry string
		place *shard.Object
	}{{MetaEpisode, &from.episode}, {MetaWShard, &from.wshard}, {MetaChannels, &from.channels}} {
		if !reader.HasEntry(one.entry) {
			continue
		}
		fields, err := reader.ReadJSON(one.entry)
		if err != nil {
			return nil, withRule(err, "W-JSN-1")
		}
		*one.place = fields
	}
	ep := &Episode{origin: from}
	ep.makeLanes()
	if err := ep.parseEpisode(from.episode, from.wshard); err != nil {
		return nil, err
	}
	ep.Metadata = cloneObject(ep.Metadata) // an edit must not change what the file says
	ep.FormatFields = others(from.wshard, wshardFields)
	delete(ep.FormatFields, "timebase") // it is part of the episode's own
	if from.wshard["residual_edges"] == EdgesOverlap {
		ep.ResidualEdges = EdgesOverlap
	}
	if base == nil && ep.LengthT > mostUnbacked && !isBacked(reader, ep.LengthT) {
		return nil, fault.Located(sizeMismatch("W-EPI-5", "the episode claims more steps than its file has bytes for",
			"at most 2**20, or an entry with a byte for each step", ep.LengthT), "", MetaEpisode)
	}
	rows, err := parseRows(from.channels)
	if err != nil {
		return nil, fault.Located(err, "", MetaChannels)
	}
	router := newRouter(ep, rows)
	if base != nil {
		ep.LengthT, router.baseRows = base.LengthT, base.origin.rows
	}
	router.route()
	return ep, nil
}

// isBacked reports whether an entry has as many bytes as there are steps (W-EPI-5).
func isBacked(reader *shard.ShardReader, steps int) bool {
	for i := range reader.EntryCount() {
		info, err := reader.InfoAt(i)
		if err == nil && info.OrigSize >= uint64(steps) && reader.CheckSize(info.Name) == nil {
			return true
		}
	}
	return false
}

// ReadProvenance gives what the file says about its recording; nil if it says nothing (W-PRV-1).
func (ep *Episode) ReadProvenance() (*Provenance, error) {
	if ep.Provenance != nil || ep.origin == nil || !ep.origin.reader.HasEntry(MetaProvenance) {
		return ep.Provenance, nil
	}
	fields, err := ep.origin.reader.ReadJSON(MetaProvenance)
	if err != nil {
		return nil, withRule(err, "W-PRV-1")
	}
	found, err := parseProvenance(fields)
	return found, fault.Located(err, ep.origin.reader.Name(), MetaProvenance)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
