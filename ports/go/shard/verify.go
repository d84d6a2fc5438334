package shard

import (
	"sort"

	"github.com/cespare/xxhash/v2"
)

// Warnings gives the codes, sorted, of what a checking tool reports about a file that can be read. It reads the bytes
// between blocks.
func (r *ShardReader) Warnings() ([]Code, error) {
	found := map[Code]bool{}
	alignment := uint64(max(r.header.Alignment, 1))
	before := uint64(0)
	for i := range r.index.count {
		e := r.index.entry(i)
		if xxhash.Sum64(r.index.nameBytes(i)) != e.NameHash {
			found[WarnNameHashMismatch] = true
		}
		if e.DiskSize > 0 && e.DataOffset%alignment != 0 {
			found[WarnMisaligned] = true
		}
		if e.OrigSize > 0 && !r.hasChecksum(e) {
			found[WarnNoChecksum] = true
		}
		if e.DataOffset < before {
			found[WarnNotAscending] = true
		}
		if e.Flags&^uint16(knownEntryFlags) != 0 {
			found[WarnNonzeroReserved] = true
		}
		before = e.DataOffset
	}
	if r.header.Flags&^uint16(knownFlags) != 0 || !isZero(r.head[48:headerSize]) {
		found[WarnNonzeroReserved] = true
	}
	if err := r.checkGaps(found); err != nil {
		return nil, located(err, r.name, "")
	}
	codes := make([]Code, 0, len(found))
	for code := range found {
		codes = append(codes, code)
	}
	sort.Slice(codes, func(a, b int) bool { return codes[a] < codes[b] })
	return codes, nil
}

func isZero(data []byte) bool {
	for _, b := range data {
		if b != 0 {
			return false
		}
	}
	return true
}

// checkGaps looks at the bytes of the data section that belong to no block.
func (r *ShardReader) checkGaps(found map[Code]bool) error {
	const largestAlignment, piece = 64, 1 << 16
	rows := make([]IndexEntry, 0, r.index.count+1)
	for i := range r.index.count {
		if e := r.index.entry(i); e.DiskSize > 0 {
			rows = append(rows, e)
		}
	}
	sort.Slice(rows, func(a, b int) bool { return rows[a].DataOffset < rows[b].DataOffset })
	end := r.header.SchemaOffset
	if end == 0 || end > r.header.TotalFileSize {
		end = r.header.TotalFileSize
	}
	rows = append(rows, IndexEntry{DataOffset: end})
	at := r.header.DataSectionOffset
	for _, e := range rows {
		if e.DataOffset > at {
			if e.DataOffset-at >= largestAlignment {
				found[WarnUnreferencedBytes] = true
			}
			for from := at; from < e.DataOffset; from += piece {
				gap, err := r.readAt(from, min(piece, e.DataOffset-from))
				if err != nil {
					return err
				}
				if !isZero(gap) {
					found[WarnNonzeroPadding] = true
				}
			}
		}
		at = max(at, e.DataOffset+e.DiskSize)
	}
	return nil
}

// Verify reads and checks every entry, several at once, the schema section, and what the role promises.
//
// The work is bounded by the file: blocks do not overlap, and a stored byte becomes at most 32 768 bytes. Each entry has
// at most Limits.MaxDecompressedBytes, so that limit bounds memory, and together with the number of entries the time.
func (r *ShardReader) Verify() error {
	err := inParallel(r.index.count, func(i int) error { return r.scan(i, func([]byte) {}) })
	if err != nil {
		return err
	}
	if _, err := r.Schema(); err != nil {
		return err
	}
	return located(r.verifyProfile(), r.name, "")
}

// verifyProfile checks S-ROL-2 and S-ROL-3.
func (r *ShardReader) verifyProfile() error {
	switch r.header.Role {
	case RoleManifest:
		if _, err := r.manifest(); err != nil {
			e := broken(CodeBadProfile, "S-ROL-2", "not a manifest, as its role promises")
			e.Err = err
			return e
		}
	case RoleWSHARD:
		if _, err := r.ReadJSON(episodeEntry); err != nil {
			e := broken(CodeBadProfile, "S-ROL-3", "not an episode, as its role promises")
			e.Err = err
			return e
		}
	}
	return nil
}
