package wshard

import (
	"encoding/base64"
	"math"
	"strings"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/internal/strictjson"
	"github.com/shard-format/shard/ports/go/shard"
)

const (
	mostDimensions = 31
	mostBesideZero = math.MaxInt32
	defaultWindow  = 256
)

// row is a checked row of meta/channels: the description of one block.
type row struct {
	id, block string
	dtype     DType
	shape     []int
	// fields is the whole row, as stored.
	fields shard.Object
}

// text gives a field that is a string; "" if it is absent.
func (r *row) text(field string) string {
	text, _ := r.fields[field].(string)
	return text
}

// count gives a field that is an integer; false if it is absent.
func (r *row) count(field string) (int, bool) {
	number, ok := r.fields[field].(int64)
	return int(min(number, math.MaxInt)), ok // a machine of 32 bits has no room for more
}

func (r *row) layout() Layout {
	if text, there := r.fields["layout"].(string); there {
		return Layout(text)
	}
	return Dense
}

// fieldKind is what a field of a row must be, if it is there.
type fieldKind int

const (
	textField fieldKind = iota
	countField
	positiveField
	integerField
	rateField
	objectField
	// basicField is a field that every row has; parseRow checks these one by one.
	basicField
)

// rowFields is the one list of the fields of a row (W-CHN-2). Others belong to other programs and are kept.
var rowFields = map[string]fieldKind{
	"id": basicField, "dtype": basicField, "shape": basicField, "signal_block": basicField,
	"modality": textField, "unit": textField, "semantics": textField, "description": textField, "content_type": textField,
	"layout": textField, "time_block": textField, "offsets_block": textField, "frames_block": textField, "extradata": textField,
	"channel": textField, "model": textField, "type": textField,
	"length": countField, "window": positiveField, "horizon": positiveField, "start_ns": integerField,
	"sampling_rate_hz": rateField, "lossy": objectField,
}

// checkedFields are the fields that have a kind, in the order in which they are checked.
var checkedFields = func() []string {
	var names []string
	for _, field := range sortedKeys(rowFields) {
		if rowFields[field] != basicField {
			names = append(names, field)
		}
	}
	return names
}()

func (kind fieldKind) check(value any) (expected string, ok bool) {
	switch kind {
	case textField:
		_, ok = value.(string)
		return "a string", ok
	case countField:
		_, ok = asCount(value)
		return "an integer of 0 or more", ok
	case positiveField:
		number, isCount := asCount(value)
		return "an integer above 0", isCount && number > 0
	case integerField:
		_, ok = asInt64(value)
		return "an integer within 2**63", ok
	case rateField:
		number, isNumber := asFloat(value)
		return "a number above 0", isNumber && number > 0
	case objectField:
		_, ok = value.(map[string]any)
		return "an object", ok
	}
	return "", true
}

// parseRow checks one row (W-CHN-1 to W-CHN-4, W-CHN-8). Rows of older files are the values of an object; their block is
// the key, and "" otherwise.
func parseRow(value any, block string) (*row, error) {
	fields, ok := value.(map[string]any)
	if !ok {
		return nil, wrongField("W-CHN-1", "a row", "an object", value)
	}
	found := &row{fields: fields, block: block}
	if block == "" {
		if found.id, ok = fields["id"].(string); !ok || found.id == "" {
			return nil, wrongField("W-CHN-2", "id", "a string with something in it", fields["id"])
		}
		found.block = "signal/" + found.id
		if given := fields["signal_block"]; given != nil {
			if found.block, ok = given.(string); !ok {
				return nil, wrongField("W-CHN-2", "signal_block", "a string", given)
			}
		}
	} else {
		found.id = rowID(block)
		if found.id == "" {
			return nil, wrongField("W-CHN-2", "id", "a string with something in it", block)
		}
	}
	if err := found.check(); err != nil {
		return nil, fault.Located(err, "", found.block)
	}
	return found, nil
}

// rowID is the id in the row of a block: its name, in signal/ and action/ without the prefix.
func rowID(block string) string {
	if lane, rest, cut := strings.Cut(block, "/"); cut && (lane == laneSignal || lane == laneAction) {
		return rest
	}
	return block
}

func (r *row) check() error {
	name, _ := r.fields["dtype"].(string)
	var ok bool
	if r.dtype, ok = ParseDType(name); !ok {
		return wrongField("W-CHN-3", "dtype", "a known data type", r.fields["dtype"])
	}
	var err error
	if r.shape, err = parseShape(r.fields["shape"]); err != nil {
		return err
	}
	for _, field := range checkedFields {
		value := r.fields[field]
		if value == nil {
			continue
		}
		if expected, ok := rowFields[field].check(value); !ok {
			return wrongField("W-CHN-2", field, expected, value)
		}
	}
	if horizon, there := r.count("horizon"); there {
		if len(r.shape) == 0 || r.shape[0] != horizon || r.layout() != Dense {
			e := badMetadata("W-CHN-8", "a row with a horizon is not dense, or its shape does not start with that number")
			return e
		}
	}
	return nil
}

