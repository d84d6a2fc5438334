package wshard

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

const metaManifest = "meta/manifest"

// ChunkManifest is what a manifest says about an episode in chunks.
type ChunkManifest struct {
	EpisodeID, EnvID string
	TotalTimesteps   int
	// Metadata is that of the whole episode; nil if the manifest states none.
	Metadata shard.Object
	// Chunks are in the order of the episode.
	Chunks []ChunkEntry
	// totals are the numbers of chunks that the manifest and its rows claim.
	totals []int64
}

// ChunkEntry is a row of a manifest.
type ChunkEntry struct {
	// URI is the name of the file, in the folder of the manifest.
	URI string
	// SHA256 and Fingerprint are empty, and Size is -1, if the manifest does not state them.
	SHA256, Fingerprint string
	Size                int64
	ChunkIndex, LengthT int
	// TimestepRange has both ends; nil if it is not stated.
	TimestepRange *[2]int
}

// readManifest reads and checks the manifest in a file of role 4 (W-CHK-1 to W-CHK-6).
func readManifest(reader *shard.ShardReader) (*ChunkManifest, error) {
	fields, err := manifestFields(reader)
	if err != nil {
		return nil, err
	}
	manifest, err := parseManifest(fields)
	if err != nil {
		return nil, fault.Located(err, "", metaManifest)
	}
	if _, err := reader.Manifest(); err != nil { // the rules of all manifests
		return nil, err
	}
	return manifest, fault.Located(ValidateChunkContinuity(manifest), "", metaManifest)
}

func manifestFields(reader *shard.ShardReader) (shard.Object, error) {
	if reader.HasEntry(metaManifest) {
		fields, err := reader.ReadJSON(metaManifest)
		return fields, withRule(err, "W-CHK-1")
	}
	schema, err := reader.Schema()
	if err != nil {
		return nil, err
	}
	fields, _ := schema["manifest"].(map[string]any)
	return fields, nil
}

func parseManifest(fields shard.Object) (*ChunkManifest, error) {
	bad := func(owner shard.Object, field, expected string) error {
		return wrongField("W-CHK-1", field, expected, owner[field])
	}
	found := &ChunkManifest{}
	var ok bool
	if found.EpisodeID, ok = fields["episode_id"].(string); !ok {
		return nil, bad(fields, "episode_id", "a string")
	}
	if value := fields["env_id"]; value != nil {
		if found.EnvID, ok = value.(string); !ok {
			return nil, bad(fields, "env_id", "a string")
		}
	}
	if value := fields["metadata"]; value != nil {
		if found.Metadata, ok = value.(map[string]any); !ok {
			return nil, bad(fields, "metadata", "an object")
		}
	}
	total, ok := asCount(fields["total_timesteps"])
	if !ok {
		return nil, bad(fields, "total_timesteps", "an integer of 0 or more")
	}
	found.TotalTimesteps = int(total)
	list, ok := fields["chunks"].([]any)
	if !ok {
		return nil, bad(fields, "chunks", "a list")
	}
	if err := found.addTotal(fields); err != nil {
		return nil, err
	}
	for _, item := range list {
		row, ok := item.(map[string]any)
		if !ok {
			return nil, wrongField("W-CHK-1", "a row", "an object", item)
		}
		one, err := parseChunk(row)
		if err != nil {
			return nil, err
		}
		if err := found.addTotal(row); err != nil {
			return nil, err
		}
		found.Chunks = append(found.Chunks, one)
	}
	sort.SliceStable(found.Chunks, func(a, b int) bool { return found.Chunks[a].ChunkIndex < found.Chunks[b].ChunkIndex })
	return found, nil
}

func (m *ChunkManifest) addTotal(fields shard.Object) error {
	value := fields["total_chunks"]
	if value == nil {
		return nil
	}
	count, ok := asCount(value)
	if !ok {
		return wrongField("W-CHK-1", "total_chunks", "an integer of 0 or more", value)
	}
	m.totals = append(m.totals, count)
	return nil
}

