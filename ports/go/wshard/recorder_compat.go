package wshard

import (
	"os"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

// WShardChannelDef declares a channel of a WShardStreamWriter.
type WShardChannelDef struct {
	Name, DType string
	Shape       []int
	Modality    string
}

// StreamOption changes a WShardStreamWriter.
type StreamOption func(*WShardStreamWriter)

// WithMaxTimesteps refuses steps beyond a number.
func WithMaxTimesteps(count int) StreamOption {
	return func(w *WShardStreamWriter) { w.most = count }
}

// WithFlushInterval writes a run after this many steps; 0 for 64.
func WithFlushInterval(steps int) StreamOption {
	return func(w *WShardStreamWriter) { w.options.FlushSteps = steps }
}

// WithStreamCompression compresses channels where that is worth it.
func WithStreamCompression(codec shard.Codec) StreamOption {
	return func(w *WShardStreamWriter) { w.options.Compression = codec }
}

// WShardStreamWriter is the older interface of StreamWriter: the first step tells which channels are actions.
type WShardStreamWriter struct {
	path    string
	defs    []*WShardChannelDef
	options StreamOptions
	most    int
	writer  *StreamWriter
	values  map[string][]byte
}

// NewWShardStreamWriter prepares a recording. Call BeginEpisode.
func NewWShardStreamWriter(path, episodeID string, defs []*WShardChannelDef, options ...StreamOption) (*WShardStreamWriter, error) {
	w := &WShardStreamWriter{path: path, defs: defs, values: map[string][]byte{}}
	w.options = StreamOptions{EpisodeID: episodeID, Rewards: true, Done: true}
	for _, option := range options {
		option(w)
	}
	if _, err := w.options.withDefaults(); err != nil {
		return nil, fault.Located(err, path, "")
	}
	_, err := w.channels(nil)
	return w, fault.Located(err, path, "")
}

// channels gives the declarations; those that a step has among its actions are actions.
func (w *WShardStreamWriter) channels(actions map[string][]byte) ([]ChannelDef, error) {
	defs := make([]ChannelDef, len(w.defs))
	for i, def := range w.defs {
		if def == nil {
			return nil, invalid("a channel is nil")
		}
		_, isAction := actions[def.Name]
		defs[i] = ChannelDef{ID: def.Name, DType: DType(def.DType), Shape: def.Shape, Modality: def.Modality, IsAction: isAction}
		if _, err := defs[i].recorded(); err != nil {
			return nil, err
		}
	}
	return defs, nil
}

// BeginEpisode opens the journal.
func (w *WShardStreamWriter) BeginEpisode(envID string, timebase Timebase) error {
	if w.writer != nil {
		return fault.Located(invalid("the episode has begun already"), w.path, "")
	}
	w.options.EnvID, w.options.Timebase = envID, timebase
	var err error
	w.writer, err = newStreamWriter(w.path, w.options)
	return err
}

// WriteTimestep records a step: the bytes of every channel, little-endian in C order. t is not looked at: steps are
// recorded in the order of the calls.
func (w *WShardStreamWriter) WriteTimestep(_ int, observations, actions map[string][]byte, reward float32, done bool) error {
	if w.writer == nil {
		return fault.Located(invalid("call BeginEpisode first"), w.path, "")
	}
	if w.most > 0 && w.TimestepCount() >= w.most {
		return fault.Located(invalid("the recording has its %d steps", w.most), w.path, "")
	}
	if err := w.declare(actions); err != nil {
		return err
	}
	clear(w.values)
	for _, lane := range []map[string][]byte{observations, actions} {
		for name, value := range lane {
			if _, twice := w.values[name]; twice {
				return fault.Located(invalid("a channel is an observation and an action"), w.path, name)
			}
			w.values[name] = value
		}
	}
	return w.writer.WriteStep(Step{Values: w.values, Reward: float64(reward), Done: done})
}

func (w *WShardStreamWriter) declare(actions map[string][]byte) error {
	if w.writer.steps != nil {
		return nil
	}
	defs, err := w.channels(actions)
	if err != nil {
		return fault.Located(err, w.path, "")
	}
	return w.writer.declareSteps(defs)
}

// EndEpisode makes the episode, and gives the size of its file.
func (w *WShardStreamWriter) EndEpisode() (int64, error) {
	if w.writer == nil {
		return 0, fault.Located(invalid("call BeginEpisode first"), w.path, "")
	}
	if err := w.declare(nil); err != nil {
		return 0, err
	}
	if err := w.writer.Finish(); err != nil {
		return 0, err
	}
	path := w.writer.EpisodePath()
	status, err := os.Stat(path)
	if err != nil {
		return 0, fault.IO("cannot read", path, err)
	}
	return status.Size(), nil
}

// Close stops recording and keeps the journal, for Recover. It does nothing after EndEpisode.
func (w *WShardStreamWriter) Close() error {
	if w.writer == nil {
		return nil
	}
	return w.writer.Close()
}

// TimestepCount counts the steps recorded so far.
func (w *WShardStreamWriter) TimestepCount() int {
	if w.writer == nil {
		return 0
	}
	return w.writer.StepsWritten()
}
