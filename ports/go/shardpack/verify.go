package shardpack

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

// Verify reads and checks everything: the index, and every record with its metadata and entries. It returns the first
// error.
func (r *Reader) Verify() error { return r.verify(func(*Record) error { return nil }) }

// verify calls a function for every record that is intact.
func (r *Reader) verify(found func(*Record) error) error {
	if _, err := r.Metadata(); err != nil {
		return err
	}
	number := 0
	for record, err := range r.Records() {
		if err != nil {
			return err
		}
		if err := record.verify(); err != nil {
			return err
		}
		at, there, err := r.Find(record.Key())
		if err != nil {
			return err
		}
		if !there || at != number {
			return record.failed(broken(shard.CodeBadOffset, "P-IDX-6", "the lookup does not find the record"), "")
		}
		if err := found(record); err != nil {
			return err
		}
		number++
	}
	return nil
}

func (r *Record) verify() error {
	if _, err := r.decodeMetadata(); err != nil {
		return r.failed(err, "")
	}
	for e := range r.Entries() {
		if _, err := e.Bytes(); err != nil {
			return err
		}
	}
	return nil
}

// Verify reads and checks all shards: that each is the one that the set file names, all that Reader.Verify checks, that no
// key is in two of them, and that the folder has no other shards of this name (P-SET-8). It returns the first error.
func (s *Set) Verify() error {
	keys := keySet{}
	for i, one := range s.shards {
		if err := s.verifyFile(one); err != nil {
			return err
		}
		r, err := s.Shard(i)
		if err != nil {
			return err
		}
		err = r.verify(func(record *Record) error {
			if keys.has(record.Key()) {
				return fault.Located(duplicate(record.Key()), r.Name(), "")
			}
			keys.add(record.Key())
			return nil
		})
		if err != nil {
			return err
		}
	}
	return s.findExtra()
}

// verifyFile compares a file with its row (S-MAN-5).
func (s *Set) verifyFile(one SetShard) error {
	path := filepath.Join(filepath.Dir(s.path), one.Name)
	if err := checkPlace(path); err != nil {
		return fault.Located(err, path, "")
	}
	file, size, err := openFile(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	if size != one.Size {
		return fault.Located(mismatch(shard.CodeReferenceMismatch, "S-MAN-5", "the shard has another size than its row", one.Size, size), path, "")
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return fault.IO("cannot read", path, err)
	}
	if found := hex.EncodeToString(sum.Sum(nil)); found != one.SHA256 {
		return fault.Located(mismatch(shard.CodeReferenceMismatch, "S-MAN-5", "the shard has another SHA-256 than its row", one.SHA256, found), path, "")
	}
	return nil
}

// findExtra looks for files that are named like shards of this set, and that no set file of the folder lists (P-SET-8).
func (s *Set) findExtra() error {
	folder := filepath.Dir(s.path)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return fault.IO("cannot read", folder, err)
	}
	name, _ := s.fields["name"].(string) // checked when the set was opened
	numberOf := fitting(name)
	first, _ := numberOf(s.shards[0].Name)
	listed := map[string]bool{}
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), setSuffix) {
			continue
		}
		// A set file that cannot be read lists nothing here; checking it shows what is wrong.
		if other, err := OpenSet(filepath.Join(folder, entry.Name()), s.options...); err == nil {
			for _, one := range other.shards {
				listed[one.Name] = true
			}
		}
	}
	for _, entry := range entries {
		if number, fits := numberOf(entry.Name()); fits && number >= first && !listed[entry.Name()] {
			e := broken(shard.CodeReferenceMismatch, "P-SET-8", fmt.Sprintf("%s does not name this shard", filepath.Base(s.path)))
			return fault.Located(e, filepath.Join(folder, entry.Name()), "")
		}
	}
	return nil
}

// fitting gives a function that reads the number in the names of a set's shards; false for other names.
func fitting(pattern string) func(name string) (uint64, bool) {
	place := numberForm.FindStringIndex(strings.ReplaceAll(pattern, "%%", "\x00\x00"))
	if place == nil {
		return func(string) (uint64, bool) { return 0, false }
	}
	quote := func(text string) string { return regexp.QuoteMeta(strings.ReplaceAll(text, "%%", "%")) }
	form := regexp.MustCompile("^" + quote(pattern[:place[0]]) + "([0-9]{1,18})" + quote(pattern[place[1]:]) + "$")
	return func(name string) (uint64, bool) {
		found := form.FindStringSubmatch(name)
		if found == nil {
			return 0, false
		}
		number, err := strconv.ParseUint(found[1], 10, 64)
		return number, err == nil
	}
}
