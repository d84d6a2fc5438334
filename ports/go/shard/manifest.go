package shard

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/shard-format/shard/ports/go/internal/strictjson"
)

const (
	longestURI = 4096
	mostParts  = 256
)

// Manifest gives the rows of a manifest (S-MAN-1, S-MAN-2): fields as they are stored.
func (r *ShardReader) Manifest() ([]Object, error) {
	rows, err := r.manifest()
	return rows, located(err, r.name, "")
}

func (r *ShardReader) manifest() ([]Object, error) {
	if r.header.Role != RoleManifest {
		return nil, broken(CodeBadMetadata, "", "the file is not a manifest").expected("role 4").found("role %d", r.header.Role)
	}
	if r.HasEntry(identityEntry) {
		stored, err := r.storedIdentity()
		if err == nil {
			err = r.checkManifest(stored)
		}
		if err != nil {
			return nil, err
		}
	}
	fields, err := r.manifestFields()
	if err != nil {
		return nil, err
	}
	listed, there := fields["files"]
	if !there {
		listed = fields["chunks"]
	}
	return checkReferences(listed)
}

// checkReferences checks the list of a manifest (S-MAN-1, S-MAN-2).
func checkReferences(listed any) ([]Object, error) {
	list, ok := listed.([]any)
	if !ok {
		return nil, broken(CodeBadMetadata, "S-MAN-1", "the manifest has no list of files")
	}
	rows := make([]Object, len(list))
	seen := map[string]bool{}
	for i, item := range list {
		row, ok := item.(map[string]any)
		if !ok {
			return nil, broken(CodeBadMetadata, "S-MAN-1", "a row of the manifest is not an object")
		}
		uri, err := checkReference(row)
		if err != nil {
			return nil, err
		}
		if seen[uri] {
			return nil, broken(CodeBadMetadata, "S-MAN-2", "the manifest names a file twice").found("%.80q", uri)
		}
		seen[uri], rows[i] = true, row
	}
	return rows, nil
}

// manifestFields gives the object of the manifest, from the entry or from the schema section (S-MAN-1).
func (r *ShardReader) manifestFields() (Object, error) {
	if r.HasEntry(manifestEntry) {
		return r.readJSON(manifestEntry, "S-MAN-1")
	}
	schema, err := r.schema()
	if err != nil {
		return nil, err
	}
	fields, ok := schema["manifest"].(map[string]any)
	if !ok {
		return nil, broken(CodeBadMetadata, "S-MAN-1", "the file has no manifest")
	}
	return fields, nil
}

// checkManifest checks that an identity covers all that a manifest lists (S-MAN-7).
func (r *ShardReader) checkManifest(identity Identity) error {
	if r.header.Role != RoleManifest {
		return nil
	}
	bad := func(problem string) error { return broken(CodeIdentityMismatch, "S-MAN-7", problem) }
	if identity.Version >= 2 && identity.Role != r.header.Role {
		return bad("the file was not a manifest when the identity was made")
	}
	var entry Object
	digest := ""
	if r.HasEntry(manifestEntry) {
		text, err := r.ReadEntry(manifestEntry)
		if err != nil {
			return err
		}
		digest = hexDigest(text)
	}
	if identity.Entries[manifestEntry] != digest {
		return bad("the identity does not cover the manifest")
	}
	schema, err := r.schema()
	if err != nil {
		return err
	}
	section, _ := schema["manifest"].(map[string]any)
	for _, key := range []string{"files", "chunks"} {
		listed, there := section[key]
		if !there {
			continue
		}
		if entry == nil && digest != "" {
			if entry, err = r.readJSON(manifestEntry, "S-MAN-1"); err != nil {
				return err
			}
		}
		covered, isCovered := entry[key]
		mine, err := strictjson.Canonical(covered)
		if err != nil {
			return err
		}
		others, err := strictjson.Canonical(listed)
		if err != nil {
			return err
		}
		if !isCovered || string(mine) != string(others) {
			return bad("the schema section lists files that the entry meta/manifest does not list")
		}
	}
	return nil
}

// checkReference checks one row of a manifest (S-MAN-2).
func checkReference(row Object) (string, error) {
	bad := func(field, expected string) error {
		return broken(CodeBadMetadata, "S-MAN-2", "'"+field+"' of a row is wrong").expected("%s", expected)
	}
	uri, ok := row["uri"].(string)
	if !ok || uri == "" || strings.ContainsRune(uri, 0) {
		return "", bad("uri", "a string that is not empty, without NUL")
	}
	if value := row["sha256"]; value != nil {
		if text, ok := value.(string); !ok || !isDigest(text) {
			return "", bad("sha256", "64 lower-case hex digits")
		}
	}
	if value := row["size"]; value != nil {
		if !strictjson.IsNatural(value) {
			return "", bad("size", "an integer of 0 or more")
		}
	}
	for _, field := range []string{"start_key", "end_key"} {
		if value := row[field]; value != nil {
			if _, ok := value.(string); !ok {
				return "", bad(field, "a string")
			}
		}
	}
	return uri, nil
}

// --- the files that a manifest names