func parseChunk(row shard.Object) (ChunkEntry, error) {
	found := ChunkEntry{Size: -1}
	bad := func(field, expected string) error { return wrongField("W-CHK-1", field, expected, row[field]) }
	var ok bool
	if found.URI, ok = row["uri"].(string); !ok || found.URI == "" {
		return found, bad("uri", "the name of a file")
	}
	if found.URI == "." || found.URI == ".." || strings.ContainsAny(found.URI, "/\\\x00") {
		e := broken(shard.CodeUnsafePath, "W-CHK-2", "a chunk is not in the folder of the manifest")
		e.Expected, e.Found = "the name of a file", strings.ToValidUTF8(found.URI, "?")
		return found, e
	}
	for _, one := range []struct {
		field string
		place *string
	}{{"sha256", &found.SHA256}, {"fingerprint", &found.Fingerprint}} {
		if value := row[one.field]; value != nil {
			if *one.place, ok = value.(string); !ok || !isDigest(*one.place) {
				return found, bad(one.field, "64 lower-case hex digits")
			}
		}
	}
	if value := row["size"]; value != nil {
		if found.Size, ok = asCount(value); !ok {
			return found, bad("size", "an integer of 0 or more")
		}
	}
	for _, one := range []struct {
		field string
		place *int
	}{{"chunk_index", &found.ChunkIndex}, {"length_T", &found.LengthT}} {
		count, ok := asCount(row[one.field])
		if !ok {
			return found, bad(one.field, "an integer of 0 or more")
		}
		*one.place = int(count)
	}
	if value := row["timestep_range"]; value != nil {
		first, last, ok := asPair(value)
		if !ok || first < 0 || last < 0 {
			return found, bad("timestep_range", "a list of two integers of 0 or more")
		}
		found.TimestepRange = &[2]int{int(first), int(last)}
	}
	return found, nil
}

// ValidateChunkContinuity checks that the chunks of a manifest make one whole episode (W-CHK-3 to W-CHK-6).
func ValidateChunkContinuity(m *ChunkManifest) error {
	bad := func(rule, format string, args ...any) *shard.Error {
		return broken(shard.CodeChunkDiscontinuity, rule, format, args...)
	}
	if len(m.Chunks) == 0 {
		return bad("W-CHK-6", "the manifest names no chunks")
	}
	total := 0
	for expected, one := range m.Chunks {
		if one.ChunkIndex < expected {
			return bad("W-CHK-4", "chunk %d is there twice", one.ChunkIndex)
		}
		if one.ChunkIndex > expected {
			return bad("W-CHK-3", "chunk %d is missing", expected)
		}
		if span := one.TimestepRange; span != nil {
			if span[0] != total {
				return bad("W-CHK-5", "chunk %d starts with step %d instead of %d", expected, span[0], total)
			}
			// An empty chunk has no last step: its range is written as [start, start].
			if span[1]-span[0]+1 != one.LengthT && (one.LengthT != 0 || span[0] != span[1]) {
				return bad("W-CHK-6", "chunk %d has %d steps, and a range of %d to %d", expected, one.LengthT, span[0], span[1])
			}
		}
		if total += one.LengthT; total < 0 {
			return bad("W-CHK-6", "the chunks have too many steps")
		}
	}
	for _, claimed := range m.totals {
		if claimed != int64(len(m.Chunks)) {
			return bad("W-CHK-6", "the manifest names %d chunks, and claims %d", len(m.Chunks), claimed)
		}
	}
	if total != m.TotalTimesteps {
		return bad("W-CHK-6", "the chunks have %d steps, and the manifest claims %d", total, m.TotalTimesteps)
	}
	return nil
}

