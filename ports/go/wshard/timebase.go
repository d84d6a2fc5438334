package wshard

import (
	"math"
	"math/bits"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

// TimebaseType says where the times of the steps come from.
type TimebaseType string

// The types of a timebase.
const (
	// Ticks is a fixed rate.
	Ticks TimebaseType = "ticks"
	// TimestampsNS is a time for every step.
	TimestampsNS TimebaseType = "timestamps_ns"
)

const (
	defaultRateHz = 30
	nanoseconds   = 1e9
)

// Timebase says how steps become times. The zero value has no rate.
type Timebase struct {
	// Type is Ticks if it is empty.
	Type TimebaseType
	// TickHz is the steps per second; 0 if it is not known.
	TickHz float64
	// EpochNS is the time of the first step of the file.
	EpochNS int64
}

// DtNS is the nanoseconds of one step, rounded, at most 2**63 - 1; 0 without a rate.
func (b Timebase) DtNS() int64 {
	if b.TickHz <= 0 {
		return 0
	}
	step := math.RoundToEven(nanoseconds / b.TickHz)
	if step >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(step)
}

// TimeNS is the time of step t at the rate of the timebase.
func (b Timebase) TimeNS(t int) (int64, error) {
	if b.TickHz <= 0 {
		return 0, invalid("the episode has no rate, so its steps have no times")
	}
	return regularTime(b.EpochNS, t, b.TickHz)
}

// regularTime is entry i of a clock that starts at a time: the product, the quotient and the sum are rounded one by one
// (section 5).
func regularTime(start int64, i int, rate float64) (int64, error) {
	product := float64(float64(i) * nanoseconds)
	passed := math.RoundToEven(product / rate)
	if !(math.Abs(passed) < 1<<63) {
		return 0, timeOverflow()
	}
	return addTime(start, int64(passed))
}

func addTime(a, b int64) (int64, error) {
	sum, _ := bits.Add64(uint64(a), uint64(b), 0)
	if (a >= 0) == (b >= 0) && (int64(sum) >= 0) != (a >= 0) {
		return 0, timeOverflow()
	}
	return int64(sum), nil
}

func timeOverflow() error {
	return broken(shard.CodeBadValue, "W-TIM-2", "a time does not fit into 64 bits")
}

// fields is the timebase as it is stored.
func (b Timebase) fields() shard.Object {
	kind := b.Type
	if kind == "" {
		kind = Ticks
	}
	fields := shard.Object{"tick_hz": nil, "type": string(kind)}
	if b.TickHz > 0 {
		fields["tick_hz"], fields["dt_ns"] = b.TickHz, b.DtNS()
	}
	if b.EpochNS != 0 {
		fields["epoch_ns"] = b.EpochNS
	}
	return fields
}

// parseTimebase gives the timebase that meta/episode and meta/wshard state together (W-EPI-3, W-TIM-1).
func parseTimebase(episode, wshard shard.Object) (Timebase, error) {
	found := Timebase{Type: Ticks}
	var rates [4]float64 // in the order of their rank
	// meta/episode is read last, so that it has the last word.
	for rank, source := range []struct {
		fields shard.Object
		entry  string
	}{{wshard, MetaWShard}, {episode, MetaEpisode}} {
		value := source.fields["timebase"]
		if value == nil {
			continue
		}
		base, ok := value.(map[string]any)
		if !ok {
			return found, fault.Located(wrongField("W-EPI-3", "timebase", "an object", value), "", source.entry)
		}
		bad := func(field, expected string) error {
			return fault.Located(wrongField("W-TIM-1", "timebase."+field, expected, base[field]), "", source.entry)
		}
		if kind := base["type"]; kind != nil {
			text, ok := kind.(string)
			if !ok {
				return found, bad("type", "a string")
			}
			if TimebaseType(text) == Ticks || TimebaseType(text) == TimestampsNS {
				found.Type = TimebaseType(text)
			}
		}
		if epoch := base["epoch_ns"]; epoch != nil {
			if found.EpochNS, ok = asInt64(epoch); !ok {
				return found, bad("epoch_ns", "an integer within 2**63")
			}
		}
		if rate := base["tick_hz"]; rate != nil {
			if rates[1-rank], ok = asFloat(rate); !ok {
				return found, bad("tick_hz", "a number")
			}
		}
		if period := base["dt_ns"]; period != nil {
			step, ok := asInt64(period)
			if !ok {
				return found, bad("dt_ns", "an integer within 2**63")
			}
			if step > 0 {
				rates[3-rank] = nanoseconds / float64(step)
			}
		}
	}
	for _, rate := range rates {
		if rate > 0 {
			found.TickHz = rate
			return found, nil
		}
	}
	// A writer of today says null for a rate that it does not know; those before it left the field out (W-TIM-5).
	base, _ := episode["timebase"].(map[string]any)
	if rate, said := base["tick_hz"]; !said || rate != nil {
		found.TickHz = defaultRateHz
	}
	return found, nil
}
