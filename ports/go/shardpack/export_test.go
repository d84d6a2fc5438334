package shardpack

// DecodeEntry decodes the stored bytes of an entry, for tests.
func DecodeEntry(encoding Encoding, stored []byte, size uint64) ([]byte, error) {
	r := row{storedSize: uint64(len(stored)), originalSize: size, encoding: encoding}
	if err := r.check(limitsOf(nil)); err != nil {
		return nil, err
	}
	return r.decode(stored, limitsOf(nil))
}

// NextShard starts a new shard before the current one is full, for tests.
func (w *SetWriter) NextShard() error { return w.next() }
