package shard

import "hash/crc32"

const (
	// worthGoroutines is the size of content from which its frames are decoded by several goroutines.
	worthGoroutines = 1 << 18
	// scanPiece is how much of a raw entry is read at once.
	scanPiece = 1 << 20
	// scanLarge is the size from which compressed entries are scanned one after another, which bounds memory.
	scanLarge = 64 << 20
	// mostStored is how many times the limit of decompressed bytes a compressed entry may take in the file.
	mostStored = 4
	// usualSeekTable is the size of a seek table of 300 frames.
	usualSeekTable = 4096
	// mostKept is the number of entries whose seek tables a reader keeps, and mostFramesKept the largest that it keeps.
	mostKept       = 64
	mostFramesKept = 1 << 12
)

// codec tells how an entry is stored (S-CMP-1, and S-FLT-1 about the codec).
func (r *ShardReader) codec(e IndexEntry) (Codec, error) {
	codec := CodecNone
	if e.Flags&entryCompressed != 0 {
		switch e.Flags & (entryZstd | entryLZ4) {
		case entryZstd:
			codec = CodecZstd
		case entryLZ4:
			codec = CodecLZ4
		case 0:
			codec = r.header.CompressionDefault
		}
		if codec != CodecZstd && codec != CodecLZ4 {
			return 0, broken(CodeUnknownCodec, "S-CMP-1", "the codec of the entry cannot be determined").
				found("flags 0x%04x and default %d", e.Flags, r.header.CompressionDefault)
		}
	}
	if e.Flags&entryFiltered != 0 && codec != CodecZstd {
		return 0, badFilter("S-FLT-1", "a filtered entry is not compressed with zstd").found("%s", codec)
	}
	return codec, nil
}

func (r *ShardReader) hasChecksum(e IndexEntry) bool {
	return r.header.Flags&flagChecksums != 0 || e.CRC32C != 0
}

// checkSizes makes all checks that need no data, before memory is made for the content.
func (r *ShardReader) checkSizes(e IndexEntry) (Codec, error) {
	codec, err := r.codec(e)
	if err != nil {
		return 0, err
	}
	if codec == CodecNone {
		if e.DiskSize != e.OrigSize {
			return 0, broken(CodeSizeMismatch, "S-DAT-4", "an uncompressed entry has two different sizes").
				expected("%d bytes", e.OrigSize).found("%d", e.DiskSize)
		}
		return codec, nil
	}
	if e.OrigSize > r.limits.MaxDecompressedBytes {
		return 0, broken(CodeLimitExceeded, "S-CMP-2", "the entry is too large after decompression").
			expected("at most %d bytes", r.limits.MaxDecompressedBytes).found("%d", e.OrigSize)
	}
	// No rule, but memory: skippable frames may be any number of bytes.
	if e.DiskSize/mostStored > r.limits.MaxDecompressedBytes {
		return 0, broken(CodeLimitExceeded, "", "the stored bytes of a compressed entry are too many").
			expected("at most %d times %d", mostStored, r.limits.MaxDecompressedBytes).found("%d", e.DiskSize)
	}
	// Divided, because a product could wrap.
	reachable := (e.OrigSize+zstdExpansion-1)/zstdExpansion <= e.DiskSize
	if codec == CodecLZ4 {
		reachable = e.OrigSize <= lz4Slack || (e.OrigSize-lz4Slack+lz4Expansion-1)/lz4Expansion <= e.DiskSize
	}
	if !reachable {
		return 0, broken(CodeSizeMismatch, "S-CMP-8", "the stored bytes cannot expand to this size").
			found("%d bytes for %d", e.DiskSize, e.OrigSize)
	}
	return codec, nil
}

func (r *ShardReader) readAll(e IndexEntry) ([]byte, error) {
	data, err := r.decode(e)
	if err != nil {
		return nil, err
	}
	return data, r.verify(e, data)
}

// decode reads an entry without comparing it with its checksum.
func (r *ShardReader) decode(e IndexEntry) ([]byte, error) {
	codec, err := r.checkSizes(e)
	if err != nil {
		return nil, err
	}
	if codec == CodecNone {
		return r.readAt(e.DataOffset, e.DiskSize)
	}
	data := make([]byte, e.OrigSize)
	return data, r.decodeInto(e, codec, data)
}

