package shard

import (
	"path/filepath"
	"testing"
)

func TestACopiedEntryKeepsItsStoredForm(t *testing.T) {
	files, err := filepath.Glob("../../../spec/vectors/valid/*.*shard")
	if err != nil || len(files) == 0 {
		t.Fatal("no vectors", err)
	}
	for _, file := range files {
		from, err := OpenShard(file)
		if err != nil {
			t.Fatal(err)
		}
		if from.EntryCount() > 1000 {
			_ = from.Close()
			continue
		}
		path := filepath.Join(t.TempDir(), "copy.shard")
		w, err := NewShardStreamWriter(path, ShardOptions{Role: from.Header().Role, NoSync: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range from.EntryNames() {
			if err := w.checkName(name); err != nil {
				continue // readers accept names that writers do not write
			}
			if err := w.CopyEntry(from, name, EntryOptions{}); err != nil {
				t.Fatal(file, err)
			}
		}
		if err := w.Finalize(); err != nil {
			t.Fatal(err)
		}
		to, err := OpenShard(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range to.EntryNames() {
			before, _ := from.Info(name)
			after, err := to.Info(name)
			if err != nil || after.Codec != before.Codec || after.DiskSize != before.DiskSize || after.OrigSize != before.OrigSize {
				t.Errorf("%s: %q is stored in another form: %v", file, name, err)
			}
			wanted, _ := from.ReadEntry(name)
			if found, err := to.ReadEntry(name); err != nil || string(found) != string(wanted) {
				t.Errorf("%s: %q has another content: %v", file, name, err)
			}
		}
		_, _ = from.Close(), to.Close()
	}
}
