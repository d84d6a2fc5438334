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
