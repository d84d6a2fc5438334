package main

import (
	"os"
	"path/filepath"
	"strconv"

	"github.com/shard-format/shard/ports/go/wshard"
)

// readJournal tells what comes back of a recording: it is saved as an episode, and that is read.
func readJournal(file string) (object, error) {
	folder, err := os.MkdirTemp("", "shard-conformance-*")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	out := filepath.Join(folder, "out.wshard")
	found, err := wshard.Recover(file, wshard.RecoverOptions{Out: out, NoSync: true})
	if err != nil {
		return nil, err
	}
	episode, err := readEpisode(out)
	if err != nil {
		return nil, err
	}
	cut := object{}
	for block, count := range found.Cut {
		cut[block] = strconv.Itoa(count)
	}
	told := object{
		"cut": cut, "episode": episode, "finished": found.Finished,
		"read_bytes": strconv.FormatInt(found.ReadBytes, 10),
	}
	if found.Reason != nil {
		told["error"], told["rule"] = string(found.Reason.Code), found.Reason.Rule
	}
	return told, nil
}

// recoverJournal saves what a recording holds as an episode.
func recoverJournal(in, out string) (object, error) {
	if _, err := wshard.Recover(in, wshard.RecoverOptions{Out: out, NoSync: true}); err != nil {
		return nil, err
	}
	return tellWritten(out)
}