// decodeInto fills memory of exactly the size of an entry whose sizes are checked.
func (r *ShardReader) decodeInto(e IndexEntry, codec Codec, out []byte) error {
	if codec == CodecNone {
		return r.readInto(e.DataOffset, out)
	}
	if e.DiskSize == 0 {
		return broken(CodeBadCompression, "S-CMP-4", "a compressed entry has no bytes")
	}
	stored, done, err := r.stored(e.DataOffset, e.DiskSize)
	if err != nil {
		return err
	}
	defer done()
	if codec == CodecLZ4 {
		return decodeLZ4(stored, out)
	}
	return r.decodeZstd(e, stored, out)
}

// scan reads and checks an entry and hands its content to use, piece by piece. It keeps no more than one piece of a raw
// entry in memory.
func (r *ShardReader) scan(i int, use func(piece []byte)) error {
	e := r.index.entry(i)
	codec, err := r.checkSizes(e)
	if err == nil && codec == CodecNone {
		err = r.scanRaw(e, use)
	} else if err == nil {
		if e.OrigSize >= scanLarge {
			r.large.Lock()
			defer r.large.Unlock()
		}
		buffer, done := takeBuffer(e.OrigSize)
		defer done()
		if err = r.decodeInto(e, codec, buffer); err == nil {
			use(buffer)
			err = r.verify(e, buffer)
		}
	}
	return located(err, r.name, r.index.name(i))
}

func (r *ShardReader) scanRaw(e IndexEntry, use func(piece []byte)) error {
	buffer, done := takeBuffer(min(e.DiskSize, scanPiece))
	defer done()
	sum := uint32(0)
	for at := uint64(0); at < e.DiskSize; at += scanPiece {
		piece := buffer[:min(scanPiece, e.DiskSize-at)]
		if err := r.readInto(e.DataOffset+at, piece); err != nil {
			return err
		}
		sum = crc32.Update(sum, castagnoli, piece)
		use(piece)
	}
	return r.compareChecksum(e, sum)
}

func (r *ShardReader) verify(e IndexEntry, data []byte) error {
	if !r.checks || !r.hasChecksum(e) {
		return nil
	}
	return r.compareChecksum(e, ComputeChecksum(data))
}

func (r *ShardReader) compareChecksum(e IndexEntry, found uint32) error {
	if r.checks && r.hasChecksum(e) && found != e.CRC32C {
		return broken(CodeChecksumMismatch, "S-CRC-1", "CRC-32C mismatch: the data is damaged").
			expected("%08x", e.CRC32C).found("%08x", found)
	}
	return nil
}

// decodeZstd decodes an entry: any frames; frames with a seek table; or one filtered frame.
func (r *ShardReader) decodeZstd(e IndexEntry, stored, out []byte) error {
	var filters *Filters
	var leading uint64
	var err error
	if e.Flags&entryFiltered != 0 {
		if leading, err = leadingSize(stored, e.DiskSize); err != nil {
			return err
		}
		if filters, err = parseFilters(stored[8:leading]); err != nil {
			return err
		}
	}
	if size := seekTableSize(stored, e.DiskSize); size > 0 {
		table, err := parseSeekTable(stored[e.DiskSize-size:], e.DiskSize, e.OrigSize, leading)
		if err != nil {
			return err
		}
		if table != nil {
			return r.decodeFrames(table, filters, 0, len(table.frames), stored[leading:], out)
		}
	}
	if filters == nil {
		return decodeZstd(stored, out, r.limits.MaxWindowBytes)
	}
	frames, err := walkFrames(stored[leading:], r.limits.MaxWindowBytes)
	if err != nil {
		return err
	}
	if len(frames) != 1 || frames[0].Start != 0 || frames[0].End != len(stored)-int(leading) {
		return badFilter("S-FLT-1", "a filtered entry without a seek table is not one frame")
	}
	if err := filters.checkFrame(uint64(len(out))); err != nil {
		return err
	}
	count, err := decodeFrame(stored[leading:], frames[0], out)
	if err != nil {
		return err
	}
	if err := exactly(count, len(out)); err != nil {
		return err
	}
	filters.undo(out)
	return nil
}

// decodeFrames decodes the frames from first to last (not included) of a seekable entry, several at once if they are
// large. stored starts with the first of them, and out with its content.
func (r *ShardReader) decodeFrames(table *seekTable, filters *Filters, first, last int, stored, out []byte) error {
	if first == last {
		return nil
	}
	storedStart, start := table.stored[first], table.content[first]
	decode := func(i int) error {
		i += first
		part := stored[table.stored[i]-storedStart : table.stored[i+1]-storedStart]
		return r.decodePart(table, filters, i, part, out[table.content[i]-start:table.content[i+1]-start])
	}
	if len(out) >= worthGoroutines {
		return inParallel(last-first, decode)
	}
	for i := range last - first {
		if err := decode(i); err != nil {
			return err
		}
	}
	return nil
}

