package wshard

import (
	"math/bits"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

// Profile says for whom blocks are compressed.
type Profile int

const (
	// ProfileNone compresses as SaveOptions.Compression says, in one frame for each block.
	ProfileNone Profile = iota
	// ProfileTraining stores zstd frames of whole steps, with filters where they make a block smaller: windows are read fast.
	ProfileTraining
)

const (
	// frameBytes is about the content of a frame: large enough to compress well, small enough that a window wastes little.
	frameBytes = 192 << 10
	// fewestDeltaSteps is how many steps differences need in a frame to pay.
	fewestDeltaSteps   = 16
	largestDeltaFrame  = 32 << 20
	largestFilterFrame = 64 << 20
	sampleBytes        = 512 << 10
	// worthAFilter is what a filter must save to be taken: simpler is faster.
	worthAFilter = 0.97
	newAlignment = 64
)

// SaveOptions says how to store an episode. The zero value stores new blocks raw, in the canonical form, and blocks of a
// loaded file as that file has them.
type SaveOptions struct {
	// Compression of blocks: CompressionZstd or CompressionLZ4. Texts, and pictures that are encoded already, stay raw.
	Compression shard.Codec
	// Level of zstd; 0 for 3.
	Level   int
	Profile Profile
	// Identity adds meta/identity. A loaded episode that has one keeps it.
	Identity bool
	// NoSync skips syncing to disk: faster, but a power failure can lose the file.
	NoSync bool
}

func chosenSave(options []SaveOptions) SaveOptions {
	if len(options) > 0 {
		return options[0]
	}
	return SaveOptions{}
}

// Save writes an episode as one file. The file appears under its name when it is complete; until then, and after an error,
// what was there before stays. Sidecars of the file that is replaced are kept if they still fit, and otherwise Save refuses.
func Save(path string, ep *Episode, options ...SaveOptions) error {
	chosen := chosenSave(options)
	unlock, err := lockEpisode(path)
	if err != nil {
		return err
	}
	defer unlock()
	sidecars, err := settle(path)
	if err == nil {
		err = ep.checkCurrent(path)
	}
	if err != nil {
		return fault.Located(err, path, "")
	}
	if len(sidecars) > 0 {
		err = replaceWithSidecars(path, ep, sidecars, chosen)
	} else {
		err = writeFile(path, ep, chosen)
	}
	if err != nil {
		return fault.Located(err, path, "")
	}
	return ep.noteSaved(path)
}

// checkCurrent refuses to save an episode over the file that it was loaded from if another process has changed that file:
// the change would be undone.
func (ep *Episode) checkCurrent(path string) error {
	if ep.origin == nil || !samePath(ep.origin.reader.Name(), path) || !exists(path) {
		return nil
	}
	own, err := Fingerprint(ep.origin.reader)
	if err != nil {
		return err
	}
	found, err := fileFingerprint(path)
	if err != nil {
		return err
	}
	if found != own && found != ep.origin.saved {
		return invalid("the file has changed since the episode was opened: open it again, or save under another name")
	}
	return nil
}

// noteSaved remembers what was saved over the file that an episode was loaded from.
func (ep *Episode) noteSaved(path string) (err error) {
	if ep.origin != nil && samePath(ep.origin.reader.Name(), path) {
		ep.origin.saved, err = fileFingerprint(path)
	}
	return err
}

func fileFingerprint(path string) (string, error) {
	reader, err := shard.OpenShard(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = reader.Close() }()
	return Fingerprint(reader)
}

// writeFile writes an episode under a name, and looks at no other file.
func writeFile(path string, ep *Episode, options SaveOptions) error {
	p := newPlanner(ep)
	entries, err := p.plan()
	if err != nil {
		return err
	}
	given := shard.ShardOptions{
		Role: shard.RoleWSHARD, Alignment: newAlignment, Compression: options.Compression, Level: options.Level,
		Identity: options.Identity, NoSync: options.NoSync, Names: make([]string, len(entries)),
	}
	if options.Profile == ProfileTraining {
		given.Compression = shard.CompressionZstd
	}
	for i, entry := range entries {
		given.Names[i] = entry.name
	}
	if ep.origin != nil {
		given.Alignment = ep.origin.reader.Header().Alignment
	}
	if p.origin != nil {
		header := p.origin.reader.Header()
		given.Identity = given.Identity || p.origin.reader.HasEntry(MetaIdentity)
		if schema, err := p.origin.reader.Schema(); err == nil { // one that cannot be parsed is not kept
			given.Schema = schema
		}
		if given.Compression == shard.CompressionNone && header.CompressionDefault <= shard.CompressionLZ4 {
			given.Compression = header.CompressionDefault
		}
	}
	w, err := shard.NewShardStreamWriter(path, given)
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	for _, entry := range entries {
		if p.isCopied(entry, options) {
			kept := shard.EntryOptions{ContentType: entry.contentType, TagBits: entry.tagBits}
			if err := w.CopyEntry(p.origin.reader, entry.name, kept); err != nil {
				return err
			}
			continue
		}
		data, err := readBlock(entry.content)
		if err != nil {
			return fault.Located(err, "", entry.name)
		}
		form := entry.storage(data, options)
		form.ContentType, form.TagBits, form.HasCodec = entry.contentType, entry.tagBits, true
		if err := w.WriteEntryWith(entry.name, data, form); err != nil {
			return err
		}
	}
	return w.Finalize()
}

// isCopied tells whether an entry stays in the form in which the file stores it that the episode was loaded from.
func (p *planner) isCopied(entry *plannedEntry, options SaveOptions) bool {
	return !options.compresses() && p.holds(entry.content, entry.name)
}

func (o SaveOptions) compresses() bool {
	return o.Compression != shard.CompressionNone || o.Profile != ProfileNone
}

// storage says how a new entry is stored.
func (entry *plannedEntry) storage(data []byte, options SaveOptions) shard.EntryOptions {
	var form shard.EntryOptions
	if entry.isJSON || entry.isEncoded || entry.dtype == "" || !options.compresses() {
		return form
	}
	form.Codec = options.Compression
	if options.Profile == ProfileTraining {
		form.Codec = shard.CompressionZstd
		form.FrameBytes, form.Filters = trainingForm(entry, data, options.Level)
	}
	return form
}

// trainingForm chooses the content of a frame and the filters that make a block smallest.
func trainingForm(entry *plannedEntry, data []byte, level int) (int, *shard.Filters) {
	width, step := entry.dtype.Size(), int(entry.step)
	candidates := []*shard.Filters{nil}
	if width == 1 {
		candidates = append(candidates, &shard.Filters{DeltaOrder: 1, DeltaWidth: 1, DeltaRow: step})
	} else {
		candidates = append(candidates, &shard.Filters{PlanesWidth: width},
			&shard.Filters{DeltaOrder: 1, DeltaWidth: width, DeltaRow: step, PlanesWidth: width},
			&shard.Filters{DeltaOrder: 2, DeltaWidth: width, DeltaRow: step, PlanesWidth: width})
	}
	bestFrame, bestRatio := 0, 0.0
	var best *shard.Filters
	for i, filters := range candidates {
		frame := frameFor(step, len(data), filters != nil)
		if filters != nil && (step%width != 0 || max(frame, step) > largestFilterFrame || (frame == 0 && len(data) > largestFilterFrame)) {
			continue
		}
		size := min(len(data), max(sampleBytes/step*step, step))
		encoded, err := shard.EncodedSize(data[:size], level, filters)
		if err != nil || size == 0 {
			continue
		}
		if ratio := float64(encoded) / float64(size); i == 0 || ratio < bestRatio*worthAFilter {
			bestFrame, bestRatio, best = frame, ratio, filters
		}
	}
	return bestFrame, best
}

// frameFor is the content of a frame: whole steps, and a power of two of them, so that windows of usual lengths start on
// frames more often; 0 for one frame.
func frameFor(step, size int, isFiltered bool) int {
	steps := max(1, frameBytes/step)
	if isFiltered && steps < fewestDeltaSteps {
		steps = max(steps, min(fewestDeltaSteps, largestDeltaFrame/step))
	}
	steps = 1 << (bits.Len(uint(steps)) - 1)
	if frame := steps * step; frame < size {
		return frame
	}
	return 0
}
