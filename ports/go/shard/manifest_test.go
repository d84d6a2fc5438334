package shard_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/shard-format/shard/ports/go/shard"
)

func openManifest(t *testing.T, path string, rows ...any) *shard.ShardReader {
	t.Helper()
	check(t, shard.WriteManifest(path, shard.Object{"files": rows, "mine": 5}))
	r, err := shard.OpenShard(path)
	check(t, err)
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func TestAManifestTellsWhetherItsFilesChanged(t *testing.T) {
	folder := t.TempDir()
	part := filepath.Join(folder, "parts", "a.shard")
	check(t, os.Mkdir(filepath.Dir(part), 0o700))
	check(t, os.WriteFile(part, []byte("content"), 0o600))
	row, err := shard.ReferenceTo(part, folder)
	check(t, err)
	row["weight"] = 0.5
	r := openManifest(t, filepath.Join(folder, "set.shard"), row)
	check(t, r.Verify())
	check(t, r.VerifyFiles())
	rows, err := r.Manifest()
	check(t, err)
	if rows[0]["uri"] != "parts/a.shard" || rows[0]["size"] != int64(7) || rows[0]["weight"] != 0.5 {
		t.Errorf("row %v", rows[0])
	}
	check(t, os.WriteFile(part, []byte("CONTENT"), 0o600))
	expect(t, r.VerifyFiles(), shard.CodeReferenceMismatch, "S-MAN-5")
	check(t, os.WriteFile(part, []byte("more content"), 0o600))
	expect(t, r.VerifyFiles(), shard.CodeReferenceMismatch, "S-MAN-5")
	check(t, os.Remove(part))
	expect(t, r.VerifyFiles(), shard.CodeMissingFile, "S-MAN-5")
	check(t, os.Mkdir(part, 0o700))
	expect(t, r.VerifyFiles(), shard.CodeReferenceMismatch, "S-MAN-5")
}

func TestAManifestDoesNotLeadOutOfItsFolder(t *testing.T) {
	above := t.TempDir()
	folder := filepath.Join(above, "folder")
	check(t, os.Mkdir(folder, 0o700))
	check(t, os.WriteFile(filepath.Join(above, "secret"), nil, 0o600))
	check(t, os.WriteFile(filepath.Join(folder, "inside"), nil, 0o600))
	if runtime.GOOS != "windows" {
		check(t, os.Symlink("../secret", filepath.Join(folder, "link")))
		check(t, os.Symlink("..", filepath.Join(folder, "up")))
		check(t, os.Symlink("inside", filepath.Join(folder, "same")))
	}
	r := openManifest(t, filepath.Join(folder, "set.shard"))
	for _, uri := range []string{"inside", "./inside", "x/../inside", "same"} {
		if path, err := r.ResolveURI(uri); err != nil || filepath.Base(path) != "inside" {
			t.Errorf("%s: %s, %v", uri, path, err)
		}
	}
	for _, uri := range []string{
		"../secret", "/etc/passwd", "x/../../secret", ".", "..", "", "file:///etc/passwd", "C:/x", "a\\b", "link", "up/secret", "up/folder/inside/../../secret",
	} {
		if path, err := r.ResolveURI(uri); !isUnsafe(err) {
			t.Errorf("%q leads to %q, %v", uri, path, err)
		}
	}
}

func isUnsafe(err error) bool {
	var found *shard.Error
	return errors.As(err, &found) && found.Code == shard.CodeUnsafePath && found.Rule == "S-MAN-4"
}

func TestAManifestThatBreaksARuleIsNotWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.shard")
	digest := "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
	for _, fields := range []shard.Object{
		{}, {"files": 5}, {"files": []any{5}}, {"files": []any{shard.Object{"uri": "a"}}}, {"files": []any{shard.Object{"uri": ""}}},
		{"files": []any{shard.Object{"uri": "a", "sha256": digest, "size": 1}, shard.Object{"uri": "a", "sha256": digest, "size": 1}}},
	} {
		if err := shard.WriteManifest(path, fields); err == nil {
			t.Errorf("%v was written", fields)
		}
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the file is there")
	}
}
