package wshard

import (
	"math"
	"slices"
	"sort"

	"github.com/shard-format/shard/ports/go/internal/fault"
)

// Slice gives the steps from start up to, but not including, end, as an episode of its own; it reads from the same files.
//
// An observation after the last step stays with the step before it. Channels with a clock of their own are cut where those
// steps start; times stay what they were. Labels are clipped.
func (ep *Episode) Slice(start, end int) (*Episode, error) {
	if start < 0 || start > end || end > ep.LengthT {
		e := invalid("the steps are outside the episode")
		e.Expected, e.Found = "0 to "+number(ep.LengthT), number(start)+" to "+number(end)
		return nil, e
	}
	part := *ep
	part.makeLanes()
	part.origin, part.Warnings, part.LengthT = nil, nil, end-start
	part.ChunkIndex, part.TotalChunks, part.TimestepRange = nil, nil, nil
	part.Metadata, part.Extras = cloneObject(ep.Metadata), ep.Extras
	if ep.TimestampsNS == nil && start > 0 && ep.Timebase.TickHz > 0 {
		first, err := ep.Timebase.TimeNS(start)
		if err != nil {
			return nil, err
		}
		part.Timebase.EpochNS = first
	}
	s := &slicer{ep: ep, start: start, end: end}
	lanes := ep.lanes()
	for _, at := range inFileOrder(lanes) {
		cut, err := s.channel(lanes[at])
		if err != nil {
			return nil, fault.Located(err, "", at.blockName())
		}
		part.setLane(at, cut)
	}
	if err := s.steps(&part); err != nil {
		return nil, err
	}
	for key, residual := range ep.Residuals {
		cut, err := s.residual(residual)
		if err != nil {
			return nil, fault.Located(err, "", "residual/"+key)
		}
		part.Residuals[key] = cut
	}
	for key, label := range ep.Labels {
		cut, err := s.label(label)
		if err != nil {
			return nil, fault.Located(err, "", "label/"+key)
		}
		part.Labels[key] = cut
	}
	return &part, nil
}

type slicer struct {
	ep         *Episode
	start, end int
	// times are those of the steps, once they are needed.
	times []int64
}

func (s *slicer) stepTimes() ([]int64, error) {
	if s.times != nil || s.ep.LengthT == 0 {
		return s.times, nil
	}
	times, err := s.ep.TimesNS()
	if err == nil && times == nil {
		err = invalid("the steps have no times, so channels and labels with times cannot be cut")
	}
	s.times = times
	return times, err
}

func (s *slicer) channel(c *Channel) (*Channel, error) {
	length := s.ep.LengthT
	if !c.HasOwnClock() {
		switch c.Length {
		case length:
			return c.Window(s.start, s.end)
		case length + 1:
			return c.Window(s.start, s.end+1)
		}
		return c, nil // without a time for each step: every part has all of it
	}
	own, err := c.Timestamps()
	if err != nil {
		return nil, err
	}
	first, last := 0, len(own)
	// after gives the first entry at or after a step.
	after := func(step int) (int, error) {
		times, err := s.stepTimes()
		if err != nil {
			return 0, err
		}
		border := times[len(times)-1]
		if step < length {
			return sort.Search(len(own), func(i int) bool { return own[i] >= times[step] }), nil
		}
		return sort.Search(len(own), func(i int) bool { return own[i] > border }), nil
	}
	if s.start > 0 {
		if first, err = after(s.start); err != nil {
			return nil, err
		}
	}
	if s.end < length {
		if last, err = after(s.end); err != nil {
			return nil, err
		}
	}
	return c.Window(first, max(first, last))
}

// steps cuts the lanes of one value for each step.
func (s *slicer) steps(part *Episode) error {
	for _, place := range []**Channel{&part.Rewards, &part.Terminations, &part.Truncations, &part.Ticks, &part.TimestampsNS} {
		if *place == nil {
			continue
		}
		cut, err := (*place).Window(s.start, s.end)
		if err != nil {
			return err
		}
		*place = cut
	}
	if part.Ticks == nil && s.start > 0 && s.end <= math.MaxInt32 {
		ticks := make([]int32, s.end-s.start)
		for i := range ticks {
			ticks[i] = int32(s.start + i)
		}
		part.Ticks = FromValues(ticks)
	}
	return nil
}

// residual cuts a residual, exactly.
func (s *slicer) residual(r *Residual) (*Residual, error) {
	cut := *r
	cut.steps = s.end - s.start
	if r.Type == Sign2ndDiff {
		packed, err := r.Values.Data()
		if err != nil {
			return nil, err
		}
		dimensions := r.dimensions()
		signs, err := UnpackMultiDimResidualBits(packed, r.steps, dimensions)
		if err != nil {
			return nil, err
		}
		cut.Values = FromBytes(U8, nil, packSigns(signs[s.start*dimensions:s.end*dimensions], cut.steps, dimensions))
		return &cut, nil
	}
	var err error
	if cut.Values, err = r.Values.Window(s.start, s.end); err != nil {
		return nil, err
	}
	// Windows that start elsewhere would need other scales; smaller ones keep the same.
	if s.start%r.Window != 0 {
		cut.Window = divisor(r.Window, s.start)
	}
	scales := *r.Scales
	scales.data, scales.Length = repeatedScales(r, cut.Window), windowCount(r.steps, cut.Window)
	first := s.start / cut.Window
	cut.Scales, err = scales.Window(first, first+windowCount(cut.steps, cut.Window))
	return &cut, err
}

// label clips the intervals of a label; what reaches beyond the episode stays with its first or last part.
func (s *slicer) label(label *Label) (*Label, error) {
	unit, intervals, err := label.Read()
	if err != nil {
		return nil, err
	}
	low, high, shift := int64(s.start), int64(s.end), int64(s.start)
	if unit == UnitNS {
		times, err := s.stepTimes()
		if err != nil {
			return nil, err
		}
		low, high, shift = math.MaxInt64, math.MaxInt64, 0
		if s.start < len(times) {
			low = times[s.start]
		}
		if s.end < len(times) {
			high = times[s.end]
		}
	}
	if s.start == 0 {
		low = math.MinInt64
	}
	if s.end == s.ep.LengthT {
		high = math.MaxInt64
	}
	kept := []Interval{}
	for _, one := range intervals {
		// Half-open; an interval without length is an event at its start.
		isEvent := one.Start == one.End && one.Start == low
		if one.Start < high && (one.End > low || isEvent) {
			one.Start, one.End = max(one.Start, low)-shift, min(one.End, high)-shift
			kept = append(kept, one)
		}
	}
	return NewLabel(unit, slices.Clip(kept)...), nil
}