var scheme = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*:`)

// ResolveURI gives the path of a file that a manifest names, without links. The file must be there, in the folder of the
// manifest or below it (S-MAN-4).
func (r *ShardReader) ResolveURI(uri string) (string, error) {
	path, err := r.resolveURI(uri)
	return path, located(err, r.name, "")
}

func (r *ShardReader) resolveURI(uri string) (string, error) {
	unsafe := func(why string) error {
		return broken(CodeUnsafePath, "S-MAN-4", "the manifest names an unsafe path: "+why).found("%.80q", uri)
	}
	switch {
	case r.name == "":
		return "", invalid("the manifest is not a file with a path")
	case scheme.MatchString(uri) || strings.Contains(uri, "\\"):
		return "", unsafe("it is not a plain relative path")
	case len(uri) > longestURI || strings.Count(uri, "/") >= mostParts:
		return "", unsafe("it is too long")
	case !filepath.IsLocal(filepath.FromSlash(uri)):
		return "", unsafe("it leaves the folder of the manifest")
	}
	folder, err := filepath.EvalSymlinks(filepath.Dir(r.name))
	if err != nil {
		return "", ioError("cannot read", r.name, err)
	}
	path, err := filepath.EvalSymlinks(filepath.Join(folder, filepath.FromSlash(uri)))
	if errors.Is(err, fs.ErrNotExist) {
		return "", broken(CodeMissingFile, "S-MAN-5", "a file that the manifest names is missing").found("%.80q", uri)
	}
	if err != nil {
		return "", ioError("cannot read", uri, err)
	}
	if inside, err := filepath.Rel(folder, path); err != nil || inside == "." || !filepath.IsLocal(inside) {
		return "", unsafe("a link leads out of the folder of the manifest")
	}
	return path, nil
}

// VerifyFiles checks that every file that a manifest names is there, with its size and SHA-256 (S-MAN-4, S-MAN-5). It opens
// none of them as a Shard file.
func (r *ShardReader) VerifyFiles() error {
	rows, err := r.Manifest()
	if err != nil {
		return err
	}
	for _, row := range rows {
		uri, _ := row["uri"].(string)
		path, err := r.resolveURI(uri)
		if err == nil {
			err = compareFile(path, row)
		}
		if err != nil {
			return located(err, r.name, "")
		}
	}
	return nil
}

func compareFile(path string, row Object) error {
	mismatch := func(problem string) *Error {
		e := broken(CodeReferenceMismatch, "S-MAN-5", problem)
		e.Path = path
		return e
	}
	status, err := os.Stat(path)
	if err != nil {
		return ioError("cannot read", path, err)
	}
	if !status.Mode().IsRegular() { // a pipe could make us wait forever
		return mismatch("what the manifest names is not a regular file")
	}
	// A file of another size need not be read.
	if size := row["size"]; size != nil && size != status.Size() {
		return mismatch("the size is not what the manifest says").expected("%v", size).found("%d", status.Size())
	}
	if digest := row["sha256"]; digest != nil {
		found, _, err := hashFile(path)
		if err != nil {
			return err
		}
		if found != digest {
			return mismatch("the SHA-256 is not what the manifest says").expected("%s", digest).found("%s", found)
		}
	}
	return nil
}

func hashFile(path string) (string, int64, error) {
	file, _, err := openRegular(path)
	if err != nil {
		return "", 0, err
	}
	defer func() { _ = file.Close() }()
	digest := sha256.New()
	size, err := io.Copy(digest, file)
	if err != nil {
		return "", 0, ioError("cannot read", path, err)
	}
	return hex.EncodeToString(digest.Sum(nil)), size, nil
}

// ReferenceTo gives the row of a manifest for a file as it is now; the manifest will be in the folder.
func ReferenceTo(path, folder string) (Object, error) {
	digest, size, err := hashFile(path)
	if err != nil {
		return nil, err
	}
	relative, err := filepath.Rel(folder, path)
	if err != nil {
		return nil, &Error{Code: CodeInvalidArgument, Path: path, Problem: "no path leads from the manifest to the file", Err: err}
	}
	return Object{"uri": filepath.ToSlash(relative), "sha256": digest, "size": size}, nil
}

// WriteManifest writes a file of role 4 with the object of a manifest, whose list is under "files", or "chunks". Each row
// needs uri, sha256 and size (S-MAN-6).
func WriteManifest(path string, fields Object) error {
	text, err := CanonicalJSON(fields)
	if err != nil {
		return located(err, path, "")
	}
	object, err := ParseObject(text)
	if err != nil {
		return located(err, path, "")
	}
	listed, there := object["files"]
	if !there {
		listed = object["chunks"]
	}
	rows, err := checkReferences(listed)
	if err != nil {
		return located(err, path, "")
	}
	for _, row := range rows {
		if row["sha256"] == nil || row["size"] == nil {
			e := invalid("a row of the manifest has no sha256 or no size").found("%.80q", row["uri"])
			e.Rule, e.Path = "S-MAN-6", path
			return e
		}
	}
	w, err := NewShardStreamWriter(path, ShardOptions{Role: RoleManifest, Alignment: 64, Names: []string{manifestEntry}})
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	if err := w.WriteEntry(manifestEntry, text, ContentTypeJSON); err != nil {
		return err
	}
	return w.Finalize()
}
