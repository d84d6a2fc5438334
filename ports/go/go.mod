module github.com/shard-format/shard/ports/go

go 1.25.0

require (
	github.com/cespare/xxhash/v2 v2.3.0
	github.com/klauspost/compress v1.20.3
	github.com/pierrec/lz4/v4 v4.1.33
)

require golang.org/x/sys v0.46.0