var scheme = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*:`)

const longestURI = 4096

// resolveChunk gives the path of a chunk, which must not leave the folder of the manifest (S-MAN-4).
func resolveChunk(manifestPath, uri string) (string, error) {
	folder := filepath.Dir(manifestPath)
	path := filepath.Join(folder, uri)
	unsafe := func(problem string) error {
		e := broken(shard.CodeUnsafePath, "S-MAN-4", "the name of a chunk %s", problem)
		e.Found = shortText(uri)
		return fault.Located(e, manifestPath, metaManifest)
	}
	if scheme.MatchString(uri) {
		return "", unsafe("has a scheme or a drive letter")
	}
	if len(uri) > longestURI {
		return "", unsafe("is too long")
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return path, nil // whoever opens it says what is wrong
	}
	if folder, err = filepath.EvalSymlinks(folder); err != nil {
		return "", fault.IO("cannot read", manifestPath, err)
	}
	if inside, err := filepath.Rel(folder, target); err != nil || !filepath.IsLocal(inside) {
		return "", unsafe("is a link that leaves the folder")
	}
	return path, nil
}

// openChunk opens one chunk and compares it with its row (W-CHK-7, W-CHK-8).
func openChunk(manifestPath string, manifest *ChunkManifest, one ChunkEntry, options Options) (*Episode, error) {
	path, err := resolveChunk(manifestPath, one.URI)
	if err != nil {
		return nil, err
	}
	status, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Located(broken(shard.CodeMissingFile, "W-CHK-7", "chunk %d is missing", one.ChunkIndex), path, "")
	}
	if err != nil {
		return nil, fault.IO("cannot read", path, err)
	}
	if one.Size >= 0 && status.Size() != one.Size {
		return nil, fault.Located(otherFile(one.ChunkIndex, "size"), path, "")
	}
	reader, err := shard.OpenShard(path, options.Options)
	if err != nil {
		return nil, err
	}
	ep, err := FromReader(reader)
	if err == nil {
		err = fault.Located(checkChunk(manifest, one, ep), path, "")
	}
	if err != nil {
		_ = reader.Close()
		return nil, err
	}
	return ep, nil
}

func otherFile(index int, what string) *shard.Error {
	return broken(shard.CodeReferenceMismatch, "W-CHK-7", "chunk %d is not the file that the manifest names: another %s", index, what)
}

func checkChunk(manifest *ChunkManifest, one ChunkEntry, ep *Episode) error {
	if one.Fingerprint != "" {
		found, err := Fingerprint(ep.origin.reader)
		if err != nil {
			return err
		}
		if found != one.Fingerprint {
			return otherFile(one.ChunkIndex, "fingerprint")
		}
	}
	what := ""
	switch {
	case ep.ID != manifest.EpisodeID:
		what = "episode_id"
	case ep.ChunkIndex == nil || *ep.ChunkIndex != one.ChunkIndex:
		what = "chunk_index"
	case ep.LengthT != one.LengthT:
		what = "length_T"
	case ep.TotalChunks != nil && *ep.TotalChunks != 0 && *ep.TotalChunks != len(manifest.Chunks):
		what = "total_chunks"
	// [0, 0] of a chunk without steps reads as unset.
	case ep.LengthT > 0 && one.TimestepRange != nil && (ep.TimestepRange == nil || *ep.TimestepRange != *one.TimestepRange):
		what = "timestep_range"
	default:
		return nil
	}
	return broken(shard.CodeChunkDiscontinuity, "W-CHK-8", "chunk %d states another %s than the manifest", one.ChunkIndex, what)
}

// openChunks opens the whole episode behind a manifest. It owns the reader if there is no error.
func openChunks(reader *shard.ShardReader, options Options) (*Episode, error) {
	path := reader.Name()
	manifest, err := readManifest(reader)
	if err != nil {
		return nil, fault.Located(err, path, "")
	}
	var chunks []*Episode
	for _, one := range manifest.Chunks {
		var chunk *Episode
		if chunk, err = openChunk(path, manifest, one, options); err != nil {
			break
		}
		chunks = append(chunks, chunk)
	}
	var ep *Episode
	if err == nil {
		ep, err = Join(chunks)
	}
	if err != nil {
		for _, chunk := range chunks {
			_ = chunk.Close()
		}
		return nil, fault.Located(err, path, "")
	}
	if manifest.Metadata != nil {
		ep.Metadata = manifest.Metadata
	}
	ep.origin = &origin{reader: reader}
	for _, chunk := range chunks {
		ep.origin.others = append(ep.origin.others, chunk.origin.reader)
	}
	return ep, nil
}
