// Command shard-conformance answers the questions of the conformance runner; spec/vectors/README.md describes them.
package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/shard-format/shard/ports/go/shard"
)

const (
	usage = "shard-conformance info | read KIND FILE | step KIND FILE CASE | stream FILE | recover FILE | verify FILE SIGNATURE KEY | write CASE OUT | rewrite KIND IN OUT | --batch"
	// features has the letters of tests/conformance/ports.py.
	features = "RZMSFLJNIGVWECDHOQPTKB"
	// mostListed is the number of entries above which only their digest is told.
	mostListed = 1000
)

// kind is what the program can do with one kind of file. What is nil it does not do.
type kind struct {
	read    func(file string) (object, error)
	step    func(file, casePath string) (object, error)
	write   func(casePath, out string) (object, error)
	rewrite func(in, out string) (object, error)
}

var kinds = map[string]kind{
	"container": {readContainer, stepContainer, writeContainer, rewriteContainer},
	"pack":      {readPack, stepPack, writePack, rewritePack},
	"set":       {read: readSet, step: stepSet},
	"episode":   {readEpisode, stepEpisode, writeEpisode, rewriteEpisode},
	"journal":   {readJournal, nil, nil, recoverJournal},
	"recording": {write: writeRecording},
}

type object = map[string]any

func main() {
	if len(os.Args) != 2 || os.Args[1] != "--batch" {
		code, told := answer(os.Args[1:])
		fmt.Println(line(told))
		os.Exit(code)
	}
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		text, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var arguments []string
		if err := json.Unmarshal(text, &arguments); err != nil {
			arguments = nil
		}
		_, told := answer(arguments)
		fmt.Println(line(told))
	}
}

func line(told object) string {
	text, err := shard.CanonicalJSON(told)
	if err != nil {
		return fmt.Sprintf(`{"error":"io_error","rule":%q}`, err.Error())
	}
	return string(text)
}

// answer gives the exit code and the answer of one call.
func answer(arguments []string) (int, object) {
	commands := map[string]struct {
		count int
		run   func([]string) (object, error)
	}{
		"info":    {0, info},
		"read":    {2, read},
		"step":    {3, step},
		"stream":  {1, streamPack},
		"recover": {1, recoverPack},
		"verify":  {3, verify},
		"write":   {2, write},
		"rewrite": {3, rewrite},
	}
	if len(arguments) == 0 {
		return 2, object{"usage": usage}
	}
	command, known := commands[arguments[0]]
	if !known || len(arguments)-1 != command.count {
		return 2, object{"usage": usage}
	}
	told, err := command.run(arguments[1:])
	if err == nil {
		return 0, told
	}
	var broken *shard.Error
	if !errors.As(err, &broken) {
		broken = &shard.Error{Code: shard.CodeIOError}
	}
	return 1, object{"error": string(broken.Code), "rule": broken.Rule}
}

func unsupported(verb, name string) error {
	return fmt.Errorf("this program does not %s a %s", verb, name)
}

func read(arguments []string) (object, error) {
	if run := kinds[arguments[0]].read; run != nil {
		return run(arguments[1])
	}
	return nil, unsupported("read", arguments[0])
}

func step(arguments []string) (object, error) {
	if run := kinds[arguments[0]].step; run != nil {
		return run(arguments[1], arguments[2])
	}
	return nil, unsupported("read", arguments[0])
}

func write(arguments []string) (object, error) {
	var c struct{ Kind string }
	if err := readCase(arguments[0], &c); err != nil {
		return nil, err
	}
	if run := kinds[c.Kind].write; run != nil {
		return run(arguments[0], arguments[1])
	}
	return nil, unsupported("write", c.Kind)
}

func rewrite(arguments []string) (object, error) {
	if run := kinds[arguments[0]].rewrite; run != nil {
		return run(arguments[1], arguments[2])
	}
	return nil, unsupported("write", arguments[0])
}

// readCase parses the JSON of a vector.
func readCase(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

func info([]string) (object, error) {
	return object{
		"name": "go", "version": "0.1.0", "features": strings.Split(features, ""),
		"formats": object{"journal": 1, "shard": 2, "shardpack": 1, "wshard": 1},
	}, nil
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func number[N uint8 | uint16 | uint32 | uint64 | shard.Role | shard.Codec](value N) string {
	return strconv.FormatUint(uint64(value), 10)
}
