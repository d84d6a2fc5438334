package main

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"os"
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
	When  string
	Touch []string
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
	ep, err := wshard.Open(file, wshard.Options{Sidecars: wshard.StrictSidecars})
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

// --- writing

type toldChannel struct {
	DType, Hex, Layout, Length string
	Shape, Items, Text         []string
	Packets, Steps             []string
	Keyframes, Hidden          []bool
	ContentType                string `json:"content_type"`
	Extradata                  string
	Row                        json.RawMessage
	TimestampsNS               []string `json:"timestamps_ns"`
	StartNS                    string   `json:"start_ns"`
	SamplingRateHz             float64  `json:"sampling_rate_hz"`
	Horizon                    string
}

type toldInterval struct {
	Start, End, Text string
	Source           *string
	Confidence       *float64
}

type toldEpisode struct {
	ID       string
	EnvID    string `json:"env_id"`
	Length   string
	Metadata json.RawMessage
	Timebase struct {
		Type    string
		TickHz  *float64 `json:"tick_hz"`
		EpochNS string   `json:"epoch_ns"`
	}
	ChunkIndex            *string  `json:"chunk_index"`
	TotalChunks           *string  `json:"total_chunks"`
	TimestepRange         []string `json:"timestep_range"`
	Observations, Actions map[string]toldChannel
	Omens                 map[string]map[string]toldChannel
	Uncerts               map[string]map[string]map[string]toldChannel
	Rewards               *toldChannel
	Terminations          *string
	Truncations           *string
	Ticks                 []string
	TimestampsNS          []string `json:"timestamps_ns"`
	Residuals             []struct{ Channel, Model, Type, Window string }
	Labels                map[string]struct {
		Unit      string
		Intervals []toldInterval
	}
	Extras map[string]struct {
		Hex         string
		ContentType string `json:"content_type"`
	}
	Provenance *struct {
		EndState     string `json:"end_state"`
		StartState   string `json:"start_state"`
		PrevIdentity string `json:"prev_identity"`
		RunID        string `json:"run_id"`
		Epoch        int64
		FirstSeq     int64 `json:"first_seq"`
		LastSeq      int64 `json:"last_seq"`
		Source       map[string]string
	}
}

func writeEpisode(casePath, out string) (object, error) {
	var c struct {
		Options struct {
			Compression string
			Identity    bool
		}
		Episode toldEpisode
	}
	if err := readCase(casePath, &c); err != nil {
		return nil, err
	}
	ep, err := c.Episode.episode()
	if err != nil {
		return nil, err
	}
	codecs := map[string]shard.Codec{"zstd": shard.CompressionZstd, "lz4": shard.CompressionLZ4}
	_ = os.Remove(out)
	options := wshard.SaveOptions{Compression: codecs[c.Options.Compression], Identity: c.Options.Identity, NoSync: true}
	if err := wshard.Save(out, ep, options); err != nil {
		return nil, err
	}
	return tellWritten(out)
}

func integer(text string) int64 {
	value, _ := strconv.ParseInt(text, 10, 64)
	return value
}

func integers(texts []string) []int64 {
	values := make([]int64, len(texts))
	for i, text := range texts {
		values[i] = integer(text)
	}
	return values
}

func (told *toldEpisode) episode() (*wshard.Episode, error) {
	ep := wshard.New(told.ID, int(integer(told.Length)))
	ep.EnvID = told.EnvID
	ep.Timebase = wshard.Timebase{Type: wshard.TimebaseType(told.Timebase.Type), EpochNS: integer(told.Timebase.EpochNS)}
	if told.Timebase.TickHz != nil {
		ep.Timebase.TickHz = *told.Timebase.TickHz
	}
	var err error
	if told.Metadata != nil {
		if ep.Metadata, err = shard.ParseObject(told.Metadata); err != nil {
			return nil, err
		}
	}
	for _, pair := range []struct {
		from *string
		to   **int
	}{{told.ChunkIndex, &ep.ChunkIndex}, {told.TotalChunks, &ep.TotalChunks}} {
		if pair.from != nil {
			value := int(integer(*pair.from))
			*pair.to = &value
		}
	}
	if told.TimestepRange != nil {
		ep.TimestepRange = &[2]int{int(integer(told.TimestepRange[0])), int(integer(told.TimestepRange[1]))}
	}
	if err := told.addChannels(ep); err != nil {
		return nil, err
	}
	if err := told.addSteps(ep); err != nil {
		return nil, err
	}
	for _, one := range told.Residuals {
		if err := ep.AddResidual(one.Channel, one.Model, one.Type, int(integer(one.Window))); err != nil {
			return nil, err
		}
	}
	for name, extra := range told.Extras {
		data, err := hex.DecodeString(extra.Hex)
		if err != nil {
			return nil, err
		}
		ep.Extras[name] = wshard.NewExtra(data, uint16(integer(extra.ContentType)))
	}
	told.addLabels(ep)
	if p := told.Provenance; p != nil {
		ep.Provenance = &wshard.Provenance{
			EndState: p.EndState, StartState: p.StartState, PrevIdentity: p.PrevIdentity, RunID: p.RunID,
			Epoch: p.Epoch, FirstSeq: p.FirstSeq, LastSeq: p.LastSeq, Source: p.Source,
		}
	}
	return ep, nil
}

