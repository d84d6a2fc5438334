package shardpack

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

const (
	setFormat       = "shardpack-set"
	setSuffix       = ".shardpack-set"
	shardSuffix     = ".shardpack"
	manifestEntry   = "meta/manifest"
	mostShards      = 32_768
	mostParts       = 65_536
	longestRevision = 255
	longestPart     = 255
)

var (
	numberForm = regexp.MustCompile(`%0?[0-9]*d`)
	schemeForm = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*:`)
)

// SetShard is what a set file says about one shard.
type SetShard struct {
	// Name of the file, in the folder of the set file.
	Name string
	// Records, and Size in bytes.
	Records int
	Size    uint64
	// SHA256 of the whole file, in lower-case hex.
	SHA256 string
	// Footer is what the last bytes of the shard must be.
	Footer Footer
}

// Set is a set of shards that a set file lists. Records are numbered across all of them. A shard is opened when it is
// needed, and stays open until Close. Any number of goroutines may use a set.
type Set struct {
	path   string
	fields shard.Object
	shards []SetShard
	// starts is the number of the first record of each shard, and of all records.
	starts  []int
	options []Options
	mutex   sync.Mutex
	open    []*Reader
	closed  bool
}

// OpenSet reads a set file. No shard is looked at. Close the set.
func OpenSet(path string, options ...Options) (*Set, error) {
	s, err := readSet(path, options)
	if err != nil {
		return nil, fault.Located(err, path, "")
	}
	return s, nil
}

func readSet(path string, options []Options) (*Set, error) {
	limits := limitsOf(options)
	r, err := shard.OpenShard(path, shard.Options{Limits: shard.Limits{MaxJSONBytes: limits.MaxJSONBytes, MaxJSONNodes: limits.MaxJSONNodes}})
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	if role := r.Header().Role; role != shard.RoleManifest || !r.HasEntry(manifestEntry) {
		return nil, mismatch(shard.CodeBadMetadata, "P-SET-1", "not a set file", "a manifest", fmt.Sprintf("role %d", role))
	}
	rows, err := r.Manifest()
	if err != nil {
		return nil, err
	}
	fields, err := r.ReadJSON(manifestEntry)
	if err != nil {
		return nil, err
	}
	delete(fields, "files")
	s := &Set{path: path, fields: fields, options: options, shards: make([]SetShard, len(rows)), open: make([]*Reader, len(rows))}
	if err := checkSetFields(fields, len(rows)); err != nil {
		return nil, err
	}
	for i, row := range rows {
		if s.shards[i], err = parseSetRow(row); err != nil {
			return nil, err
		}
	}
	return s, s.addUp()
}

// addUp checks that the set has the records of its shards (P-SET-3).
func (s *Set) addUp() error {
	s.starts = make([]int, 0, len(s.shards)+1)
	total := 0
	for _, one := range s.shards {
		s.starts = append(s.starts, total)
		if one.Records > math.MaxInt-total {
			return broken(shard.CodeSizeMismatch, "P-SET-3", "the set has more records than can be counted")
		}
		total += one.Records
	}
	s.starts = append(s.starts, total)
	if records, ok := s.fields["records"].(int64); !ok || records != int64(total) {
		return mismatch(shard.CodeSizeMismatch, "P-SET-3", "'records' is not the sum of the shards", total, fmt.Sprint(s.fields["records"]))
	}
	return nil
}

// checkSetFields checks P-SET-1, P-SET-5 and P-SET-6.
func checkSetFields(fields shard.Object, rows int) error {
	if fields["format"] != setFormat {
		return mismatch(shard.CodeBadMetadata, "P-SET-1", "the manifest is not a set file", setFormat, fmt.Sprintf("%.80v", fields["format"]))
	}
	if fields["version"] != int64(version) {
		return mismatch(shard.CodeUnsupportedVersion, "P-SET-1", "the set file has an unknown version", version, fmt.Sprintf("%.80v", fields["version"]))
	}
	if rows == 0 {
		return broken(shard.CodeBadMetadata, "P-SET-5", "the set has no shards")
	}
	if rows > mostShards {
		return mismatch(shard.CodeLimitExceeded, "P-SET-5", "the set has too many shards", atMost(mostShards), rows)
	}
	name, isText := fields["name"].(string)
	revision, hasRevision := fields["revision"].(string)
	_, hasTime := fields["created"].(string)
	_, hasUser := fields["user"].(shard.Object)
	schema, hasSchema := fields["schema"]
	_, isObject := schema.(shard.Object)
	for _, one := range []struct {
		field, expected string
		isRight         bool
	}{
		{"name", "a file name with one number", isText && checkFileName(name) == nil && countNumbers(name) == 1},
		{"revision", "1 to 255 characters", hasRevision && revision != "" && utf8.RuneCountInString(revision) <= longestRevision},
		{"created", "a string", hasTime},
		{"user", "an object", hasUser},
		{"schema", "an object", !hasSchema || isObject},
		{"part", "1 to 'parts', at most 65536", isPart(fields)},
	} {
		if !one.isRight {
			return mismatch(shard.CodeBadMetadata, "P-SET-6", "'"+one.field+"' is not what it must be", one.expected, fmt.Sprintf("%.80v", fields[one.field]))
		}
	}
	return nil
}

func isPart(fields shard.Object) bool {
	_, hasPart := fields["part"]
	_, hasParts := fields["parts"]
	if !hasPart && !hasParts {
		return true
	}
	part, isNumber := fields["part"].(int64)
	parts, areNumber := fields["parts"].(int64)
	return isNumber && areNumber && 1 <= part && part <= parts && parts <= mostParts
}

// countNumbers counts the numbers in the name of a set.
func countNumbers(name string) int {
	return len(numberForm.FindAllString(strings.ReplaceAll(name, "%%", ""), -1))
}

// checkFileName checks that a name is that of a file in the same folder (P-SET-4).
func checkFileName(name string) error {
	isControl := func(r rune) bool { return unicode.Is(unicode.Cc, r) }
	reason := ""
	switch {
	case strings.Contains(name, "/") || schemeForm.MatchString(name):
		reason = "it is not in the folder of the set file"
	case name == "" || name == "." || name == "..":
		reason = "it is not the name of a file"
	case strings.Contains(name, `\`) || strings.ContainsFunc(name, isControl):
		reason = "it has a backslash or a control character"
	case len(name) > longestPart:
		reason = "it is too long"
	default:
		return nil
	}
	return broken(shard.CodeUnsafePath, "P-SET-4", fmt.Sprintf("the name %.80q is unsafe: %s", name, reason))
}

// parseSetRow reads one row of a set file (P-SET-2 to P-SET-4).
func parseSetRow(row shard.Object) (SetShard, error) {
	name, _ := row["uri"].(string) // it is one in every manifest
	if err := checkFileName(name); err != nil {
		return SetShard{}, err
	}
	bad := func(expected string) error {
		return mismatch(shard.CodeBadMetadata, "P-SET-2", fmt.Sprintf("the row of %.80q is incomplete", name), expected, "something else")
	}
	digest, hasDigest := row["sha256"].(string)
	size, hasSize := row["size"].(int64)
	records, hasRecords := row["records"].(int64)
	text, hasFooter := row["footer"].(string)
	switch {
	case !hasDigest || !hasSize:
		return SetShard{}, bad("sha256 and size")
	case !hasRecords:
		return SetShard{}, bad("an integer under 'records'")
	case !hasFooter || len(text) != 2*footerSize || strings.ToLower(text) != text:
		return SetShard{}, bad("128 lower-case hex digits under 'footer'")
	}
	data, err := hex.DecodeString(text)
	if err != nil {
		return SetShard{}, bad("128 lower-case hex digits under 'footer'")
	}
	footer, err := parseFooter(data, statedSize(data), nil)
	if err != nil {
		e := broken(shard.CodeBadMetadata, "P-SET-2", fmt.Sprintf("the row of %.80q has a bad footer", name))
		e.Err = err
		return SetShard{}, e
	}
	if size < 0 || records < 0 || uint64(size) != footer.TotalSize || uint64(records) != footer.RecordCount {
		return SetShard{}, mismatch(shard.CodeSizeMismatch, "P-SET-3", fmt.Sprintf("the row of %.80q contradicts its footer", name),
			fmt.Sprintf("%d bytes, %d records", footer.TotalSize, footer.RecordCount), fmt.Sprintf("%d bytes, %d records", size, records))
	}
	return SetShard{Name: name, Records: int(records), Size: footer.TotalSize, SHA256: digest, Footer: footer}, nil
}

// Fields gives what the set file says besides the shards: name, revision, created, user, schema, records and others. Do
// not change them.
func (s *Set) Fields() shard.Object { return s.fields }

// Shards gives the shards, in order.
func (s *Set) Shards() []SetShard { return append([]SetShard(nil), s.shards...) }

// Len is the number of records of all shards.
func (s *Set) Len() int { return s.starts[len(s.shards)] }

// Shard opens the shard of a number, from 0 on, and checks that it is the one that the set file names (P-SET-7).
func (s *Set) Shard(i int) (*Reader, error) {
	if i < 0 || i >= len(s.shards) {
		return nil, fault.Located(mismatch(shard.CodeEntryNotFound, "", "no such shard", below(len(s.shards)), i), s.path, "")
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.closed {
		return nil, &shard.Error{Code: shard.CodeClosed, Path: s.path, Problem: "the set is closed"}
	}
	if s.open[i] == nil {
		r, err := s.openShard(s.shards[i])
		if err != nil {
			return nil, err
		}
		s.open[i] = r
	}
	return s.open[i], nil
}

func (s *Set) openShard(one SetShard) (*Reader, error) {
	path := filepath.Join(filepath.Dir(s.path), one.Name)
	if err := checkPlace(path); err != nil {
		return nil, fault.Located(err, path, "")
	}
	r, err := Open(path, s.options...)
	if err != nil {
		return nil, err
	}
	if r.Footer() != one.Footer {
		_ = r.Close()
		e := mismatch(shard.CodeReferenceMismatch, "P-SET-7", "not the shard that "+filepath.Base(s.path)+" names"+interrupted(path),
			fmt.Sprintf("%d bytes, %d records", one.Size, one.Records), fmt.Sprintf("%d bytes, %d records", r.Footer().TotalSize, r.Len()))
		return nil, fault.Located(e, path, "")
	}
	return r, nil
}

// interrupted says what to do if the Python library was stopped while it replaced the shards of a folder: some of them are
// new, and the set file may be old. It finishes that when it opens the set.
func interrupted(path string) string {
	if _, err := os.Lstat(filepath.Join(filepath.Dir(path), ".shardpack-switch")); err != nil {
		return ""
	}
	return ": the set is being replaced, or that was interrupted; `shardpack info` of the Python library finishes it"
}

// checkPlace refuses a shard that is missing, or that a link takes out of its folder.
func checkPlace(path string) error {
	folder, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return fault.IO("cannot open", path, err)
	}
	place, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return broken(shard.CodeMissingFile, "P-SET-7", "the set file names a shard that is missing"+interrupted(path))
	}
	if err != nil {
		return fault.IO("cannot open", path, err)
	}
	inside, err := filepath.Rel(folder, place)
	if err != nil || inside == ".." || strings.HasPrefix(inside, ".."+string(os.PathSeparator)) {
		return broken(shard.CodeUnsafePath, "P-SET-4", "a symbolic link leads out of the folder of the set file")
	}
	return nil
}

// Record opens the record of a number, counted across all shards.
func (s *Set) Record(i int) (*Record, error) {
	if i < 0 || i >= s.Len() {
		return nil, fault.Located(mismatch(shard.CodeEntryNotFound, "", "no such record", below(s.Len()), i), s.path, "")
	}
	number := sort.SearchInts(s.starts, i+1) - 1
	r, err := s.Shard(number)
	if err != nil {
		return nil, err
	}
	return r.Record(i - s.starts[number])
}

// ByKey opens the record with a key. It looks into all shards, because a key that occurs twice is an error.
func (s *Set) ByKey(key string) (*Record, error) {
	var found *Record
	for i := range s.shards {
		r, err := s.Shard(i)
		if err != nil {
			return nil, err
		}
		number, there, err := r.Find(key)
		if err != nil {
			return nil, err
		}
		if !there {
			continue
		}
		if found != nil {
			return nil, fault.Located(duplicate(key), s.path, "")
		}
		if found, err = r.Record(number); err != nil {
			return nil, err
		}
	}
	if found == nil {
		return nil, noSuchKey(key, s.path)
	}
	return found, nil
}

// Records gives all records in order, as Reader.Records does. A shard that cannot be opened gives an error, and the next
// one follows.
func (s *Set) Records() iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		for i := range s.shards {
			r, err := s.Shard(i)
			if err != nil {
				if !yield(nil, err) {
					return
				}
				continue
			}
			for record, err := range r.Records() {
				if !yield(record, err) {
					return
				}
			}
		}
	}
}

// Close closes all shards. A second call does nothing.
func (s *Set) Close() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.closed = true
	var failed error
	for i, r := range s.open {
		if r != nil {
			failed = errors.Join(failed, r.Close())
			s.open[i] = nil
		}
	}
	return failed
}
