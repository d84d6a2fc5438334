package wshard

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/shard-format/shard/ports/go/shard"
)

// pythonRecover recovers every journal of pairs of paths; it exits with 3 if Python has no wshard.
const pythonRecover = `
import sys
try:
    from wshard.partial import recover
except ImportError:
    sys.exit(3)
for journal, out in zip(sys.argv[1::2], sys.argv[2::2]):
    found = recover(journal, out, fsync=False)
    assert not found.lost_data and found.error is None, str(found)
`

// TestPythonRecoversTheSameBytes needs the Python library: WSHARD_PYTHON is an interpreter that has it, by default python3.
func TestPythonRecoversTheSameBytes(t *testing.T) {
	program := os.Getenv("WSHARD_PYTHON")
	if program == "" {
		program = "python3"
	}
	var folders, arguments []string
	for _, codec := range []shard.Codec{shard.CompressionNone, shard.CompressionZstd} {
		for _, limit := range []int{0, 6} {
			folder := t.TempDir()
			path := filepath.Join(folder, "ep.wshard")
			o := testOptions()
			o.Compression, o.MaxStepsPerFile = codec, limit
			w := start(t, path, o)
			record(t, w, 0, 23)
			if err := w.Annotate("phase", Interval{Start: 2, End: 9, Text: "reach", Source: "ada"}); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			mine, err := Recover(path, RecoverOptions{Out: filepath.Join(folder, "go", "ep.wshard"), NoSync: true})
			if err != nil {
				t.Fatal(err)
			}
			checkRecorded(t, open(t, mine.Out), 23)
			if err := os.Mkdir(filepath.Join(folder, "python"), 0o777); err != nil {
				t.Fatal(err)
			}
			folders = append(folders, folder)
			arguments = append(arguments, path, filepath.Join(folder, "python", "ep.wshard"))
		}
	}
	text, err := exec.Command(program, append([]string{"-c", pythonRecover}, arguments...)...).CombinedOutput()
	var status *exec.ExitError
	if errors.Is(err, exec.ErrNotFound) || (errors.As(err, &status) && status.ExitCode() == 3) {
		t.Skipf("%s has no wshard: set WSHARD_PYTHON and PYTHONPATH", program)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	for _, folder := range folders {
		files, err := os.ReadDir(filepath.Join(folder, "go"))
		if err != nil || len(files) == 0 {
			t.Fatal(err)
		}
		for _, file := range files {
			a, err1 := os.ReadFile(filepath.Join(folder, "go", file.Name()))
			b, err2 := os.ReadFile(filepath.Join(folder, "python", file.Name()))
			if err1 != nil || err2 != nil || !bytes.Equal(a, b) {
				t.Errorf("%s differs: %v %v", file.Name(), err1, err2)
			}
		}
	}
}
