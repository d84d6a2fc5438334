package main

import (
	"encoding/hex"
	"errors"
	"os"
	"time"

	"github.com/shard-format/shard/ports/go/wshard"
)

type recordingCase struct {
	Options struct {
		FlushSteps string `json:"flush_steps"`
	}
	Episode  toldEpisode
	Channels []struct {
		ID, Lane, DType, Layout string
		OwnClock                bool `json:"own_clock"`
		Shape                   []string
	}
	Calls []recordingCall
	Final map[string]string
}

// recordingCall has one of these.
type recordingCall struct {
	Step *struct {
		Values                      map[string]string
		Reward                      *float64
		Done, Terminated, Truncated *bool
		TimestampNS                 *string `json:"timestamp_ns"`
	}
	Write *struct {
		Channel, Value string
		TimestampNS    string `json:"timestamp_ns"`
	}
	Annotate *struct{ Label, Text, Start, End string }
}

// writeRecording records a case step by step, and tells the journal, as it is before the episode is finished.
func writeRecording(casePath, out string) (object, error) {
	var c recordingCase
	if err := readCase(casePath, &c); err != nil {
		return nil, err
	}
	options, err := c.options()
	if err != nil {
		return nil, err
	}
	w, err := wshard.NewStreamWriter(out, options)
	if err != nil {
		return nil, err
	}
	journal, err := c.record(w)
	if err != nil {
		return nil, errors.Join(err, w.Abort())
	}
	if err := w.Finish(); err != nil {
		return nil, err
	}
	told, err := tellWritten(out)
	if err == nil {
		told["journal_sha256"] = digest(journal)
	}
	return told, err
}

func (c *recordingCase) options() (wshard.StreamOptions, error) {
	ep, err := c.Episode.episode()
	if err != nil {
		return wshard.StreamOptions{}, err
	}
	o := wshard.StreamOptions{
		EpisodeID: ep.ID, EnvID: ep.EnvID, Timebase: ep.Timebase, Metadata: ep.Metadata, Overwrite: true, OnPartial: wshard.PartialDiscard,
		FlushSteps: int(integer(c.Options.FlushSteps)), FlushInterval: time.Hour, Sync: wshard.SyncNever,
	}
	for _, told := range c.Channels {
		def := wshard.ChannelDef{
			ID: told.ID, IsAction: told.Lane == "action", DType: wshard.DType(told.DType), Layout: wshard.Layout(told.Layout), OwnClock: told.OwnClock,
		}
		for _, size := range integers(told.Shape) {
			def.Shape = append(def.Shape, int(size))
		}
		o.Channels = append(o.Channels, def)
	}
	for _, call := range c.Calls {
		if step := call.Step; step != nil {
			o.Rewards, o.Done, o.Timestamps = step.Reward != nil, step.Done != nil, step.TimestampNS != nil
			o.Ends = step.Terminated != nil
			break
		}
	}
	return o, nil
}

// record makes the calls, and gives the journal after them.
func (c *recordingCase) record(w *wshard.StreamWriter) ([]byte, error) {
	for _, call := range c.Calls {
		if err := call.do(w); err != nil {
			return nil, err
		}
	}
	if err := w.Flush(); err != nil {
		return nil, err
	}
	journal, err := os.ReadFile(w.JournalPath())
	if err != nil || len(c.Final) == 0 {
		return journal, err
	}
	final, err := decoded(c.Final)
	if err != nil {
		return nil, err
	}
	return journal, w.WriteFinal(final)
}

func (call recordingCall) do(w *wshard.StreamWriter) error {
	if one := call.Annotate; one != nil {
		return w.Annotate(one.Label, wshard.Interval{Start: integer(one.Start), End: integer(one.End), Text: one.Text})
	}
	if one := call.Write; one != nil {
		value, err := hex.DecodeString(one.Value)
		if err != nil {
			return err
		}
		return w.Write(one.Channel, value, integer(one.TimestampNS))
	}
	values, err := decoded(call.Step.Values)
	if err != nil {
		return err
	}
	step := wshard.Step{Values: values}
	if call.Step.Reward != nil {
		step.Reward = *call.Step.Reward
	}
	if call.Step.TimestampNS != nil {
		step.TimestampNS = integer(*call.Step.TimestampNS)
	}
	for _, end := range []struct{ from, to *bool }{
		{call.Step.Done, &step.Done}, {call.Step.Terminated, &step.Terminated}, {call.Step.Truncated, &step.Truncated},
	} {
		if end.from != nil {
			*end.to = *end.from
		}
	}
	return w.WriteStep(step)
}

func decoded(told map[string]string) (map[string][]byte, error) {
	values := make(map[string][]byte, len(told))
	for key, text := range told {
		value, err := hex.DecodeString(text)
		if err != nil {
			return nil, err
		}
		values[key] = value
	}
	return values, nil
}
