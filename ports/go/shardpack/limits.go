package shardpack

// Limits is what a shard may ask for. The zero value of a field is the default of spec/shardpack.md, section 10.
type Limits struct {
	// MaxIndexBytes bounds the index.
	MaxIndexBytes uint64
	// MaxDecompressedBytes bounds one entry after decompression, MaxWindowBytes the window of a zstd frame.
	MaxDecompressedBytes, MaxWindowBytes uint64
	// MaxJSONBytes bounds the metadata of a shard, MaxJSONNodes the values of any metadata.
	MaxJSONBytes, MaxJSONNodes uint64
	// MaxRecordBytes bounds a record of a stream, which is in memory as a whole; 4 GiB by default. Records that are read
	// at random have no limit.
	MaxRecordBytes uint64
}

// Options changes how a shard is read. The zero value is right for most.
type Options struct {
	// Limits is what the shard may ask for; raise one for files that you trust.
	Limits Limits
}

func limitsOf(options []Options) Limits {
	var l Limits
	if len(options) > 0 {
		l = options[0].Limits
	}
	for _, one := range []struct {
		value *uint64
		usual uint64
	}{
		{&l.MaxIndexBytes, 1 << 30},
		{&l.MaxDecompressedBytes, largestCompressed},
		{&l.MaxWindowBytes, 128 << 20},
		{&l.MaxJSONBytes, 16 << 20},
		{&l.MaxJSONNodes, 1_000_000},
		{&l.MaxRecordBytes, 4 << 30},
	} {
		if *one.value == 0 {
			*one.value = one.usual
		}
	}
	return l
}
