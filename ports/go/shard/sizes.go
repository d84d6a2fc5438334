package shard

// CheckSize checks what the index says about the size of an entry, without reading it (S-DAT-4, S-CMP-1, S-CMP-2, S-CMP-8):
// memory for the whole entry may be made if there is no error.
func (r *ShardReader) CheckSize(name string) error {
	info, err := r.Info(name)
	if err != nil {
		return err
	}
	_, err = r.checkSizes(info.IndexEntry)
	return located(err, r.name, name)
}

// EntryAt gives the row of the index as it is stored.
func (r *ShardReader) EntryAt(i int) IndexEntry { return r.index.entry(i) }

// EncodedSize is the number of bytes that zstd makes of one frame after the filters, which may be nil; level 0 is 3.
func EncodedSize(data []byte, level int, filters *Filters) (int, error) {
	if level == 0 {
		level = usualLevel
	}
	if filters != nil {
		if err := filters.checkFrame(uint64(len(data))); err != nil {
			return 0, err
		}
		data = filters.apply(data)
	}
	stored, err := compressZstd(data, level, true)
	return len(stored), err
}
