package wshard

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"slices"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

// Finding is something that a checking tool reports.
type Finding struct {
	// Err has the code, the rule, the file and the entry.
	Err error
	// IsWarning is set if readers need not care.
	IsWarning bool
}

// Check looks for everything that is wrong with an episode: it reads all entries, in sidecars and chunks too, and compares
// hashes. It returns what it found, in the order in which it looked; nothing for an episode without faults.
func Check(path string, options ...Options) []Finding {
	c := &checker{options: chosen(options)}
	c.options.Sidecars = ReadSidecars
	reader, err := shard.OpenShard(path, c.options.Options)
	if err != nil {
		return []Finding{{Err: err}}
	}
	if reader.Header().Role == shard.RoleManifest {
		c.checkChunks(reader)
		_ = reader.Close()
		return c.found
	}
	_ = reader.Close()
	ep, err := Open(path, c.options)
	if c.add(err) {
		return c.found
	}
	defer func() { _ = ep.Close() }()
	for _, warning := range ep.Warnings {
		c.add(warning)
	}
	c.checkEpisode(ep)
	c.checkSidecars(ep)
	return c.found
}

type checker struct {
	options Options
	found   []Finding
}

// add notes an error; it reports whether there was one.
func (c *checker) add(err error) bool {
	if err != nil {
		c.found = append(c.found, Finding{Err: err})
	}
	return err != nil
}

func (c *checker) checkChunks(reader *shard.ShardReader) {
	manifest, err := readManifest(reader)
	if c.add(fault.Located(err, reader.Name(), "")) {
		return
	}
	for _, one := range manifest.Chunks {
		// Hashes come first: a file that is not the one that was written is not parsed.
		path, err := resolveChunk(reader.Name(), one.URI)
		if c.add(err) {
			continue
		}
		if digest, err := fileDigest(path); err == nil && one.SHA256 != "" && digest != one.SHA256 {
			c.add(fault.Located(otherFile(one.ChunkIndex, "SHA-256"), path, ""))
			continue
		}
		chunk, err := openChunk(reader.Name(), manifest, one, c.options)
		if c.add(err) {
			continue
		}
		c.checkEpisode(chunk)
		_ = chunk.Close()
	}
	ep, err := Open(reader.Name(), c.options)
	if err != nil {
		if len(c.found) == 0 {
			c.add(err)
		}
		return
	}
	for _, warning := range ep.Warnings {
		c.add(warning)
	}
	_ = ep.Close()
}

func fileDigest(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// checkEpisode reads every lane of one file, and checks the rules that only tools check.
func (c *checker) checkEpisode(ep *Episode) {
	lanes := ep.lanes()
	for _, at := range inFileOrder(lanes) {
		c.checkChannel(lanes[at])
	}
	for _, one := range []*Channel{ep.Rewards, ep.Terminations, ep.Truncations, ep.Ticks, ep.TimestampsNS} {
		if one != nil {
			c.checkChannel(one)
		}
	}
	for _, key := range sortedKeys(ep.Residuals) {
		residual := ep.Residuals[key]
		_, err := residual.Values.Data()
		if err == nil && residual.Scales != nil {
			_, err = residual.Scales.Data()
		}
		c.add(err)
	}
	for _, key := range sortedKeys(ep.Labels) {
		_, _, err := ep.Labels[key].Read()
		c.add(err)
	}
	for _, name := range sortedKeys(ep.Extras) {
		_, err := ep.Extras[name].Data()
		c.add(err)
	}
	_, err := ep.ReadProvenance()
	c.add(err)
	c.add(fault.Located(checkUnion(ep), ep.origin.reader.Name(), BlockDone))
	if ep.TimestampsNS != nil {
		c.checkOrder(ep.TimestampsNS, func() ([]int64, error) { return Values[int64](ep.TimestampsNS) })
	}
	if ep.origin.reader.HasEntry(MetaIdentity) {
		_, err := ep.origin.reader.VerifyIdentity()
		c.add(err)
	}
}

func (c *checker) checkChannel(one *Channel) {
	if _, err := one.Data(); c.add(err) {
		return
	}
	switch one.layout() {
	case Text:
		_, err := one.Strings()
		c.add(err)
	case Video:
		if !one.statesSize() {
			e := broken(shard.CodeMissingExtra, "W-VID-6", "the pictures were not decoded, so their sizes were not checked")
			c.found = append(c.found, Finding{Err: fault.Located(e, one.path, one.names.data), IsWarning: true})
		}
		c.add(one.CheckPictures())
	}
	c.checkOrder(one, one.Timestamps)
}

// checkOrder reports times that run backwards (W-TIM-4).
func (c *checker) checkOrder(one *Channel, read func() ([]int64, error)) {
	times, err := read()
	if c.add(err) || slices.IsSorted(times) {
		return
	}
	e := fault.Located(broken(shard.CodeBadValue, "W-TIM-4", "the times run backwards"), one.path, one.names.data)
	c.found = append(c.found, Finding{Err: e, IsWarning: true})
}

// checkUnion checks that done is the union of the other ends (W-END-3).
func checkUnion(ep *Episode) error {
	reader := ep.origin.reader
	var union []byte
	for _, name := range []string{BlockTerminated, BlockTruncated} {
		if !reader.HasEntry(name) {
			continue
		}
		data, err := reader.ReadEntry(name)
		if err != nil || len(data) != ep.LengthT || len(data) == 0 {
			continue // absent, or reported with its lane
		}
		if union == nil {
			union = make([]byte, len(data))
		}
		for i, value := range data {
			union[i] |= value
		}
	}
	if union == nil || !reader.HasEntry(BlockDone) {
		return nil
	}
	done, err := reader.ReadEntry(BlockDone)
	if err != nil || len(done) == 0 {
		return err
	}
	if len(done) != ep.LengthT {
		return sizeMismatch("W-END-1", "the block does not have one value for each step", ep.LengthT, len(done))
	}
	for i := range done {
		if (done[i] != 0) != (union[i] != 0) {
			return broken(shard.CodeBadValue, "W-END-3", "'done' is not the union of the other ends at step %d", i)
		}
	}
	return nil
}

// checkSidecars compares the identities that sidecars state (W-SID-4).
func (c *checker) checkSidecars(ep *Episode) {
	if len(ep.origin.others) == 0 {
		return
	}
	identity, err := ep.origin.reader.Identity()
	if c.add(err) {
		return
	}
	for _, sidecar := range ep.origin.others {
		c.add(fault.Located(checkIdentity(sidecar, ep.origin.reader, identity), sidecar.Name(), MetaSidecar))
	}
}

// checkIdentity checks that a sidecar that fits an episode states its identity, of either version.
func checkIdentity(sidecar, base *shard.ShardReader, identity shard.Identity) error {
	bases, err := readBinding(sidecar)
	if err != nil {
		return err
	}
	own, err := Fingerprint(base)
	if err != nil {
		return err
	}
	stated := bases[0]
	for _, one := range bases {
		if one.fingerprint == own {
			stated = one
			break
		}
	}
	first := identity
	first.Version = 1
	if stated.identity == "" || stated.identity == identity.Digest() || stated.identity == first.Digest() {
		return nil
	}
	e := broken(shard.CodeIdentityMismatch, "W-SID-4", "the sidecar was made for an episode with other content")
	e.Expected, e.Found = stated.identity, identity.Digest()
	return e
}
