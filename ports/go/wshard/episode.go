package wshard

import (
	"github.com/shard-format/shard/ports/go/shard"
)

// Episode is one episode: what happened step by step, and what models predicted.
//
// Open gives one that reads its arrays when they are asked for. New makes an empty one. Save writes one.
type Episode struct {
	ID, EnvID string
	// LengthT is T, the number of steps.
	LengthT  int
	Timebase Timebase
	// Metadata is anything that the user adds, as values of JSON.
	Metadata shard.Object

	// Observations and Actions are by name. An observation may hold one entry more than there are steps.
	Observations, Actions map[string]*Channel
	// Rewards, Terminations and Truncations are nil if the episode has none.
	Rewards, Terminations, Truncations *Channel
	// Omens are predictions, by channel and model.
	Omens map[string]map[string]*Channel
	// Uncerts are the uncertainties of predictions, by channel, model and type; the model may be empty.
	Uncerts map[string]map[string]map[string]*Channel
	// Residuals are by name: the channel, the model if there is one, and the type unless that is Sign2ndDiff.
	Residuals map[string]*Residual
	Labels    map[string]*Label
	// Extras are the entries that belong to no lane, by name.
	Extras map[string]*Extra

	// Ticks is the stored time/ticks; nil if there is none. Save then numbers the steps.
	Ticks *Channel
	// TimestampsNS has the time of each step; nil if the steps follow the rate.
	TimestampsNS *Channel

	// ChunkIndex, TotalChunks and TimestepRange (both ends included) are set in a chunk of a longer episode.
	ChunkIndex, TotalChunks *int
	TimestepRange           *[2]int

	// ResidualEdges is EdgesPad if it is empty.
	ResidualEdges string
	// Provenance is what Save writes as meta/provenance. ReadProvenance gives what a file has.
	Provenance *Provenance
	// Fields and FormatFields have the fields of meta/episode and meta/wshard that the format does not define.
	Fields, FormatFields shard.Object

	// Warnings has what is wrong beside the episode: sidecars that Open left out.
	Warnings []error

	origin *origin
}

// New makes an episode without steps and channels.
func New(id string, length int) *Episode {
	ep := &Episode{ID: id, LengthT: length, Metadata: shard.Object{}}
	ep.makeLanes()
	return ep
}

func (ep *Episode) makeLanes() {
	ep.Observations, ep.Actions = map[string]*Channel{}, map[string]*Channel{}
	ep.Omens, ep.Uncerts = map[string]map[string]*Channel{}, map[string]map[string]map[string]*Channel{}
	ep.Residuals, ep.Labels, ep.Extras = map[string]*Residual{}, map[string]*Label{}, map[string]*Extra{}
}

// SetOmen adds a model's prediction of a channel.
func (ep *Episode) SetOmen(channel, model string, c *Channel) {
	if ep.Omens == nil {
		ep.Omens = map[string]map[string]*Channel{}
	}
	if ep.Omens[channel] == nil {
		ep.Omens[channel] = map[string]*Channel{}
	}
	ep.Omens[channel][model] = c
}

// SetUncert adds the uncertainty of a model's prediction of a channel; kind is for example std.
func (ep *Episode) SetUncert(channel, model, kind string, c *Channel) {
	if ep.Uncerts == nil {
		ep.Uncerts = map[string]map[string]map[string]*Channel{}
	}
	if ep.Uncerts[channel] == nil {
		ep.Uncerts[channel] = map[string]map[string]*Channel{}
	}
	if ep.Uncerts[channel][model] == nil {
		ep.Uncerts[channel][model] = map[string]*Channel{}
	}
	ep.Uncerts[channel][model][kind] = c
}

// TimesNS gives the times of the steps in nanoseconds; nil if the episode knows neither timestamps nor a rate.
func (ep *Episode) TimesNS() ([]int64, error) {
	if ep.TimestampsNS != nil {
		return Values[int64](ep.TimestampsNS)
	}
	if ep.Timebase.TickHz <= 0 {
		return nil, nil
	}
	times := make([]int64, ep.LengthT)
	for t := range times {
		var err error
		if times[t], err = ep.Timebase.TimeNS(t); err != nil {
			return nil, err
		}
	}
	return times, nil
}

// Extra is an entry that belongs to no lane. It is written again as it is.
type Extra struct {
	ContentType, TagBits uint16
	data                 Block
	// channel is set if a row describes the entry.
	channel *Channel
}

// NewExtra makes an entry; the content type is a hint.
func NewExtra(data []byte, contentType uint16) *Extra {
	return &Extra{ContentType: contentType, data: memoryBlock(data)}
}

// Channel gives the entry as a channel if a row describes it; nil otherwise.
func (x *Extra) Channel() *Channel { return x.channel }

// Data gives the bytes of the entry.
func (x *Extra) Data() ([]byte, error) { return readBlock(x.data) }
