// Package shard reads and writes Shard containers: files of named entries, each raw or compressed on its own, with a
// checksum for each. spec/shard.md specifies the format.
package shard
