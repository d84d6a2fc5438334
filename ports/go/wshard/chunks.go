package wshard

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

// --- writing

// ManifestPath is the manifest of an episode in chunks.
func ManifestPath(folder, name string) string {
	return filepath.Join(folder, name+"_manifest"+fileSuffix)
}

// ChunkPath is the usual file of a chunk.
func ChunkPath(folder, name string, index int) string {
	return filepath.Join(folder, fmt.Sprintf("%s_chunk_%04d%s", name, index, fileSuffix))
}

// ChunkedEpisodeWriter writes an episode chunk by chunk. Every chunk is a complete file as soon as it is written. An episode
// of that id in the folder stays until FinalizeManifest puts the new one in its place.
type ChunkedEpisodeWriter struct {
	// EnvID is that of the first chunk if it is empty.
	EnvID string
	// Options are those of the chunks.
	Options SaveOptions

	folder, id string
	size       int
	token      string
	manifest   ChunkManifest
	// total is the number of chunks, once it is known.
	total *int
	// old are the chunks of an earlier episode, which go when its manifest is replaced.
	old []string
}

// checkChunkName refuses a name that a manifest cannot hold: a reader would not follow it (S-MAN-4).
func checkChunkName(name string) error {
	if !strings.ContainsAny(name, "/\\\x00") && !scheme.MatchString(name) {
		return nil
	}
	e := invalid("a manifest cannot name chunks of this name")
	e.Expected, e.Found = "a name without a slash and without 'scheme:' at its start", shortText(name)
	return e
}

