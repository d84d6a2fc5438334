package wshard

import (
	"maps"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

// Units of labels.
const (
	// UnitSteps counts steps.
	UnitSteps = "steps"
	// UnitNS is nanoseconds.
	UnitNS = "ns"
)

// Interval is a part of an episode with a text, half-open.
type Interval struct {
	Start, End int64
	Text       string
	// Source is who said so; may be empty.
	Source string
	// Confidence is nil if nobody stated one.
	Confidence *float64
	// Fields has the fields that the format does not define.
	Fields shard.Object
}

var intervalFields = map[string]bool{"start": true, "end": true, "text": true, "source": true, "confidence": true}

// Label is a lane of labelled intervals.
type Label struct {
	unit      string
	intervals []Interval
	// stored reads a label that is still in its file.
	stored func() (shard.Object, error)
	// raw is the text of that entry.
	raw Block
	// load joins the label of several parts.
	load func() (string, []Interval, error)
	// path and entry are where it is.
	path, entry string
}

// NewLabel makes a label; the unit is UnitSteps or UnitNS.
func NewLabel(unit string, intervals ...Interval) *Label {
	return &Label{unit: unit, intervals: intervals}
}

// Read gives the unit and the intervals.
func (l *Label) Read() (unit string, intervals []Interval, err error) {
	if l.load != nil {
		return l.load()
	}
	if l.stored == nil {
		return l.unit, l.intervals, nil
	}
	fields, err := l.stored()
	if err != nil {
		return "", nil, withRule(err, "W-LAB-1")
	}
	read, err := parseLabel(fields)
	if err != nil {
		return "", nil, fault.Located(err, l.path, l.entry)
	}
	return read.unit, read.intervals, nil
}

// Intervals gives the intervals.
func (l *Label) Intervals() ([]Interval, error) {
	_, intervals, err := l.Read()
	return intervals, err
}

// parseLabel checks W-LAB-1 and W-LAB-2.
func parseLabel(fields shard.Object) (*Label, error) {
	found := &Label{unit: UnitSteps}
	if unit, there := fields["unit"]; there {
		text, ok := unit.(string)
		if !ok || (text != UnitSteps && text != UnitNS) {
			return nil, wrongField("W-LAB-2", "unit", "steps or ns", unit)
		}
		found.unit = text
	}
	list, ok := fields["intervals"].([]any)
	if !ok {
		return nil, wrongField("W-LAB-1", "intervals", "a list", fields["intervals"])
	}
	found.intervals = make([]Interval, len(list))
	for i, item := range list {
		one, err := parseInterval(item)
		if err != nil {
			return nil, err
		}
		found.intervals[i] = one
	}
	return found, nil
}

func parseInterval(item any) (Interval, error) {
	var one Interval
	row, ok := item.(map[string]any)
	if !ok {
		return one, wrongField("W-LAB-1", "an interval", "an object", item)
	}
	start, ok1 := asInt64(row["start"])
	end, ok2 := asInt64(row["end"])
	if !ok1 || !ok2 || start > end {
		e := wrongField("W-LAB-1", "start", "an integer within 2**63, not above end", nil)
		e.Found = shortText(row["start"]) + " and " + shortText(row["end"])
		return one, e
	}
	one.Start, one.End = start, end
	if one.Text, ok = row["text"].(string); !ok {
		return one, wrongField("W-LAB-1", "text", "a string", row["text"])
	}
	if source, there := row["source"]; there {
		if one.Source, ok = source.(string); !ok {
			return one, wrongField("W-LAB-1", "source", "a string", source)
		}
	}
	if value := row["confidence"]; value != nil {
		confidence, ok := asFloat(value)
		if !ok {
			return one, wrongField("W-LAB-1", "confidence", "a number", value)
		}
		one.Confidence = &confidence
	}
	one.Fields = others(row, intervalFields)
	return one, nil
}

func labelFields(unit string, intervals []Interval) shard.Object {
	list := make([]any, len(intervals))
	for i, one := range intervals {
		row := shard.Object{}
		maps.Copy(row, one.Fields)
		row["end"], row["start"], row["text"] = one.End, one.Start, one.Text
		if one.Source != "" {
			row["source"] = one.Source
		}
		if one.Confidence != nil {
			row["confidence"] = *one.Confidence
		}
		list[i] = row
	}
	return shard.Object{"intervals": list, "unit": unit}
}
