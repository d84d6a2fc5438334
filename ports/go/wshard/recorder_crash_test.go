package wshard

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shard-format/shard/ports/go/shard"
)

const childVariable = "WSHARD_TEST_RECORD_TO"

// TestMain is also the child process that is killed.
func TestMain(m *testing.M) {
	if path := os.Getenv(childVariable); path != "" {
		if err := recordUntilKilled(path, os.Getenv(childVariable+"_HOW")); err != nil {
			fmt.Println(err)
		}
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// crashOptions are the ways to record that are killed.
func crashOptions(how string) StreamOptions {
	o := testOptions()
	o.FlushInterval = time.Millisecond
	switch how {
	case "synced zstd":
		o.Compression, o.Sync = shard.CompressionZstd, SyncEveryRun
	case "chunks":
		o.MaxStepsPerFile = 7
	}
	return o
}

// recordUntilKilled tells after each step how many steps a crash cannot lose.
func recordUntilKilled(path, how string) error {
	w, err := NewStreamWriter(path, crashOptions(how))
	if err != nil {
		return err
	}
	for t := 0; ; t++ {
		if err := w.WriteStep(testStep(t)); err != nil {
			return err
		}
		fmt.Println(w.DurableSteps())
	}
}

func TestAKilledProcessLosesNothingThatWasFlushed(t *testing.T) {
	random := rand.New(rand.NewSource(7))
	for _, how := range []string{"raw", "synced zstd", "chunks"} {
		for range 6 {
			path := filepath.Join(t.TempDir(), "ep.wshard")
			durable := killAfter(t, path, how, 1+random.Intn(300))
			found, err := Recover(path, RecoverOptions{NoSync: true})
			if err != nil {
				t.Fatal(err)
			}
			if found.Steps < durable || found.LostSteps > 0 {
				t.Errorf("%s: %v; %d steps were safe", how, found, durable)
			}
			ep := open(t, found.Out)
			checkRecorded(t, ep, found.Steps)
		}
	}
}

// killAfter records in another process, kills it after it has told a number of lines, and gives the last of them.
func killAfter(t *testing.T, path, how string, lines int) int {
	t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childVariable+"="+path, childVariable+"_HOW="+how)
	output, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	told, last := bufio.NewScanner(output), 0
	for count := 1; told.Scan(); count++ {
		if count == lines {
			if err := child.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		if value, err := strconv.Atoi(told.Text()); err == nil {
			last = value
		} else if count < lines {
			t.Fatalf("the recording says: %s", told.Text())
		}
	}
	_ = child.Wait()
	return last
}

// fullFile has no more room after some bytes.
type fullFile struct {
	*os.File
	left *int
}

func (f fullFile) Write(data []byte) (int, error) {
	count, err := f.File.Write(data[:min(len(data), *f.left)])
	*f.left -= count
	if err == nil && count < len(data) {
		err = &os.PathError{Op: "write", Path: f.Name(), Err: syscall.ENOSPC}
	}
	return count, err
}

func TestAFullDiskLeavesARecordingThatIsRecovered(t *testing.T) {
	defer func(before func(*os.File) recordedFile) { wrapRecordedFile = before }(wrapRecordedFile)
	random := rand.New(rand.NewSource(8))
	for range 12 {
		path := filepath.Join(t.TempDir(), "ep.wshard")
		room := 2500 + random.Intn(20000)
		wrapRecordedFile = func(file *os.File) recordedFile { return fullFile{file, &room} }
		w := start(t, path, testOptions())
		var err error
		for i := 0; err == nil; i++ {
			if err = w.WriteStep(testStep(i)); i%10 == 9 && err == nil {
				err = w.Flush()
			}
		}
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "Recover") {
			t.Errorf("a full disk gives: %v", err)
		}
		if err := w.Finish(); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("finishing gives: %v", err)
		}
		found, err := Recover(path, RecoverOptions{NoSync: true})
		if err != nil {
			t.Fatal(err)
		}
		if found.Steps < w.DurableSteps() || found.Finished {
			t.Errorf("%v; %d steps were safe", found, w.DurableSteps())
		}
		checkRecorded(t, open(t, path), found.Steps)
	}
}
