package wshard

import (
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

// withMetadata is the manifest with the metadata of one more part; counts of `dropped` are added up. Manifests of
// recordings do not change: one that cannot be written leaves the one before.
func (m ChunkManifest) withMetadata(metadata shard.Object) ChunkManifest {
	merged := shard.Object{}
	maps.Copy(merged, m.Metadata)
	maps.Copy(merged, metadata)
	dropped := shard.Object{}
	for _, object := range []shard.Object{m.Metadata, metadata} {
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
	m.Metadata = merged
	return m
}

// withChunk is the manifest with one more file. known is what an earlier manifest says about the file, which saves hashing
// it.
func (m ChunkManifest) withChunk(path string, length int, known *ChunkEntry) (ChunkManifest, error) {
	index, span := len(m.Chunks), *stepRange(int64(m.TotalTimesteps), length)
	var row ChunkEntry
	if known != nil && known.SHA256 != "" && known.Fingerprint != "" && known.Size >= 0 {
		row = *known
		row.URI, row.ChunkIndex, row.LengthT, row.TimestepRange = filepath.Base(path), index, length, &span
	} else {
		var err error
		if row, err = chunkEntry(path, index, span, length); err != nil {
			return m, err
		}
	}
	m.Chunks = append(slices.Clip(m.Chunks), row)
	m.TotalTimesteps += length
	return m, nil
}

// --- recovering a recording in several files

type chunkRecovery struct {
	files    recordingFiles
	names    chunkNames
	options  RecoverOptions
	manifest *ChunkManifest
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
			return fault.Located(invalid("an episode with this name exists"), path, "")
		}
		if err := os.MkdirAll(r.names.folder, 0o777); err != nil {
			return fault.IO("cannot write", r.names.folder, err)
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
			err = r.addFinished(path, listed[index].LengthT, &listed[index])
		case r.files.hasJournal(index):
			isNew = true
			err = r.addJournal(index)
		case r.files.hasChunk(index):
			isNew = true
			var length int
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
		return fault.Located(e, missing, "")
	}
	if r.manifest == nil || len(r.manifest.Chunks) == 0 {
		e := invalid("%s", nothingThere)
		e.Rule = "J-1"
		return fault.Located(e, r.found.Journal, "")
	}
	if isNew {
		if err := r.manifest.write(r.names.manifest(), r.options.NoSync); err != nil {
			return err
		}
	}
	r.found.EpisodeID, r.found.Steps = r.manifest.EpisodeID, r.manifest.TotalTimesteps
	return nil
}

// readManifest gives the chunks that are named already.
func (r *chunkRecovery) readManifest() ([]ChunkEntry, error) {
	path := r.files.names().manifest()
	if !exists(path) {
		return nil, nil
	}
	reader, err := NewChunkedEpisodeReader(path)
	if err != nil {
		return nil, err
	}
	known := reader.LoadManifest()
	return known.Chunks, r.begin(known.EpisodeID, known.EnvID, known.Metadata)
}

// begin takes note of the recording that one of the files belongs to, and of its metadata.
func (r *chunkRecovery) begin(episodeID, envID string, metadata shard.Object) error {
	if r.manifest == nil {
		r.manifest = &ChunkManifest{EpisodeID: episodeID, EnvID: envID}
	}
	if r.manifest.EpisodeID != episodeID {
		e := invalid("the files belong to two recordings")
		e.Expected, e.Found = r.manifest.EpisodeID, episodeID
		return fault.Located(e, r.found.Journal, "")
	}
	r.manifest = pointer(r.manifest.withMetadata(metadata))
	return nil
}

func (r *chunkRecovery) addFinished(path string, length int, known *ChunkEntry) error {
	r.nextStep += int64(length)
	return r.add(path, length, known, false)
}

// adopt checks a finished chunk that the manifest does not name yet, and gives its steps; -1 accepts any number.
func (r *chunkRecovery) adopt(path string, index, steps int) (int, error) {
	chunk, err := Open(path, Options{Sidecars: NoSidecars})
	if err != nil {
		return 0, err
	}
	defer func() { _ = chunk.Close() }()
	if chunk.ChunkIndex == nil || *chunk.ChunkIndex != index || (steps >= 0 && steps != chunk.LengthT) {
		return 0, fault.Located(invalid("a file that is not this chunk of the recording is in the way; move it away"), path, "")
	}
	if err := chunk.Reader().Verify(); err != nil {
		return 0, err
	}
	return chunk.LengthT, r.begin(chunk.ID, chunk.EnvID, chunk.Metadata)
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
			return fault.Located(err, location, "")
		}
	}
	r.found.addLosses(j)
	return nil
}

func (r *chunkRecovery) save(j *journal) error {
	r.found.LostSteps += int(max(0, j.firstStep-r.nextStep))
	start, index := int64(0), 0
	if r.manifest != nil {
		start, index = int64(r.manifest.TotalTimesteps), len(r.manifest.Chunks)
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
		if _, err := r.adopt(path, index, ep.LengthT); err != nil {
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
	return r.add(path, ep.LengthT, nil, true)
}

// add names a chunk in the manifest, under its name there. known is what an earlier manifest says about it.
func (r *chunkRecovery) add(path string, length int, known *ChunkEntry, fromJournal bool) error {
	target := r.names.chunk(int64(len(r.manifest.Chunks)))
	if path != target && exists(path) {
		if os.Link(path, target) != nil { // or the file system has no links
			if err := copyFile(path, target); err != nil {
				return err
			}
		}
	}
	next, err := r.manifest.withChunk(target, length, known)
	if err != nil {
		return err
	}
	r.manifest = &next
	r.found.Chunks = append(r.found.Chunks, RecoveredChunk{target, length, fromJournal})
	return nil
}
