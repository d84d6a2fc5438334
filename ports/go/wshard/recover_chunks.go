package wshard

import (
	"maps"
	"os"
	"path/filepath"

	"github.com/shard-format/shard/ports/go/shard"
)

// chunkManifest is the manifest of an episode whose chunks appear one by one. It does not change: a chunk more makes
// another one.
type chunkManifest struct {
	names            chunkNames
	episodeID, envID string
	// metadata is that of the whole episode.
	metadata shard.Object
	rows     []shard.Object
	steps    int64
}

// withMetadata adds that of one more part; counts of `dropped` are added up.
func (m *chunkManifest) withMetadata(metadata shard.Object) *chunkManifest {
	next := *m
	next.metadata = mergeMetadata(m.metadata, metadata)
	return &next
}

func mergeMetadata(whole, part shard.Object) shard.Object {
	merged := shard.Object{}
	maps.Copy(merged, whole)
	maps.Copy(merged, part)
	dropped := shard.Object{}
	for _, object := range []shard.Object{whole, part} {
		counts, _ := object["dropped"].(map[string]any)
		for block, value := range counts {
			before, _ := asCount(dropped[block])
			if count, ok := asCount(value); ok {
				dropped[block] = before + count
			} else {
				dropped[block] = value
			}
		}
	}
	if len(dropped) > 0 {
		merged["dropped"] = dropped
	}
	return merged
}

// withChunk adds a file that is complete.
func (m *chunkManifest) withChunk(path string, length int64) (*chunkManifest, error) {
	reader, err := shard.OpenShard(path)
	if err != nil {
		return nil, err
	}
	fingerprint, err := Fingerprint(reader)
	_ = reader.Close()
	if err != nil {
		return nil, err
	}
	digest, err := fileDigest(path)
	if err != nil {
		return nil, ioError("cannot read", path, err)
	}
	return m.withRow(path, length, shard.Object{"sha256": digest, "size": fileSize(path), "fingerprint": fingerprint}), nil
}

func (m *chunkManifest) withRow(path string, length int64, row shard.Object) *chunkManifest {
	next := *m
	row["uri"], row["chunk_index"], row["length_T"] = filepath.Base(path), len(m.rows), length
	span := stepRange(m.steps, int(length))
	row["timestep_range"] = []any{span[0], span[1]}
	next.rows = append(m.rows[:len(m.rows):len(m.rows)], row)
	next.steps += length
	return &next
}

// write replaces an earlier manifest.
func (m *chunkManifest) write(sync bool) error {
	rows := make([]any, len(m.rows))
	for i, row := range m.rows {
		row["total_chunks"] = len(m.rows)
		rows[i] = row
	}
	fields := shard.Object{
		"episode_id": m.episodeID, "env_id": m.envID, "total_chunks": len(rows), "total_timesteps": m.steps, "chunks": rows,
	}
	if m.metadata != nil {
		fields["metadata"] = m.metadata
	}
	text, err := shard.CanonicalJSON(fields)
	if err != nil {
		return err
	}
	w, err := shard.NewShardStreamWriter(m.names.manifest(), shard.ShardOptions{
		Role: shard.RoleManifest, Alignment: 64, Names: []string{metaManifest}, NoSync: !sync,
	})
	if err != nil {
		return err
	}
	if err := w.WriteEntry(metaManifest, text, shard.ContentTypeJSON); err != nil {
		_ = w.Close()
		return err
	}
	return w.Finalize()
}

// --- recovering a recording in several files

type chunkRecovery struct {
	files    recordingFiles
	names    chunkNames
	options  RecoverOptions
	manifest *chunkManifest
	found    *Recovery
	// nextStep is counted as the recorder does, with steps that are lost.
	nextStep int64
}

func recoverChunks(files recordingFiles, o RecoverOptions) (*Recovery, error) {
	r := &chunkRecovery{files: files, names: files.names(), options: o}
	if o.Out != "" {
		r.names = namesOf(o.Out)
	}
	r.found = &Recovery{Journal: files.journal(0), Out: r.names.manifest()}
	return r.found, r.run()
}

func (r *chunkRecovery) run() error {
	isElsewhere := r.names != r.files.names()
	if isElsewhere {
		if path := r.names.existing(); path != "" {
			return located(invalid("an episode with this name exists"), path, "")
		}
		if err := os.MkdirAll(r.names.folder, 0o777); err != nil {
			return ioError("cannot write", r.names.folder, err)
		}
	}
	listed, err := r.readManifest()
	if err != nil {
		return err
	}
	missing, isNew := "", isElsewhere
	for index := int64(0); ; index++ {
		path := r.files.names().chunk(index)
		switch {
		case index < int64(len(listed)): // also if it is missing, so that those after it keep their numbers
			if !exists(path) && missing == "" {
				missing = path
			}
			row := listed[index]
			length, _ := asCount(row["length_T"])
			err = r.addFinished(path, length, row)
		case r.files.hasJournal(index):
			isNew = true
			err = r.addJournal(index)
		case r.files.hasChunk(index):
			isNew = true
			var length int64
			if length, err = r.adopt(path, int(index), -1); err == nil {
				err = r.addFinished(path, length, nil)
			}
		default:
			return r.finish(missing, isNew)
		}
		if err != nil {
			return err
		}
	}
}

