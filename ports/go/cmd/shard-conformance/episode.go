package main

import (
	"encoding/base64"
	"encoding/hex"
	"strconv"

	"github.com/shard-format/shard/ports/go/shard"
	"github.com/shard-format/shard/ports/go/wshard"
)

// longestHex is the number of bytes above which only the digest is told.
const longestHex = 512

// --- reading

func readEpisode(file string) (object, error) {
	ep, err := wshard.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = ep.Close() }()
	return tellEpisode(ep)
}

// teller collects the first error of many small answers.
type teller struct{ err error }

func (t *teller) keep(err error) {
	if t.err == nil {
		t.err = err
	}
}

func tellEpisode(ep *wshard.Episode) (object, error) {
	t := &teller{}
	var rate any
	if ep.Timebase.TickHz > 0 {
		rate = ep.Timebase.TickHz
	}
	told := object{
		"id": ep.ID, "env_id": ep.EnvID, "length": strconv.Itoa(ep.LengthT), "metadata": ep.Metadata,
		"timebase":    object{"epoch_ns": strconv.FormatInt(ep.Timebase.EpochNS, 10), "tick_hz": rate, "type": string(ep.Timebase.Type)},
		"chunk_index": tellCount(ep.ChunkIndex), "total_chunks": tellCount(ep.TotalChunks), "timestep_range": nil,
		"observations": t.channels(ep.Observations), "actions": t.channels(ep.Actions),
		"rewards": nil, "terminations": t.ends(ep.Terminations), "truncations": t.ends(ep.Truncations),
		"ticks": t.clock(ep.Ticks), "timestamps_ns": t.clock(ep.TimestampsNS),
	}
	if ep.TimestepRange != nil {
		told["timestep_range"] = []any{strconv.Itoa(ep.TimestepRange[0]), strconv.Itoa(ep.TimestepRange[1])}
	}
	if ep.Rewards != nil {
		told["rewards"] = t.channel(ep.Rewards)
	}
	omens, uncerts := object{}, object{}
	for channel, models := range ep.Omens {
		omens[channel] = t.channels(models)
	}
	for channel, models := range ep.Uncerts {
		byModel := object{}
		for model, kinds := range models {
			byModel[model] = t.channels(kinds)
		}
		uncerts[channel] = byModel
	}
	residuals, labels, extras := object{}, object{}, object{}
	for key, one := range ep.Residuals {
		residuals[key] = t.residual(one)
	}
	for key, one := range ep.Labels {
		labels[key] = t.label(one)
	}
	for name, one := range ep.Extras {
		data, err := one.Data()
		t.keep(err)
		extras[name] = digest(data)
	}
	told["omens"], told["uncerts"], told["residuals"], told["labels"], told["extras"] = omens, uncerts, residuals, labels, extras
	return told, t.err
}

func tellCount(value *int) any {
	if value == nil {
		return nil
	}
	return strconv.Itoa(*value)
}

func tellBytes(data []byte, told object) {
	if len(data) <= longestHex {
		told["hex"] = hex.EncodeToString(data)
	} else {
		told["sha256"] = digest(data)
	}
}

func (t *teller) channels(channels map[string]*wshard.Channel) object {
	told := object{}
	for key, one := range channels {
		told[key] = t.channel(one)
	}
	return told
}

func (t *teller) channel(c *wshard.Channel) object {
	told := object{
		"block": c.Block(), "dtype": string(c.DType), "inferred": c.Inferred(), "layout": string(c.Layout),
		"length": strconv.Itoa(c.Length), "shape": tellShape(c.Shape),
	}
	switch c.Layout {
	case wshard.Video:
		t.video(c, told)
	case wshard.Text:
		texts, err := c.Strings()
		t.keep(err)
		list := make([]any, len(texts))
		for i, text := range texts {
			list[i] = text
		}
		told["text"] = list
	case wshard.Ragged:
		items, err := c.Items()
		t.keep(err)
		list := make([]any, len(items))
		for i, item := range items {
			list[i] = hex.EncodeToString(item)
		}
		told["items"] = list
	default:
		tellBytes(t.values(c), told)
	}
	t.tellClock(c, told)
	return told
}

func (t *teller) tellClock(c *wshard.Channel, told object) {
	if c.Horizon != 0 {
		told["horizon"] = strconv.Itoa(c.Horizon)
	}
	if c.StartNS != nil {
		told["start_ns"] = strconv.FormatInt(*c.StartNS, 10)
	}
	if c.SamplingRateHz != 0 {
		told["sampling_rate_hz"] = c.SamplingRateHz
	}
	times, err := c.Timestamps()
	t.keep(err)
	if times == nil {
		return
	}
	if c.StartNS != nil && c.SamplingRateHz != 0 {
		told["times_ns"] = tellIntegers(times)
	} else {
		told["timestamps_ns"] = tellIntegers(times)
	}
}

func tellShape(shape []int) []any {
	told := make([]any, len(shape))
	for i, size := range shape {
		told[i] = strconv.Itoa(size)
	}
	return told
}

func tellIntegers(values []int64) []any {
	told := make([]any, len(values))
	for i, value := range values {
		told[i] = strconv.FormatInt(value, 10)
	}
	return told
}

