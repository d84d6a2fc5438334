// Package shard reads and writes Shard containers: files of named entries, each raw or compressed on its own, with a
// checksum for each. spec/shard.md specifies the format.
//
// # Reading
//
// OpenShard opens a file, and NewReader anything that reads at an offset: bytes in memory, a part of a larger file, a file
// behind a URL (package httprange). Opening reads the head of the file and checks it; entries are read when they are asked
// for. ReadEntry gives a whole entry, decompressed and checked; ReadEntries gives many, decoded by several goroutines;
// ReadInto fills memory that you have; ReadRange gives a part, of which only the frames that hold it are read; View gives
// a raw entry in place, through mmap. Any number of goroutines may use one reader.
//
// # Writing
//
// NewShardStreamWriter starts a file, and Finalize gives it its name: the file is there complete, or not at all. Without
// MaxEntries the writer spools the data and makes the canonical bytes, which are the same in every language. EntryOptions
// makes an entry seekable (FrameBytes) and filters it (Filters).
//
// # Trust
//
// A file may lie about everything. A broken rule is an *Error with the code and the rule of the specification, the file and
// the entry; errors.Is compares codes: errors.Is(err, shard.ErrChecksumMismatch). Nothing is allocated because a file
// claims to need it. Limits bound what a file may ask for: memory is at most about Limits.MaxDecompressedBytes for each
// goroutine that reads. Time follows the file: blocks do not overlap, and a stored byte becomes at most 32 768 bytes, so a
// caller who reads all entries of a small hostile file lowers MaxDecompressedBytes, or adds up the sizes that Info gives.
//
// VerifyIdentity compares a file with the hashes that it carries. Sign and VerifySignature tie these to a key.
//
// # Names of an earlier package
//
// The files compat_*.go have the names of the package that came before this one. Package compat has those whose arguments
// are different.
package shard