func (r *chunkRecovery) finish(missing string, isNew bool) error {
	if missing != "" {
		e := broken(shard.CodeMissingFile, "W-CHK-7", "a finished chunk of the recording is missing; the journals were saved as chunks")
		return located(e, missing, "")
	}
	if r.manifest == nil || len(r.manifest.rows) == 0 {
		e := invalid("%s", nothingThere)
		e.Rule = "J-1"
		return located(e, r.found.Journal, "")
	}
	if isNew {
		if err := r.manifest.write(!r.options.NoSync); err != nil {
			return err
		}
	}
	r.found.EpisodeID, r.found.Steps = r.manifest.episodeID, int(r.manifest.steps)
	return nil
}

// readManifest gives the rows of the chunks that are named already.
func (r *chunkRecovery) readManifest() ([]shard.Object, error) {
	path := r.files.names().manifest()
	if !exists(path) {
		return nil, nil
	}
	reader, err := shard.OpenShard(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = reader.Close() }()
	known, err := readManifest(reader)
	if err != nil {
		return nil, located(err, path, "")
	}
	fields, err := manifestFields(reader)
	if err != nil {
		return nil, located(err, path, "")
	}
	rows := make([]shard.Object, len(known.Chunks))
	for _, item := range fields["chunks"].([]any) {
		row := item.(map[string]any)
		index, _ := asCount(row["chunk_index"])
		rows[index] = cloneObject(row)
	}
	return rows, r.begin(known.EpisodeID, known.EnvID, known.Metadata)
}

// begin takes note of the recording that one of the files belongs to, and of its metadata.
func (r *chunkRecovery) begin(episodeID, envID string, metadata shard.Object) error {
	if r.manifest == nil {
		r.manifest = &chunkManifest{names: r.names, episodeID: episodeID, envID: envID}
	}
	if r.manifest.episodeID != episodeID {
		e := invalid("the files belong to two recordings")
		e.Expected, e.Found = r.manifest.episodeID, episodeID
		return located(e, r.found.Journal, "")
	}
	r.manifest = r.manifest.withMetadata(metadata)
	return nil
}

func (r *chunkRecovery) addFinished(path string, length int64, row shard.Object) error {
	r.nextStep += length
	return r.add(path, length, row, false)
}

// adopt checks a finished chunk that the manifest does not name yet, and gives its steps; -1 accepts any number.
func (r *chunkRecovery) adopt(path string, index int, steps int64) (int64, error) {
	chunk, err := Open(path, Options{Sidecars: NoSidecars})
	if err != nil {
		return 0, err
	}
	defer func() { _ = chunk.Close() }()
	if chunk.ChunkIndex == nil || *chunk.ChunkIndex != index || (steps >= 0 && steps != int64(chunk.LengthT)) {
		return 0, located(invalid("a file that is not this chunk of the recording is in the way; move it away"), path, "")
	}
	return int64(chunk.LengthT), r.begin(chunk.ID, chunk.EnvID, chunk.Metadata)
}

func (r *chunkRecovery) addJournal(index int64) error {
	location := r.files.journal(index)
	r.found.Journal = location
	j, err := openToRecover(location)
	if err != nil {
		known, ok := err.(*shard.Error)
		if !ok || known.Rule == "" {
			return err // the disk failed, not the content
		}
		r.found.LostBytes += fileSize(location)
		if r.found.Reason == nil {
			r.found.Reason = known
		}
		r.found.Finished = false
		return nil
	}
	defer func() { _ = j.close() }()
	hasContent := index == 0
	for _, count := range j.kept() {
		hasContent = hasContent || count > 0 // not a start and nothing more
	}
	if hasContent {
		if err := r.save(j); err != nil {
			return located(err, location, "")
		}
	}
	r.found.addLosses(j)
	return nil
}

func (r *chunkRecovery) save(j *journal) error {
	r.found.LostSteps += int(max(0, j.firstStep-r.nextStep))
	start, index := int64(0), 0
	if r.manifest != nil {
		start, index = r.manifest.steps, len(r.manifest.rows)
	}
	ep, err := j.episodeFrom(start)
	if err != nil {
		return err
	}
	r.nextStep = j.firstStep + int64(ep.LengthT)
	if err := r.begin(ep.ID, ep.EnvID, nil); err != nil {
		return err
	}
	// Also if the journal does not say that another follows: the recorder may have died just then.
	ep.ChunkIndex, ep.TimestepRange = pointer(index), stepRange(start, ep.LengthT)
	path := r.names.chunk(int64(index))
	if exists(path) {
		if _, err := r.adopt(path, index, int64(ep.LengthT)); err != nil {
			return err
		}
	} else {
		if err := j.save(ep, path, !r.options.NoSync); err != nil {
			return err
		}
		if err := r.begin(ep.ID, ep.EnvID, ep.Metadata); err != nil {
			return err
		}
	}
	return r.add(path, int64(ep.LengthT), nil, true)
}

// add names a chunk in the manifest, under its name there. row is what an earlier manifest says about it.
func (r *chunkRecovery) add(path string, length int64, row shard.Object, fromJournal bool) error {
	target := r.names.chunk(int64(len(r.manifest.rows)))
	if path != target && exists(path) {
		if os.Link(path, target) != nil { // or the file system has no links
			if err := copyFile(path, target); err != nil {
				return err
			}
		}
	}
	if row != nil {
		r.manifest = r.manifest.withRow(target, length, row)
	} else {
		next, err := r.manifest.withChunk(target, length)
		if err != nil {
			return err
		}
		r.manifest = next
	}
	r.found.Chunks = append(r.found.Chunks, RecoveredChunk{target, int(length), fromJournal})
	return nil
}