// parseShape reads the shape of one step (W-CHN-2, W-CHN-4).
func parseShape(value any) ([]int, error) {
	if value == nil {
		return []int{}, nil
	}
	list, ok := value.([]any)
	if !ok {
		return nil, wrongField("W-CHN-2", "shape", "a list of integers of 0 or more", value)
	}
	shape := make([]int, len(list))
	hasZero, product, fits := false, int64(1), true
	for i, item := range list {
		if !strictjson.IsNatural(item) {
			return nil, wrongField("W-CHN-2", "shape", "a list of integers of 0 or more", value)
		}
		size, isSmall := item.(int64)
		if !isSmall || size > math.MaxInt {
			return nil, wrongField("W-CHN-4", "shape", "a list of integers below 2**63", value)
		}
		shape[i] = int(size)
		if size == 0 {
			hasZero = true
		} else if fits {
			product, fits = multiply(product, size)
		}
	}
	if len(shape) > mostDimensions {
		return nil, wrongField("W-CHN-4", "shape", "a list of at most 31 integers", value)
	}
	if hasZero && (!fits || product > mostBesideZero) {
		return nil, wrongField("W-CHN-4", "shape", "at most 2**31 - 1 in all beside its 0", value)
	}
	return shape, nil
}

// parseRows reads meta/channels (W-CHN).
func parseRows(fields shard.Object) ([]*row, error) {
	listed, isList := fields["channels"]
	if !isList {
		rows := make([]*row, 0, len(fields))
		for _, block := range sortedKeys(fields) {
			if block == "modality_groups" {
				continue
			}
			if block == "" {
				return nil, wrongField("W-CHN-2", "id", "a string with something in it", block)
			}
			one, err := parseRow(fields[block], block)
			if err != nil {
				return nil, err
			}
			rows = append(rows, one)
		}
		return rows, nil
	}
	list, ok := listed.([]any)
	if !ok {
		return nil, wrongField("W-CHN-1", "channels", "a list", listed)
	}
	rows := make([]*row, len(list))
	seen := make(map[string]bool, len(list))
	for i, value := range list {
		one, err := parseRow(value, "")
		if err != nil {
			return nil, err
		}
		if seen[one.block] {
			return nil, badMetadata("W-CHN-5", "two rows describe the block %.80q", one.block)
		}
		seen[one.block], rows[i] = true, one
	}
	return rows, nil
}

// --- between rows and channels

// describe gives a channel what its row says about it, without its blocks.
func (c *Channel) describe(r *row) {
	c.DType, c.Shape, c.Layout = r.dtype, r.shape, r.layout()
	c.Modality, c.Unit, c.Semantics = r.text("modality"), r.text("unit"), r.text("semantics")
	c.Description, c.ContentType = r.text("description"), r.text("content_type")
	c.Horizon, _ = r.count("horizon")
	c.SamplingRateHz, _ = asFloat(r.fields["sampling_rate_hz"])
	if start, there := r.fields["start_ns"].(int64); there {
		c.StartNS = &start
	}
	if lossy, there := r.fields["lossy"].(map[string]any); there {
		c.Lossy = lossy
	}
	c.Extradata, _ = base64.StdEncoding.DecodeString(r.text("extradata"))
	for field, value := range r.fields {
		if _, known := rowFields[field]; !known {
			if c.Fields == nil {
				c.Fields = shard.Object{}
			}
			c.Fields[field] = value
		}
	}
}

// rowFor is the row that a writer stores for a channel, without the names of its other blocks.
func (c *Channel) rowFor(id, block string, steps int) (shard.Object, error) {
	fields := shard.Object{}
	for field, value := range c.Fields {
		if _, known := rowFields[field]; known {
			return nil, fault.Located(invalid("Fields has the field '%s', which a channel has already", field), "", block)
		}
		fields[field] = value
	}
	shape := make([]any, len(c.Shape))
	for i, size := range c.Shape {
		shape[i] = int64(size)
	}
	fields["dtype"], fields["id"], fields["shape"], fields["signal_block"] = string(c.DType), id, shape, block
	if c.Length != steps {
		fields["length"] = int64(c.Length)
	}
	for field, text := range map[string]string{
		"modality": c.Modality, "unit": c.Unit, "semantics": c.Semantics, "description": c.Description, "content_type": c.ContentType,
		"extradata": base64.StdEncoding.EncodeToString(c.Extradata),
	} {
		if text != "" {
			fields[field] = text
		}
	}
	if c.layout() != Dense {
		fields["layout"] = string(c.Layout)
	}
	if c.Horizon != 0 {
		fields["horizon"] = int64(c.Horizon)
	}
	if c.SamplingRateHz != 0 {
		fields["sampling_rate_hz"] = c.SamplingRateHz
	}
	if c.StartNS != nil {
		fields["start_ns"] = *c.StartNS
	}
	if c.Lossy != nil {
		fields["lossy"] = c.Lossy
	}
	return fields, nil
}