// decodePart decodes one frame of a seekable entry.
func (r *ShardReader) decodePart(table *seekTable, filters *Filters, number int, stored, out []byte) error {
	if filters != nil {
		if err := filters.checkFrame(uint64(len(out))); err != nil {
			return err
		}
	}
	if err := table.decodeTo(number, stored, out, r.limits.MaxWindowBytes); err != nil {
		return err
	}
	if filters != nil {
		filters.undo(out)
	}
	return nil
}

// filters reads the description of an entry's filters, and the size of the frame that holds it.
func (r *ShardReader) filters(e IndexEntry) (*Filters, uint64, error) {
	if e.Flags&entryFiltered == 0 {
		return nil, 0, nil
	}
	if _, err := r.codec(e); err != nil {
		return nil, 0, err
	}
	head, err := r.readAt(e.DataOffset, min(e.DiskSize, 8+maxDescription))
	if err != nil {
		return nil, 0, err
	}
	size, err := leadingSize(head, e.DiskSize)
	if err != nil {
		return nil, 0, err
	}
	filters, err := parseFilters(head[8:size])
	return filters, size, err
}

// seekTable reads the table of a seekable entry; nil for any other.
func (r *ShardReader) seekTable(e IndexEntry) (*seekTable, error) {
	codec, err := r.codec(e)
	if err != nil || codec != CodecZstd {
		return nil, err
	}
	// Mostly one read brings the whole table.
	tail, err := r.readTail(e, min(e.DiskSize, usualSeekTable))
	if err != nil {
		return nil, err
	}
	size := seekTableSize(tail, e.DiskSize)
	if size == 0 {
		return nil, nil
	}
	if size > r.limits.MaxIndexBytes {
		return nil, broken(CodeLimitExceeded, "", "the seek table is too large").
			expected("at most %d bytes", r.limits.MaxIndexBytes).found("%d", size)
	}
	if size > uint64(len(tail)) {
		if tail, err = r.readTail(e, size); err != nil {
			return nil, err
		}
	}
	_, leading, err := r.filters(e)
	if err != nil {
		return nil, err
	}
	return parseSeekTable(tail[uint64(len(tail))-size:], e.DiskSize, e.OrigSize, leading)
}

func (r *ShardReader) readTail(e IndexEntry, size uint64) ([]byte, error) {
	return r.readAt(e.DataOffset+e.DiskSize-size, size)
}

// frames is what ranges of an entry need to know; table is nil for an entry that is not seekable.
type frames struct {
	table   *seekTable
	filters *Filters
}

// framesOf gives the table and the filters of an entry, and keeps those of some entries: windows of one entry follow one
// another.
func (r *ShardReader) framesOf(e IndexEntry) (frames, error) {
	r.mutex.Lock()
	found, there := r.kept[e.DataOffset]
	r.mutex.Unlock()
	if there {
		return found, nil
	}
	table, err := r.seekTable(e)
	if err != nil {
		return frames{}, err
	}
	filters, _, err := r.filters(e)
	if err != nil {
		return frames{}, err
	}
	found = frames{table, filters}
	if table != nil && len(table.frames) <= mostFramesKept {
		r.mutex.Lock()
		if r.kept == nil || len(r.kept) >= mostKept {
			r.kept = map[uint64]frames{}
		}
		r.kept[e.DataOffset] = found
		r.mutex.Unlock()
	}
	return found, nil
}

func (r *ShardReader) readRange(e IndexEntry, start, end uint64) ([]byte, error) {
	codec, err := r.checkSizes(e)
	if err != nil {
		return nil, err
	}
	if codec == CodecNone {
		return r.readAt(e.DataOffset+start, end-start)
	}
	how, err := r.framesOf(e)
	if err != nil {
		return nil, err
	}
	table := how.table
	if table == nil {
		data, err := r.readAll(e)
		if err != nil {
			return nil, err
		}
		return data[start:end], nil
	}
	if start == end {
		return []byte{}, nil
	}
	first, last := table.covering(start, end)
	stored, done, err := r.stored(e.DataOffset+table.stored[first], table.stored[last+1]-table.stored[first])
	if err != nil {
		return nil, err
	}
	defer done()
	content := make([]byte, table.content[last+1]-table.content[first])
	if err := r.decodeFrames(table, how.filters, first, last+1, stored, content); err != nil {
		return nil, err
	}
	return content[start-table.content[first] : end-table.content[first]], nil
}
