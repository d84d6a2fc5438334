package wshard

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/shard-format/shard/ports/go/shard"
)

// FuzzEpisode opens any bytes as an episode and reads everything in it. Whatever is wrong must be an error with a code, and
// two ways to read the same must agree.
func FuzzEpisode(f *testing.F) {
	for _, pattern := range []string{"valid/*.wshard", "valid_episodes/*/*.wshard", "invalid_episodes/*.wshard"} {
		for _, file := range vectorFiles(f, pattern) {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		limits := shard.Limits{MaxDecompressedBytes: 1 << 22, MaxWindowBytes: 1 << 22, MaxJSONBytes: 1 << 20}
		// Without checksums, changes of the descriptions are seen, too.
		options := shard.Options{Limits: limits, SkipChecks: true}
		reader, err := shard.NewReader(bytes.NewReader(data), int64(len(data)), options)
		if err != nil {
			expectKnown(t, err)
			return
		}
		ep, err := FromReader(reader)
		if err != nil {
			expectKnown(t, err)
			return
		}
		touchAll(t, ep)
		if _, err := newPlanner(ep).plan(); err != nil {
			expectKnown(t, err)
		}
		joined, err := Join([]*Episode{ep, ep})
		if err != nil {
			expectKnown(t, err)
		} else {
			touchAll(t, joined)
		}
		part, err := ep.Slice(ep.LengthT/3, ep.LengthT/2)
		if err != nil {
			expectKnown(t, err)
		} else {
			touchAll(t, part)
		}
	})
}

func expectKnown(t *testing.T, err error) {
	t.Helper()
	var known *shard.Error
	if err != nil && (!errors.As(err, &known) || known.Code == "") {
		t.Fatalf("an error without a code: %v", err)
	}
}

func touchAll(t *testing.T, ep *Episode) {
	t.Helper()
	channels := []*Channel{ep.Rewards, ep.Terminations, ep.Truncations, ep.Ticks, ep.TimestampsNS}
	for _, c := range ep.lanes() {
		channels = append(channels, c)
	}
	for _, residual := range ep.Residuals {
		channels = append(channels, residual.Values, residual.Scales)
		_, _, err := residual.Signs()
		expectKnown(t, err)
		_, err = residual.Reconstruct(nil)
		expectKnown(t, err)
	}
	for _, extra := range ep.Extras {
		_, err := extra.Data()
		expectKnown(t, err)
		channels = append(channels, extra.Channel())
	}
	for _, label := range ep.Labels {
		_, err := label.Intervals()
		expectKnown(t, err)
	}
	_, err := ep.ReadProvenance()
	expectKnown(t, err)
	for _, c := range channels {
		if c != nil {
			touchChannel(t, c)
		}
	}
}

func touchChannel(t *testing.T, c *Channel) {
	t.Helper()
	whole, err := c.Data()
	expectKnown(t, err)
	_, clockErr := c.Timestamps()
	expectKnown(t, clockErr)
	if err != nil {
		return
	}
	switch c.layout() {
	case Text:
		_, err = c.Strings()
	case Ragged:
		_, err = c.Items()
	case Video:
		if _, err = c.Packets(); err == nil {
			err = c.CheckPictures()
		}
	default:
		_, err = c.Float64()
	}
	expectKnown(t, err)
	window, err := c.Window(c.Length/4, c.Length/2)
	if err != nil {
		expectKnown(t, err)
		return
	}
	part, err := window.Data()
	expectKnown(t, err)
	if err == nil && !strings.Contains(string(whole), string(part)) {
		t.Fatal("a window is no part of the whole")
	}
}

// FuzzManifest reads any text as a manifest of chunks. What is accepted must be one episode without gaps.
func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"episode_id":"x","total_timesteps":3,"chunks":[{"uri":"a","chunk_index":0,"length_T":3,"timestep_range":[0,2]}]}`))
	f.Add([]byte(`{"episode_id":"x","total_timesteps":9223372036854775807,"chunks":[{"uri":"a","chunk_index":0,"length_T":9223372036854775807}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		manifest, err := ChunkManifestFromJSON(text)
		if err == nil {
			err = ValidateChunkContinuity(manifest)
		}
		if err != nil {
			expectKnown(t, err)
			return
		}
		total := 0
		for i, one := range manifest.Chunks {
			if one.ChunkIndex != i || strings.ContainsAny(one.URI, "/\\") || one.LengthT < 0 {
				t.Fatal("a manifest was accepted that breaks a rule")
			}
			total += one.LengthT
		}
		if total != manifest.TotalTimesteps {
			t.Fatal("the lengths do not add up")
		}
	})
}
