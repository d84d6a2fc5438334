package shard

// CopyEntry writes an entry of another file in the form in which that file stores it. Its content is decoded and checked on
// the way. Of the options, only the content type and the tags count.
func (w *ShardStreamWriter) CopyEntry(from *ShardReader, name string, options EntryOptions) error {
	if err := w.ready(); err != nil {
		return err
	}
	if err := w.checkName(name); err != nil {
		return located(err, w.path, name)
	}
	info, err := from.Info(name)
	if err != nil {
		return err
	}
	data, err := from.ReadEntry(name)
	if err != nil {
		return err
	}
	stored := data
	if info.Codec != CodecNone {
		if stored, err = from.readAt(info.DataOffset, info.DiskSize); err != nil {
			return located(err, from.name, name)
		}
	}
	return w.put(name, data, stored, info.Codec.flags()|info.Flags&entryFiltered, options)
}
