package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/shard-format/shard/ports/go/shard"
)

const vectors = "../../../../spec/vectors"

// eachVector runs a test for each JSON file of a group.
func eachVector(t *testing.T, group string, run func(t *testing.T, path string, told object)) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(vectors, group, "*.json"))
	if err != nil || len(paths) == 0 {
		t.Fatal("no vectors in", group, err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var told object
		if err := json.Unmarshal(text, &told); err != nil {
			t.Fatal(err)
		}
		t.Run(strings.TrimSuffix(filepath.Base(path), ".json"), func(t *testing.T) { run(t, path, told) })
	}
}

func TestEveryValidEpisodeIsReadAsItsVectorTells(t *testing.T) {
	for _, group := range []string{"valid", "valid_episodes"} {
		eachVector(t, group, func(t *testing.T, path string, told object) {
			wanted, isEpisode := told["episode"].(object)
			if !isEpisode {
				t.Skip("not an episode")
			}
			answer, err := readEpisode(filepath.Join(filepath.Dir(path), told["file"].(string)))
			if err != nil {
				t.Fatal(err)
			}
			var found object
			if err := json.Unmarshal([]byte(line(answer)), &found); err != nil {
				t.Fatal(err)
			}
			for key, value := range wanted {
				if key == "ticks" && value == nil {
					continue // a reader may make them up
				}
				if !reflect.DeepEqual(found[key], relaxed(value, found[key])) {
					t.Errorf("%s:\n found %v\nwanted %v", key, found[key], value)
				}
			}
		})
	}
}

// relaxed gives what a vector says with the parts of an answer that every reader may choose.
func relaxed(wanted, found any) any {
	object, isObject := wanted.(map[string]any)
	other, isSame := found.(map[string]any)
	if !isObject || !isSame {
		return wanted
	}
	made := map[string]any{}
	for key, value := range object {
		made[key] = relaxed(value, other[key])
	}
	if object["time_axis"] == false { // only the bytes count
		delete(made, "time_axis")
		for _, key := range []string{"dtype", "layout", "length", "shape"} {
			made[key] = other[key]
		}
	}
	if object["layout"] == "video" {
		delete(made, "frames") // this reader has no decoder
	}
	return made
}

func TestEveryInvalidEpisodeIsRefusedWithItsCodeAndRule(t *testing.T) {
	eachVector(t, "invalid_episodes", func(t *testing.T, path string, told object) {
		_, err := stepEpisode(filepath.Join(filepath.Dir(path), told["file"].(string)), path)
		var found *shard.Error
		if !errors.As(err, &found) {
			t.Fatalf("expected %s, found %v", told["error"], err)
		}
		also, _ := told["also"].([]any)
		if !slices.Contains(append(also, told["error"]), any(string(found.Code))) {
			t.Errorf("expected %s (%s), found %v", told["error"], told["rule"], err)
		}
		rules, _ := told["rules_also"].([]any)
		if len(also) == 0 && found.Code != shard.CodeChunkDiscontinuity && !slices.Contains(append(rules, told["rule"]), any(found.Rule)) {
			t.Errorf("expected the rule %s, found %v", told["rule"], err)
		}
		if found.Path == "" {
			t.Errorf("the error does not name the file: %v", err)
		}
	})
}

func TestEveryCanonicalEpisodeIsWrittenByteForByte(t *testing.T) {
	eachVector(t, "canonical", func(t *testing.T, path string, told object) {
		if told["kind"] != "episode" {
			t.Skip("not an episode")
		}
		answer, err := writeEpisode(path, filepath.Join(t.TempDir(), "out.wshard"))
		if err != nil {
			t.Fatal(err)
		}
		if answer["identity"] != told["identity"] {
			t.Error("another identity:", answer["identity"])
		}
		if wanted, isRaw := told["sha256"]; isRaw && answer["sha256"] != wanted {
			t.Error("other bytes:", answer["sha256"])
		}
	})
}
