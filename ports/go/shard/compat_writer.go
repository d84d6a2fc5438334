package shard

// ShardWriter writes a file with the methods of the package that came before this one: Close finishes the file. New programs
// use NewShardStreamWriter, whose Finalize finishes a file and whose Close gives it up.
type ShardWriter struct {
	stream   *ShardStreamWriter
	metadata *ShardMetadata
	failed   error
}

// NewShardWriter starts a file of a role with alignment 64, without compression and in canonical form.
func NewShardWriter(path string, role Role) (*ShardWriter, error) {
	stream, err := NewShardStreamWriter(path, ShardOptions{Role: role, Alignment: Align64})
	if err != nil {
		return nil, err
	}
	return &ShardWriter{stream: stream}, nil
}

// SetAlignment changes the alignment to 0, 16, 32 or 64, before the first entry.
func (w *ShardWriter) SetAlignment(alignment uint8) error {
	switch {
	case !validAlignment(alignment):
		return located(invalid("unknown alignment").expected("0, 16, 32 or 64").found("%d", alignment), w.stream.path, "")
	case len(w.stream.entries) > 0:
		return located(invalid("the alignment changes before the first entry only"), w.stream.path, "")
	}
	w.stream.options.Alignment = alignment
	return nil
}

// SetCompression changes what WriteEntryCompressed does. An unknown number is an error of Close.
func (w *ShardWriter) SetCompression(compression uint8) {
	if Codec(compression) > CodecLZ4 {
		w.fail(located(invalid("unknown compression").found("%d", compression), w.stream.path, ""))
		return
	}
	w.stream.options.Compression = Codec(compression)
}

// SetMetadata sets the schema section, which Close writes.
func (w *ShardWriter) SetMetadata(metadata *ShardMetadata) { w.metadata = metadata }

// WriteEntry writes an entry as it is; the content type is a hint.
func (w *ShardWriter) WriteEntry(name string, data []byte, contentType ...uint16) error {
	options := EntryOptions{HasCodec: true}
	if len(contentType) > 0 {
		options.ContentType = contentType[0]
	}
	return w.write(name, data, options)
}

// WriteEntryTyped writes an entry as it is, with a content type.
func (w *ShardWriter) WriteEntryTyped(name string, data []byte, contentType uint16) error {
	return w.WriteEntry(name, data, contentType)
}

// WriteEntryCompressed writes an entry with the codec of SetCompression.
func (w *ShardWriter) WriteEntryCompressed(name string, data []byte) error {
	return w.write(name, data, EntryOptions{})
}

// WriteEntryWithOptions writes an entry with a codec, or as it is.
func (w *ShardWriter) WriteEntryWithOptions(name string, data []byte, compress bool, compression uint8) error {
	options := EntryOptions{HasCodec: true}
	if compress {
		options.Codec = Codec(compression)
	}
	return w.write(name, data, options)
}

func (w *ShardWriter) write(name string, data []byte, options EntryOptions) error {
	return w.fail(w.stream.WriteEntryWith(name, data, options))
}

// fail keeps the first error, so that Close does not publish a file that lacks an entry.
func (w *ShardWriter) fail(err error) error {
	if w.failed == nil && !w.stream.done {
		w.failed = err
	}
	return err
}

// Close finishes the file. If an entry could not be written, there is no file, and Close returns that error. A second call
// does nothing.
func (w *ShardWriter) Close() error {
	if w.stream.done {
		return nil
	}
	err := w.failed
	if err == nil && w.metadata != nil {
		var schema Object
		if schema, err = w.metadata.Object(); err == nil {
			err = checkSchema(schema)
		}
		w.stream.options.Schema = schema
	}
	if err != nil {
		_ = w.stream.Close()
		return located(err, w.stream.path, "")
	}
	return w.stream.Finalize()
}