// NewChunkedEpisodeWriter starts an episode in a folder, which is made if it is missing; chunkSize is the number of steps in
// a chunk that WriteEpisodeChunked makes.
func NewChunkedEpisodeWriter(folder, episodeID string, chunkSize int) (*ChunkedEpisodeWriter, error) {
	if err := checkID(episodeID); err != nil {
		return nil, err
	}
	if err := checkChunkName(episodeID); err != nil {
		return nil, err
	}
	if chunkSize < 1 {
		return nil, invalid("a chunk has at least one step, not %d", chunkSize)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, fault.IO("cannot make the folder", folder, err)
	}
	var token [6]byte
	_, _ = rand.Read(token[:]) // it never fails
	w := &ChunkedEpisodeWriter{folder: folder, id: episodeID, size: chunkSize, token: hex.EncodeToString(token[:])}
	w.manifest.EpisodeID = episodeID
	// Without a manifest, a living process may be writing them.
	if manifest := ManifestPath(folder, episodeID); exists(manifest) {
		if err := refuseSidecars(manifest); err != nil {
			return nil, err
		}
		var err error
		if w.old, err = chunkFiles(folder, episodeID); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// chunkFiles are the files in a folder that have the name of a chunk of an episode.
func chunkFiles(folder, id string) ([]string, error) {
	pattern := regexp.MustCompile(`^` + regexp.QuoteMeta(id) + `_chunk_[0-9]{4,9}(-[0-9a-f]{12})?` + regexp.QuoteMeta(fileSuffix) + `$`)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, fault.IO("cannot list", folder, err)
	}
	var found []string
	for _, entry := range entries {
		if pattern.MatchString(entry.Name()) {
			found = append(found, filepath.Join(folder, entry.Name()))
		}
	}
	return found, nil
}

func refuseSidecars(path string) error {
	files, err := SidecarFiles(path)
	if err == nil && len(files) > 0 {
		err = fault.Located(invalid("the episode has sidecars, which belong to what it holds now: remove them, or write elsewhere"), path, "")
	}
	return err
}

// WriteChunk writes the next chunk and returns its path. Its id, index and range are set in the file; ep itself is not
// changed.
func (w *ChunkedEpisodeWriter) WriteChunk(ep *Episode) (string, error) {
	index, start := len(w.manifest.Chunks), w.manifest.TotalTimesteps
	if w.EnvID == "" {
		w.EnvID = ep.EnvID
	}
	part := *ep
	part.origin = nil
	part.ID, part.EnvID, part.ChunkIndex, part.TotalChunks = w.id, w.EnvID, &index, w.total
	// An empty chunk has no last step.
	span := [2]int{start, max(start, start+ep.LengthT-1)}
	part.TimestepRange = &span
	usual := ChunkPath(w.folder, w.id, index)
	path := strings.TrimSuffix(usual, fileSuffix) + "-" + w.token + fileSuffix
	if err := writeFile(path, &part, w.Options); err != nil {
		return "", fault.Located(err, path, "")
	}
	// A link does not replace a file of that name.
	if err := os.Link(path, usual); err == nil {
		_ = os.Remove(path)
		path = usual
	}
	row, err := chunkEntry(path, index, span, ep.LengthT)
	if err != nil {
		return "", err
	}
	w.manifest.Chunks = append(w.manifest.Chunks, row)
	w.manifest.TotalTimesteps += ep.LengthT
	return path, nil
}

// chunkEntry is the row of a manifest for a file.
func chunkEntry(path string, index int, span [2]int, length int) (ChunkEntry, error) {
	digest, err := fileDigest(path)
	if err != nil {
		return ChunkEntry{}, fault.IO("cannot read", path, err)
	}
	status, err := os.Stat(path)
	if err != nil {
		return ChunkEntry{}, fault.IO("cannot read", path, err)
	}
	reader, err := shard.OpenShard(path)
	if err != nil {
		return ChunkEntry{}, err
	}
	defer func() { _ = reader.Close() }()
	print, err := Fingerprint(reader)
	return ChunkEntry{
		URI: filepath.Base(path), SHA256: digest, Fingerprint: print, Size: status.Size(),
		ChunkIndex: index, LengthT: length, TimestepRange: &span,
	}, err
}

// WriteEpisodeChunked cuts an episode into chunks and writes them; it returns their paths.
func (w *ChunkedEpisodeWriter) WriteEpisodeChunked(ep *Episode) ([]string, error) {
	count := max(1, windowCount(ep.LengthT, w.size))
	if len(w.manifest.Chunks) == 0 {
		w.total = &count
	}
	var paths []string
	for i := range count {
		start, end := i*w.size, min((i+1)*w.size, ep.LengthT)
		part, err := ep.Slice(start, end)
		if err == nil && end < ep.LengthT {
			err = part.dropLast()
		}
		if err != nil {
			return paths, err
		}
		path, err := w.WriteChunk(part)
		if err != nil {
			return paths, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// dropLast removes the observation after the last step: only the last chunk has it (section 11).
func (ep *Episode) dropLast() error {
	for at, c := range ep.lanes() {
		if c.HasOwnClock() || c.Length != ep.LengthT+1 {
			continue
		}
		cut, err := c.Window(0, ep.LengthT)
		if err != nil {
			return err
		}
		ep.setLane(at, cut)
	}
	return nil
}

// FinalizeManifest puts the manifest in place, removes the chunks of an earlier episode and returns the manifest's path.
func (w *ChunkedEpisodeWriter) FinalizeManifest() (string, error) {
	count := len(w.manifest.Chunks)
	if count == 0 || (w.total != nil && *w.total != count) {
		return "", invalid("no chunk was written, or not all that were announced")
	}
	w.manifest.EnvID = w.EnvID
	path := ManifestPath(w.folder, w.id)
	unlock, err := lockEpisode(path)
	if err != nil {
		return "", err
	}
	defer unlock()
	if err := refuseSidecars(path); err != nil {
		return "", err
	}
	own := map[string]bool{}
	for _, one := range w.manifest.Chunks {
		file := filepath.Join(w.folder, one.URI)
		own[file] = true
		if !exists(file) {
			return "", fault.Located(broken(shard.CodeMissingFile, "W-CHK-7", "another process has replaced the episode"), file, "")
		}
	}
	if err := w.manifest.write(path, w.Options.NoSync); err != nil {
		return "", err
	}
	for _, file := range w.old {
		if own[file] {
			continue
		}
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return path, fault.IO("cannot remove", file, err)
		}
	}
	return path, nil
}

// write writes a manifest under a name, in one step.
func (m *ChunkManifest) write(path string, noSync bool) error {
	rows := make([]any, len(m.Chunks))
	for i, one := range m.Chunks {
		row := shard.Object{
			"uri": one.URI, "sha256": one.SHA256, "size": one.Size, "chunk_index": one.ChunkIndex, "length_T": one.LengthT,
			"total_chunks": len(m.Chunks), "fingerprint": one.Fingerprint,
		}
		if one.TimestepRange != nil {
			row["timestep_range"] = []any{one.TimestepRange[0], one.TimestepRange[1]}
		}
		rows[i] = row
	}
	fields := shard.Object{
		"episode_id": m.EpisodeID, "env_id": m.EnvID, "total_chunks": len(m.Chunks), "total_timesteps": m.TotalTimesteps, "chunks": rows,
	}
	if m.Metadata != nil {
		fields["metadata"] = m.Metadata
	}
	text, err := shard.CanonicalJSON(fields)
	if err != nil {
		return fault.Located(err, path, metaManifest)
	}
	w, err := shard.NewShardStreamWriter(path, shard.ShardOptions{
		Role: shard.RoleManifest, Alignment: newAlignment, Names: []string{metaManifest}, NoSync: noSync,
	})
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	if err := w.WriteEntry(metaManifest, text, shard.ContentTypeJSON); err != nil {
		return err
	}
	return w.Finalize()
}

// SaveChunked writes an episode into a folder, in chunks of some steps with a manifest, and returns the manifest's path. An
// episode of the same id that is there is replaced in one step.
func SaveChunked(folder string, ep *Episode, chunkSize int, options ...SaveOptions) (string, error) {
	w, err := NewChunkedEpisodeWriter(folder, ep.ID, chunkSize)
	if err != nil {
		return "", err
	}
	w.Options = chosenSave(options)
	if _, err := w.WriteEpisodeChunked(ep); err != nil {
		return "", err
	}
	return w.FinalizeManifest()
}

// --- reading

// ChunkedEpisodeReader gives the chunks of an episode one by one. Open gives all of them as one episode.
type ChunkedEpisodeReader struct {
	path     string
	manifest *ChunkManifest
	options  Options
}

// NewChunkedEpisodeReader reads a manifest.
func NewChunkedEpisodeReader(manifestPath string, options ...Options) (*ChunkedEpisodeReader, error) {
	given := chosen(options)
	reader, err := shard.OpenShard(manifestPath, given.Options)
	if err != nil {
		return nil, err
	}
	defer func() { _ = reader.Close() }()
	if reader.Header().Role != shard.RoleManifest {
		return nil, fault.Located(broken(shard.CodeBadProfile, "W-CHK-1", "not a manifest"), manifestPath, "")
	}
	manifest, err := readManifest(reader)
	if err != nil {
		return nil, fault.Located(err, manifestPath, "")
	}
	return &ChunkedEpisodeReader{manifestPath, manifest, given}, nil
}

// LoadManifest gives what the manifest says.
func (r *ChunkedEpisodeReader) LoadManifest() *ChunkManifest { return r.manifest }

// LoadChunk opens one chunk, after it has compared the whole file with the manifest. Close it.
func (r *ChunkedEpisodeReader) LoadChunk(index int) (*Episode, error) {
	if index < 0 || index >= len(r.manifest.Chunks) {
		return nil, fault.Located(invalid("there is no chunk %d", index), r.path, "")
	}
	one := r.manifest.Chunks[index]
	path, err := resolveChunk(r.path, one.URI)
	if err != nil {
		return nil, err
	}
	if digest, err := fileDigest(path); err == nil && one.SHA256 != "" && digest != one.SHA256 {
		return nil, fault.Located(otherFile(index, "SHA-256"), path, "")
	}
	return openChunk(r.path, r.manifest, one, r.options)
}
