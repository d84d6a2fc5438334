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
func (r *ShardReader) EntryAt(i int) IndexEntry { return r.index.entries[i] }