func (told *toldEpisode) addLabels(ep *wshard.Episode) {
	for key, label := range told.Labels {
		intervals := make([]wshard.Interval, len(label.Intervals))
		for i, one := range label.Intervals {
			intervals[i] = wshard.Interval{Start: integer(one.Start), End: integer(one.End), Text: one.Text, Confidence: one.Confidence}
			if one.Source != nil {
				intervals[i].Source = *one.Source
			}
		}
		ep.Labels[key] = wshard.NewLabel(label.Unit, intervals...)
	}
}

func (told *toldEpisode) addChannels(ep *wshard.Episode) error {
	t := &teller{}
	channel := func(one toldChannel) *wshard.Channel {
		c, err := one.channel(ep.LengthT)
		t.keep(err)
		return c
	}
	for key, one := range told.Observations {
		ep.Observations[key] = channel(one)
	}
	for key, one := range told.Actions {
		ep.Actions[key] = channel(one)
	}
	for name, models := range told.Omens {
		for model, one := range models {
			ep.SetOmen(name, model, channel(one))
		}
	}
	for name, models := range told.Uncerts {
		for model, kinds := range models {
			for kind, one := range kinds {
				ep.SetUncert(name, model, kind, channel(one))
			}
		}
	}
	if told.Rewards != nil {
		ep.Rewards = channel(*told.Rewards)
	}
	return t.err
}

func (told *toldEpisode) addSteps(ep *wshard.Episode) error {
	for _, pair := range []struct {
		from *string
		to   **wshard.Channel
	}{{told.Terminations, &ep.Terminations}, {told.Truncations, &ep.Truncations}} {
		if pair.from == nil {
			continue
		}
		data, err := hex.DecodeString(*pair.from)
		if err != nil {
			return err
		}
		*pair.to = wshard.FromBytes(wshard.Bool, nil, data)
	}
	if told.Ticks != nil {
		ticks := make([]int32, len(told.Ticks))
		for i, text := range told.Ticks {
			ticks[i] = int32(integer(text))
		}
		ep.Ticks = wshard.FromValues(ticks)
	}
	if told.TimestampsNS != nil {
		ep.TimestampsNS = wshard.FromValues(integers(told.TimestampsNS))
	}
	return nil
}

func (told *toldChannel) channel(steps int) (*wshard.Channel, error) {
	c, err := told.values(steps)
	if err != nil {
		return nil, err
	}
	if told.StartNS != "" {
		start := integer(told.StartNS)
		c.StartNS = &start
	}
	c.SamplingRateHz, c.Horizon = told.SamplingRateHz, int(integer(told.Horizon))
	if told.TimestampsNS != nil {
		c.SetTimestamps(integers(told.TimestampsNS))
	}
	if told.Row == nil {
		return c, nil
	}
	row, err := shard.ParseObject(told.Row)
	for field, value := range row {
		text, _ := value.(string)
		switch field {
		case "modality":
			c.Modality = text
		case "semantics":
			c.Semantics = text
		case "content_type":
			c.ContentType = text
		case "unit":
			c.Unit = text
		case "description":
			c.Description = text
		case "lossy":
			c.Lossy, _ = value.(map[string]any)
		default:
			if c.Fields == nil {
				c.Fields = shard.Object{}
			}
			c.Fields[field] = value
		}
	}
	return c, err
}

func (told *toldChannel) values(steps int) (*wshard.Channel, error) {
	dtype := wshard.DType(told.DType)
	shape := make([]int, len(told.Shape))
	for i, size := range told.Shape {
		shape[i] = int(integer(size))
	}
	pieces := func(texts []string) ([][]byte, error) {
		list := make([][]byte, len(texts))
		for i, text := range texts {
			var err error
			if list[i], err = hex.DecodeString(text); err != nil {
				return nil, err
			}
		}
		return list, nil
	}
	switch wshard.Layout(told.Layout) {
	case wshard.Text:
		return wshard.FromStrings(told.Text), nil
	case wshard.Ragged:
		items, err := pieces(told.Items)
		return wshard.FromItems(dtype, shape, items), err
	case wshard.Video:
		data, err := pieces(told.Packets)
		if err != nil {
			return nil, err
		}
		packets := make([]wshard.Packet, len(data))
		for i := range packets {
			packets[i] = wshard.Packet{Data: data[i], Step: int64(i), Keyframe: true}
			if told.Steps != nil {
				packets[i].Step, packets[i].Keyframe, packets[i].Hidden = integer(told.Steps[i]), told.Keyframes[i], told.Hidden[i]
			}
		}
		c := wshard.FromPackets(told.ContentType, dtype, shape, packets)
		c.Extradata, err = base64.StdEncoding.DecodeString(told.Extradata)
		return c, err
	}
	data, err := hex.DecodeString(told.Hex)
	c := wshard.FromBytes(dtype, shape, data)
	if told.Length != "" {
		c.Length = int(integer(told.Length))
	} else if len(data) == 0 {
		c.Length = steps
	}
	return c, err
}

func rewriteEpisode(in, out string) (object, error) {
	ep, err := wshard.Open(in)
	if err != nil {
		return nil, err
	}
	defer func() { _ = ep.Close() }()
	if err := wshard.Save(out, ep, wshard.SaveOptions{NoSync: true}); err != nil {
		return nil, err
	}
	return tellWritten(out)
}