// values gives the bytes of a dense channel; truth values as 00 and 01.
func (t *teller) values(c *wshard.Channel) []byte {
	data, err := c.Data()
	t.keep(err)
	if c.DType != wshard.Bool {
		return data
	}
	flags := make([]byte, len(data))
	for i, value := range data {
		if value != 0 {
			flags[i] = 1
		}
	}
	return flags
}

func (t *teller) video(c *wshard.Channel, told object) {
	packets, err := c.Packets()
	t.keep(err)
	var steps, keyframes, hidden, data []any
	for _, one := range packets {
		steps = append(steps, strconv.FormatInt(one.Step, 10))
		keyframes, hidden = append(keyframes, one.Keyframe), append(hidden, one.Hidden)
		data = append(data, hex.EncodeToString(one.Data))
	}
	told["content_type"], told["extradata"] = c.ContentType, base64.StdEncoding.EncodeToString(c.Extradata)
	told["steps"], told["keyframes"], told["hidden"], told["packets"] = list(steps), list(keyframes), list(hidden), list(data)
}

// list tells an empty list instead of null.
func list(items []any) []any { return append([]any{}, items...) }

func (t *teller) ends(c *wshard.Channel) any {
	if c == nil {
		return nil
	}
	data := t.values(c)
	return object{"block": c.Block(), "length": strconv.Itoa(len(data)), "hex": hex.EncodeToString(data)}
}

func (t *teller) clock(c *wshard.Channel) any {
	if c == nil {
		return nil
	}
	if c.DType == wshard.I64 {
		values, err := wshard.Values[int64](c)
		t.keep(err)
		return tellIntegers(values)
	}
	values, err := wshard.Values[int32](c)
	t.keep(err)
	wide := make([]int64, len(values))
	for i, value := range values {
		wide[i] = int64(value)
	}
	return tellIntegers(wide)
}

func (t *teller) residual(r *wshard.Residual) object {
	told := object{
		"block": r.Values.Block(), "channel": r.Channel, "model": r.Model, "type": r.Type, "scales": nil, "window": nil,
	}
	data, err := r.Values.Data()
	t.keep(err)
	tellBytes(data, told)
	if r.Type == wshard.DeltaQ && r.Scales != nil {
		scales, err := r.Scales.Data()
		t.keep(err)
		told["scales"], told["shape"], told["window"] = hex.EncodeToString(scales), tellShape(r.Values.Shape), strconv.Itoa(r.Window)
	}
	return told
}

func (t *teller) label(label *wshard.Label) object {
	unit, intervals, err := label.Read()
	t.keep(err)
	rows := make([]any, len(intervals))
	for i, one := range intervals {
		row := object{
			"confidence": nil, "end": strconv.FormatInt(one.End, 10), "source": nil,
			"start": strconv.FormatInt(one.Start, 10), "text": one.Text,
		}
		if one.Confidence != nil {
			row["confidence"] = *one.Confidence
		}
		if one.Source != "" {
			row["source"] = one.Source
		}
		rows[i] = row
	}
	return object{"unit": unit, "intervals": rows}
}

// --- steps of invalid vectors

type episodeStep struct {
	When   string
	Touch  []string
	Limits lowered
}

func stepEpisode(file, casePath string) (object, error) {
	var c episodeStep
	if err := readCase(casePath, &c); err != nil {
		return nil, err
	}
	if c.When == "check" {
		for _, finding := range wshard.Check(file) {
			if !finding.IsWarning {
				return nil, finding.Err
			}
		}
		return object{"done": true}, nil
	}
	ep, err := wshard.Open(file, wshard.Options{Options: c.Limits.options(), Sidecars: wshard.StrictSidecars})
	if err != nil {
		return nil, err
	}
	defer func() { _ = ep.Close() }()
	if c.When == "touch" {
		if err := touch(ep, c.Touch); err != nil {
			return nil, err
		}
	}
	return object{"done": true}, nil
}

// touch reads everything of a lane.
func touch(ep *wshard.Episode, path []string) error {
	t := &teller{}
	key := func(i int) string {
		if i < len(path) {
			return path[i]
		}
		return ""
	}
	var c *wshard.Channel
	switch path[0] {
	case "observations":
		c = ep.Observations[key(1)]
	case "actions":
		c = ep.Actions[key(1)]
	case "omens":
		c = ep.Omens[key(1)][key(2)]
	case "uncerts":
		c = ep.Uncerts[key(1)][key(2)][key(3)]
	case "rewards":
		c = ep.Rewards
	case "terminations":
		c = ep.Terminations
	case "truncations":
		c = ep.Truncations
	case "ticks":
		c = ep.Ticks
	case "timestamps_ns":
		c = ep.TimestampsNS
	case "residuals":
		if one := ep.Residuals[key(1)]; one != nil {
			t.residual(one)
			return t.err
		}
	case "labels":
		if one := ep.Labels[key(1)]; one != nil {
			t.label(one)
			return t.err
		}
	}
	if c == nil {
		return &shard.Error{Code: shard.CodeEntryNotFound, Problem: "no such lane"}
	}
	t.channel(c)
	if c.Layout == wshard.Video {
		t.keep(c.CheckPictures())
	}
	return t.err
}
