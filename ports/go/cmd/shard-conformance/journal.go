package main

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"github.com/shard-format/shard/ports/go/shard"
	"github.com/shard-format/shard/ports/go/wshard"
)

// readJournal tells what comes back of a recording: it is saved as an episode, and that is read.
func readJournal(file string) (object, error) {
	folder, err := os.MkdirTemp("", "shard-conformance-*")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	out := filepath.Join(folder, "out.wshard")
	found, err := wshard.Recover(file, wshard.RecoverOptions{Out: out, NoSync: true})
	if err != nil {
		return nil, err
	}
	episode, err := readEpisode(out)
	if err != nil {
		return nil, err
	}
	cut := object{}
	for block, count := range found.Cut {
		cut[block] = strconv.Itoa(count)
	}
	told := object{
		"cut": cut, "episode": episode, "finished": found.Finished,
		"read_bytes": strconv.FormatInt(found.ReadBytes, 10),
	}
	if found.Reason != nil {
		told["error"], told["rule"] = string(found.Reason.Code), found.Reason.Rule
	}
	return told, nil
}

// recoverJournal saves what a recording holds as an episode.
func recoverJournal(in, out string) (object, error) {
	if _, err := wshard.Recover(in, wshard.RecoverOptions{Out: out, NoSync: true}); err != nil {
		return nil, err
	}
	return tellWritten(out)
}

// record records an episode step by step, and leaves the journal beside the name of the episode that it would become.
func record(arguments []string) (object, error) {
	ep, err := wshard.Open(arguments[0])
	if err != nil {
		return nil, err
	}
	defer func() { _ = ep.Close() }()
	o := wshard.StreamOptions{
		EpisodeID: ep.ID, EnvID: ep.EnvID, Timebase: ep.Timebase, Metadata: ep.Metadata, FlushSteps: 5, Sync: wshard.SyncNever,
		Rewards: ep.Rewards != nil, Done: ep.Terminations != nil && ep.Truncations == nil, Ends: ep.Truncations != nil,
		Timestamps: ep.TimestampsNS != nil, Compression: shard.CompressionZstd,
	}
	channels := map[string]*wshard.Channel{}
	for lane, named := range map[string]map[string]*wshard.Channel{"signal/": ep.Observations, "action/": ep.Actions} {
		for id, c := range named {
			o.Channels = append(o.Channels, wshard.ChannelDef{
				ID: id, IsAction: lane == "action/", DType: c.DType, Shape: c.Shape, Layout: c.Layout, OwnClock: c.HasOwnClock(),
				SamplingRateHz: c.SamplingRateHz, Horizon: c.Horizon, Modality: c.Modality, Unit: c.Unit, Fields: c.Fields,
			})
			key := id
			if ep.Observations[id] != nil && ep.Actions[id] != nil {
				key = lane + id
			}
			channels[key] = c
		}
	}
	w, err := wshard.NewStreamWriter(arguments[1], o)
	if err != nil {
		return nil, err
	}
	err = recordSteps(w, ep, channels)
	return object{"steps": strconv.Itoa(w.StepsWritten())}, errors.Join(err, w.Close())
}

func recordSteps(w *wshard.StreamWriter, ep *wshard.Episode, channels map[string]*wshard.Channel) error {
	final := map[string][]byte{}
	for key, c := range channels {
		times, err := c.Timestamps()
		for i := 0; err == nil && i < len(times); i++ {
			var value []byte
			if value, err = c.Step(i); err == nil {
				err = w.Write(key, value, times[i])
			}
		}
		if err == nil && times == nil && c.Length > ep.LengthT {
			final[key], err = c.Step(ep.LengthT)
		}
		if err != nil {
			return err
		}
	}
	for t := range ep.LengthT {
		step, err := stepOf(ep, channels, t)
		if err == nil {
			err = w.WriteStep(step)
		}
		if err != nil {
			return err
		}
	}
	if len(final) == 0 {
		return nil
	}
	return w.WriteFinal(final)
}

// stepOf gives step t of an episode.
func stepOf(ep *wshard.Episode, channels map[string]*wshard.Channel, t int) (wshard.Step, error) {
	var all error
	value := func(c *wshard.Channel) uint64 {
		var word [8]byte
		if c != nil {
			data, err := c.Step(t)
			all = errors.Join(all, err)
			copy(word[:], data)
		}
		return binary.LittleEndian.Uint64(word[:])
	}
	step := wshard.Step{Values: map[string][]byte{}, TimestampNS: int64(value(ep.TimestampsNS))}
	for key, c := range channels {
		if !c.HasOwnClock() {
			var err error
			step.Values[key], err = c.Step(t)
			all = errors.Join(all, err)
		}
	}
	if ep.Truncations != nil {
		step.Terminated, step.Truncated = value(ep.Terminations) != 0, value(ep.Truncations) != 0
	} else {
		step.Done = value(ep.Terminations) != 0
	}
	if ep.Rewards != nil {
		rewards, err := ep.Rewards.Window(t, t+1)
		if err != nil {
			return step, err
		}
		values, err := rewards.Float64()
		all = errors.Join(all, err)
		if len(values) == 1 {
			step.Reward = values[0]
		}
	}
	return step, all
}
