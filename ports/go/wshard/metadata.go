package wshard

import (
	"fmt"
	"math"
	"math/big"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

// mostUnbacked is the number of steps that a file may claim without an entry of as many bytes (W-EPI-5).
const mostUnbacked = 1 << 20

// --- values of JSON

// asInt64 gives an integer within ±(2**63 - 1).
func asInt64(value any) (int64, bool) {
	number, ok := value.(int64)
	return number, ok && number != math.MinInt64
}

// asCount gives an integer from 0 to 2**63 - 1.
func asCount(value any) (int64, bool) {
	number, ok := value.(int64)
	return number, ok && number >= 0
}

// asFloat gives a number that a 64-bit float can hold.
func asFloat(value any) (float64, bool) {
	switch v := value.(type) {
	case int64:
		return float64(v), true
	case float64:
		return v, true
	case *big.Int:
		number, _ := new(big.Float).SetInt(v).Float64()
		return number, !math.IsInf(number, 0)
	}
	return 0, false
}

func wrongField(rule, field, expected string, found any) *shard.Error {
	e := badMetadata(rule, "'%.60s' is not %s", field, expected)
	e.Found = shortText(found)
	return e
}

// shortText names a value of JSON in an error.
func shortText(value any) string {
	switch v := value.(type) {
	case nil:
		return "nothing"
	case string:
		return fmt.Sprintf("%.40q", v)
	case []any:
		return fmt.Sprintf("a list of %d", len(v))
	case map[string]any:
		return "an object"
	case *big.Int:
		return fmt.Sprintf("an integer of %d bits", v.BitLen())
	}
	return fmt.Sprint(value)
}

// clone copies a value of JSON.
func clone(value any) any {
	switch v := value.(type) {
	case map[string]any:
		return cloneObject(v)
	case []any:
		list := make([]any, len(v))
		for i, item := range v {
			list[i] = clone(item)
		}
		return list
	}
	return value
}

func cloneObject(object shard.Object) shard.Object {
	if object == nil {
		return nil
	}
	copied := make(shard.Object, len(object))
	for key, value := range object {
		copied[key] = clone(value)
	}
	return copied
}

// --- meta/episode

// episodeFields are the fields of meta/episode that the format defines.
var episodeFields = map[string]bool{
	"episode_id": true, "id": true, "env_id": true, "length_T": true, "length_t": true, "timebase": true, "metadata": true,
	"chunk_index": true, "total_chunks": true, "timestep_range": true,
}

// parseEpisode fills an episode with what meta/episode and meta/wshard state (W-EPI-1 to W-EPI-4, W-TIM-1).
func (ep *Episode) parseEpisode(episode, wshard shard.Object) error {
	if err := ep.parseNames(episode); err != nil {
		return fault.Located(err, "", MetaEpisode)
	}
	length, there := episode["length_T"]
	if !there {
		length = episode["length_t"]
	}
	count, ok := asCount(length)
	if !ok {
		return fault.Located(wrongField("W-EPI-2", "length_T", "an integer from 0 to 2**63 - 1", length), "", MetaEpisode)
	}
	if count > math.MaxInt {
		return broken(shard.CodeLimitExceeded, "W-EPI-5", "this machine cannot count so many steps")
	}
	ep.LengthT = int(count)
	return ep.parseRest(episode, wshard)
}

// parseNames reads the strings of meta/episode (W-EPI-1).
func (ep *Episode) parseNames(episode shard.Object) error {
	id, there := episode["episode_id"]
	if !there {
		id = episode["id"]
	}
	var ok bool
	if ep.ID, ok = id.(string); !ok {
		return wrongField("W-EPI-1", "episode_id", "a string", id)
	}
	if env, there := episode["env_id"]; there {
		if ep.EnvID, ok = env.(string); !ok {
			return wrongField("W-EPI-1", "env_id", "a string", env)
		}
	}
	return nil
}

// parseRest reads everything but the names and the length; a journal has it, too.
func (ep *Episode) parseRest(episode, wshard shard.Object) error {
	bad := func(rule, field, expected string) error {
		return fault.Located(wrongField(rule, field, expected, episode[field]), "", MetaEpisode)
	}
	ep.Metadata = shard.Object{}
	if value := episode["metadata"]; value != nil {
		object, ok := value.(map[string]any)
		if !ok {
			return bad("W-EPI-3", "metadata", "an object")
		}
		ep.Metadata = object
	}
	for _, one := range []struct {
		field string
		place **int
	}{{"chunk_index", &ep.ChunkIndex}, {"total_chunks", &ep.TotalChunks}} {
		value := episode[one.field]
		if value == nil {
			continue
		}
		count, ok := asCount(value)
		if !ok || count > math.MaxInt {
			return bad("W-EPI-4", one.field, "an integer of 0 or more")
		}
		*one.place = pointer(int(count))
	}
	if ep.ChunkIndex != nil && ep.TotalChunks != nil && *ep.TotalChunks != 0 && *ep.ChunkIndex >= *ep.TotalChunks {
		return bad("W-EPI-4", "chunk_index", "below total_chunks")
	}
	if value := episode["timestep_range"]; value != nil {
		first, last, ok := asPair(value)
		if !ok || first > last {
			return bad("W-EPI-4", "timestep_range", "a list of two integers in order")
		}
		if first != 0 || last != 0 || ep.LengthT == 1 { // [0, 0] is what some writers store where nothing was set
			ep.TimestepRange = &[2]int{int(first), int(last)}
		}
	}
	var err error
	if ep.Timebase, err = parseTimebase(episode, wshard); err != nil {
		return err
	}
	ep.Fields = others(episode, episodeFields)
	return nil
}

func pointer[T any](value T) *T { return &value }

func asPair(value any) (first, last int64, ok bool) {
	list, isList := value.([]any)
	if !isList || len(list) != 2 {
		return 0, 0, false
	}
	first, ok1 := asInt64(list[0])
	last, ok2 := asInt64(list[1])
	return first, last, ok1 && ok2 && first >= math.MinInt && last <= math.MaxInt
}

// others gives the fields of an object that are not known; nil if there are none.
func others(fields shard.Object, known map[string]bool) shard.Object {
	var found shard.Object
	for key, value := range fields {
		if !known[key] {
			if found == nil {
				found = shard.Object{}
			}
			found[key] = value
		}
	}
	return found
}

// episodeFields is meta/episode as it is stored.
func (ep *Episode) episodeFields() shard.Object {
	fields := shard.Object{}
	for key, value := range ep.Fields {
		fields[key] = value
	}
	fields["env_id"], fields["episode_id"], fields["length_T"] = ep.EnvID, ep.ID, ep.LengthT
	fields["timebase"] = ep.Timebase.fields()
	if len(ep.Metadata) > 0 {
		fields["metadata"] = ep.Metadata
	}
	if ep.ChunkIndex != nil {
		fields["chunk_index"] = *ep.ChunkIndex
	}
	if ep.TotalChunks != nil {
		fields["total_chunks"] = *ep.TotalChunks
	}
	if ep.TimestepRange != nil {
		fields["timestep_range"] = []any{ep.TimestepRange[0], ep.TimestepRange[1]}
	}
	return fields
}

// --- meta/wshard

var wshardFields = map[string]bool{"endianness": true, "format": true, "residual_edges": true, "version": true}

// Edges of sign2nddiff residuals.
const (
	EdgesPad     = "pad"
	EdgesOverlap = "overlap"
)

// wshardFields is meta/wshard as it is stored.
func (ep *Episode) wshardFields() shard.Object {
	fields := shard.Object{}
	for key, value := range ep.FormatFields {
		fields[key] = value
	}
	fields["endianness"], fields["format"], fields["version"] = "little", "W-SHARD", "0.1"
	fields["residual_edges"] = ep.residualEdges()
	return fields
}

func (ep *Episode) residualEdges() string {
	if ep.ResidualEdges == "" {
		return EdgesPad
	}
	return ep.ResidualEdges
}
