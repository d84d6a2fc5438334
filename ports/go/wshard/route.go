package wshard

import (
	"encoding/base64"
	"math"
	"strconv"
	"strings"

	"github.com/shard-format/shard/ports/go/shard"
)

func number(value int) string { return strconv.Itoa(value) }

// router puts every entry of a file into the lane that it belongs to (section 16, step 4).
type router struct {
	ep     *Episode
	reader *shard.ShardReader
	// rows are those of blocks in the file; unplaced are the others.
	rows     map[string]*row
	unplaced map[string]*row
	// baseRows are those of a sidecar's episode.
	baseRows map[string]*row
	// hints are the descriptions that older writers keep elsewhere.
	hints map[string]*row
	// taken are the blocks that belong to a channel: its clock, its offsets, its frames, its scales.
	taken map[string]bool
}

func newRouter(ep *Episode, rows []*row) *router {
	r := &router{
		ep: ep, reader: ep.origin.reader, rows: ep.origin.rows, unplaced: map[string]*row{}, hints: map[string]*row{},
		taken: map[string]bool{},
	}
	for _, one := range rows {
		if r.reader.HasEntry(one.block) {
			r.rows[one.block] = one
		} else {
			r.unplaced[one.id] = one
		}
	}
	r.addHints(ep.origin.wshard["omen_channels"], "block")
	r.addHints(ep.origin.episode["action_spaces"], "name")
	return r
}

// addHints reads rows of omen_channels or action_spaces; those that make no sense are no help.
func (r *router) addHints(value any, nameField string) {
	list, _ := value.([]any)
	for _, item := range list {
		fields, _ := item.(map[string]any)
		block, _ := fields[nameField].(string)
		if block == "" || r.hints[block] != nil {
			continue
		}
		if one, err := parseRow(item, block); err == nil {
			r.hints[block] = one
		}
	}
}

var knownMeta = map[string]bool{
	MetaWShard: true, MetaEpisode: true, MetaChannels: true, MetaProvenance: true, MetaIdentity: true, MetaSidecar: true, MetaEdit: true,
}

var stepBlocks = map[string]bool{
	BlockReward: true, BlockDone: true, BlockTerminated: true, BlockTruncated: true, BlockTicks: true, BlockTimestamps: true,
}

func (r *router) route() {
	var extras []string
	for i := range r.reader.EntryCount() {
		name := r.reader.EntryName(i)
		if knownMeta[name] || stepBlocks[name] || (name == BlockRewardExact && r.rows[name] != nil) {
			continue
		}
		if !r.place(name) {
			extras = append(extras, name)
		}
	}
	r.placeSteps()
	// All others first: which blocks belong to a channel is only known then.
	described := map[string]*Channel{}
	for _, name := range extras {
		if r.rows[name] != nil {
			described[name] = r.described(r.rows[name])
		}
	}
	for _, name := range extras {
		if r.taken[name] {
			continue
		}
		info := r.reader.EntryAt(r.reader.Lookup(name))
		r.ep.Extras[name] = &Extra{
			ContentType: info.ContentType, TagBits: info.TagBits, data: r.block(name), channel: described[name],
		}
	}
}

// place puts a block into its lane; false if it belongs to none.
func (r *router) place(name string) bool {
	ep, row := r.ep, r.rows[name]
	at := addressOf(name, row)
	switch at.lane {
	case laneSignal, laneAction:
		lane := ep.Observations
		if at.lane == laneAction {
			lane = ep.Actions
		}
		if lane[at.keys[0]] != nil { // another block has claimed that place: nothing is dropped
			return false
		}
		lane[at.keys[0]] = r.channel(name, row)
	case laneOmen:
		if ep.Omens[at.keys[0]][at.keys[1]] != nil {
			return false
		}
		ep.SetOmen(at.keys[0], at.keys[1], r.channel(name, row))
	case laneUncert:
		if ep.Uncerts[at.keys[0]][at.keys[1]][at.keys[2]] != nil {
			return false
		}
		ep.SetUncert(at.keys[0], at.keys[1], at.keys[2], r.channel(name, row))
	case laneResidual:
		if base, isScales := strings.CutSuffix(name, scalesSuffix); isScales && r.reader.HasEntry(base) {
			return true // comes with its residual
		}
		residual := r.residual(name, row)
		if residual == nil {
			return false
		}
		ep.Residuals[at.keys[0]] = residual
	case laneLabel:
		ep.Labels[at.keys[0]] = &Label{path: r.reader.Name(), entry: name, raw: r.block(name), stored: func() (shard.Object, error) { return r.reader.ReadJSON(name) }}
	default:
		return false
	}
	return true
}

func (r *router) block(name string) Block { return newEntryBlock(r.reader, name) }

// --- channels

func (r *router) channel(name string, row *row) *Channel {
	if row == nil {
		return r.inferred(name)
	}
	return r.described(row)
}

// described makes the channel of a row. What is wrong with its block is told when the channel is read.
func (r *router) described(row *row) *Channel {
	c := &Channel{data: r.block(row.block), path: r.reader.Name(), row: row}
	c.names.data = row.block
	c.describe(row)
	if c.problem = r.measure(c, row); c.problem == nil {
		// From here on, memory may be made for the claimed size.
		c.problem = r.reader.CheckSize(row.block)
	}
	if stated, isStated := row.count("length"); isStated && stated != r.ep.LengthT {
		c.anyLength = true
	}
	if clock := row.text("time_block"); clock != "" {
		c.names.times = clock
		switch {
		case !r.reader.HasEntry(clock):
			c.times = brokenBlock{missingBlock("W-TIM-3", clock)}
		default:
			r.taken[clock] = true
			c.times = r.block(clock)
			if wanted, fits := multiply(8, int64(c.Length)); !fits || c.times.Size() != wanted {
				c.times = brokenBlock{sizeMismatch("W-TIM-3", "the clock of a channel has another length than the channel",
					number(c.Length)+" times of 8 bytes", number(int(c.times.Size()))+" bytes")}
			}
		}
	}
	return c
}

func missingBlock(rule, name string) error {
	return broken(shard.CodeBadProfile, rule, "the block %.80q, which this one needs, is not in the file", name)
}

// measure finds the length of a channel and checks the sizes of its blocks.
func (r *router) measure(c *Channel, row *row) error {
	stated, isStated := row.count("length")
	c.Length = r.ep.LengthT
	if isStated {
		c.Length = stated
	}
	size, fits := stepBytes(c.DType, c.Shape)
	switch c.Layout {
	case Dense:
		return r.measureDense(c, size, fits, isStated)
	case Text:
		if c.DType != U8 || len(c.Shape) != 0 {
			return badMetadata("W-RAG-5", "a text channel is not described as u8 of shape []")
		}
		return r.measureRagged(c, row, 1)
	case Ragged:
		if !fits {
			return sizeMismatch("W-RAG-3", "an item has too many bytes", "a size within 2**63", "more")
		}
		return r.measureRagged(c, row, size)
	case Video:
		return r.measureVideo(c, row)
	}
	e := broken(shard.CodeUnknownLayout, "W-CHN-7", "the channel has the layout %.80q, which this version does not know", c.Layout)
	e.Expected = "dense, text, ragged or video"
	return e
}

func (r *router) measureDense(c *Channel, step int64, fits, isStated bool) error {
	steps, found := r.ep.LengthT, c.data.Size()
	if step == 0 && fits && c.Length > mostUnbacked && c.Length != steps && c.Length != steps+1 {
		return sizeMismatch("W-BLK-1", "the channel claims a length without any bytes", "at most 2**20", c.Length)
	}
	wanted, isCounted := multiply(int64(c.Length), step)
	if fits && isCounted && wanted == found {
		return nil
	}
	if !isStated && mayHaveOneMore(c.names.data) && fits && step > 0 && steps < math.MaxInt {
		if wanted, isCounted := multiply(int64(steps)+1, step); isCounted && wanted == found {
			c.Length++
			return nil
		}
	}
	expected := "a size within 2**63"
	if fits && isCounted {
		expected = strconv.FormatInt(wanted, 10) + " bytes"
	}
	return sizeMismatch("W-BLK-1", "the block has another size than its description",
		expected, strconv.FormatInt(found, 10)+" bytes")
}

// find gives a block that a channel needs, and marks it as taken.
func (r *router) find(name, rule string) (Block, error) {
	if name == "" || !r.reader.HasEntry(name) {
		return nil, missingBlock(rule, name)
	}
	r.taken[name] = true
	return r.block(name), nil
}

func (r *router) measureRagged(c *Channel, row *row, item int64) error {
	var err error
	c.names.offsets = row.text("offsets_block")
	if c.offsets, err = r.find(c.names.offsets, "W-RAG-1"); err != nil {
		return err
	}
	c.parsed = &parsedIndex{}
	count := c.offsets.Size()
	if wanted, fits := multiply(8, int64(c.Length)); !fits || count-8 != wanted {
		return sizeMismatch("W-RAG-1", "the offsets have another length than the channel",
			"one more than "+number(c.Length)+" offsets of 8 bytes", strconv.FormatInt(count, 10)+" bytes")
	}
	if found := c.data.Size(); (item == 0 && found != 0) || (item > 0 && found%item != 0) {
		return sizeMismatch("W-RAG-3", "the block is not a whole number of items",
			"a multiple of "+strconv.FormatInt(item, 10)+" bytes", strconv.FormatInt(found, 10)+" bytes")
	}
	return nil
}

func (r *router) measureVideo(c *Channel, row *row) error {
	if err := checkVideo(c.DType, c.Shape, c.ContentType); err != nil {
		return err
	}
	if _, err := base64.StdEncoding.Strict().DecodeString(row.text("extradata")); err != nil || strings.ContainsAny(row.text("extradata"), "\r\n") {
		return badMetadata("W-VID-5", "'extradata' of a video is not Base64")
	}
	var err error
	c.names.offsets, c.names.frames = row.text("offsets_block"), row.text("frames_block")
	if c.offsets, err = r.find(c.names.offsets, "W-VID-1"); err != nil {
		return err
	}
	c.parsed = &parsedIndex{}
	size := c.offsets.Size()
	if size < 8 || size%8 != 0 {
		return sizeMismatch("W-VID-1", "the offsets of a video are not whole integers", "8 bytes for each, and at least one", size)
	}
	if _, isNamed := row.fields["frames_block"].(string); !isNamed {
		return nil
	}
	if c.frames, err = r.find(c.names.frames, "W-VID-2"); err != nil {
		return err
	}
	if wanted, fits := multiply(2, size-8); !fits || c.frames.Size() != wanted {
		return sizeMismatch("W-VID-2", "the frames of a video are not two integers for each packet", wanted, c.frames.Size())
	}
	return nil
}

// --- blocks without a row

// inferred guesses what a block holds: the first description that fits its size (section 10).
func (r *router) inferred(name string) *Channel {
	c := &Channel{data: r.block(name), path: r.reader.Name(), Layout: Dense, Shape: []int{}}
	c.names.data, c.problem = name, r.reader.CheckSize(name)
	size, steps := c.data.Size(), int64(r.ep.LengthT)
	lane, rest, _ := strings.Cut(name, "/")
	channel, _, _ := strings.Cut(rest, "/")
	fits := func(dtype DType, shape []int) bool {
		step, isSmall := stepBytes(dtype, shape)
		if !isSmall {
			return false
		}
		for _, length := range []int64{steps, steps + 1} {
			if length > steps && (lane == laneAction || step == 0) {
				break
			}
			if wanted, isCounted := multiply(length, step); isCounted && wanted == size {
				c.DType, c.Shape, c.Length = dtype, shape, int(length)
				return true
			}
		}
		return false
	}
	described := func(row *row) bool {
		if row == nil || !fits(row.dtype, row.shape) {
			return false
		}
		length, shape := c.Length, c.Shape
		c.describe(row)
		c.Length, c.Shape, c.Layout = length, shape, Dense
		return true
	}
	if described(r.hints[name]) {
		return c
	}
	c.inferred, c.anyLength = true, true
	columns := func(dtype DType) bool {
		row := steps * int64(dtype.Size())
		return steps > 0 && row > 0 && size%row == 0 && fits(dtype, []int{int(size / row)})
	}
	if lane == laneAction && described(r.unplaced[rest]) {
		return c
	}
	if lane == laneOmen && channel == latentCodebook && (fits(I32, []int{}) || columns(I32)) {
		return c
	}
	if lane == laneOmen && channel == latentAction && columns(F32) {
		return c
	}
	signal := r.rows["signal/"+channel]
	if signal == nil {
		signal = r.baseRows["signal/"+channel]
	}
	if signal != nil && (lane == laneOmen || lane == laneUncert) {
		dtype := signal.dtype
		if lane == laneUncert && !dtype.isFloat() {
			dtype = F32
		}
		if fits(dtype, signal.shape) {
			return c
		}
	}
	if fits(F32, []int{}) || columns(F32) {
		return c
	}
	c.DType, c.Length, c.noTimeAxis = U8, int(size), true
	return c
}

// --- lanes of one block

func (r *router) placeSteps() {
	ep := r.ep
	if exact := r.rows[BlockRewardExact]; exact != nil {
		ep.Rewards = r.described(exact)
	} else if ep.Rewards = r.steps(BlockReward, F32, "W-END-1"); ep.Rewards != nil && r.rows[BlockReward] != nil {
		// reward is f32 [T] whatever its row says; the row may say what the numbers mean.
		ep.Rewards.describe(r.rows[BlockReward])
		ep.Rewards.DType, ep.Rewards.Shape, ep.Rewards.Layout = F32, []int{}, Dense
		ep.Rewards.Horizon, ep.Rewards.StartNS, ep.Rewards.row = 0, nil, r.rows[BlockReward]
	}
	if ep.Terminations = r.steps(BlockTerminated, Bool, "W-END-1"); ep.Terminations == nil {
		ep.Terminations = r.steps(BlockDone, Bool, "W-END-1")
	}
	ep.Truncations = r.steps(BlockTruncated, Bool, "W-END-1")
	ep.Ticks = r.steps(BlockTicks, I32, "W-TIM-2")
	ep.TimestampsNS = r.steps(BlockTimestamps, I64, "W-TIM-2")
}

// steps is a block with one value for each step; nil if it is absent or empty.
func (r *router) steps(name string, dtype DType, rule string) *Channel {
	if !r.reader.HasEntry(name) {
		return nil
	}
	c := &Channel{DType: dtype, Shape: []int{}, Layout: Dense, Length: r.ep.LengthT, data: r.block(name), path: r.reader.Name()}
	c.names.data = name
	size := c.data.Size()
	if size == 0 {
		return nil
	}
	c.problem = r.reader.CheckSize(name)
	if wanted, fits := multiply(int64(r.ep.LengthT), int64(dtype.Size())); !fits || wanted != size {
		c.problem = sizeMismatch(rule, "the block does not have one value for each step",
			number(r.ep.LengthT)+" values of "+string(dtype), strconv.FormatInt(size, 10)+" bytes")
	}
	return c
}

// residual makes the residual of a block; nil if its type is not known.
func (r *router) residual(name string, row *row) *Residual {
	channel, kind := cutLast(strings.TrimPrefix(name, "residual/"))
	model := ""
	if row != nil {
		if text := row.text("channel"); text != "" {
			channel = text
		}
		if text := row.text("type"); text != "" {
			kind = text
		}
		model = row.text("model")
	}
	if channel == "" || (kind != Sign2ndDiff && kind != DeltaQ) {
		return nil
	}
	residual := &Residual{Channel: channel, Model: model, Type: kind, steps: r.ep.LengthT, edges: r.ep.residualEdges()}
	values := &Channel{DType: U8, Shape: []int{}, Layout: Dense, data: r.block(name), path: r.reader.Name(), row: row}
	values.names.data = name
	values.Length = int(values.data.Size())
	residual.Values = values
	if kind == Sign2ndDiff {
		if values.problem = checkSigns(values.data.Size(), r.ep.LengthT); values.problem == nil {
			values.problem = r.reader.CheckSize(name)
		}
		return residual
	}
	residual.Window = defaultWindow
	if row != nil {
		values.describe(row)
		values.Length = r.ep.LengthT
		if window, there := row.count("window"); there {
			residual.Window = window
		}
	}
	values.problem = r.measureDelta(residual, row)
	return residual
}

// measureDelta checks the sizes of a delta_q block and its scales (W-RES-2).
func (r *router) measureDelta(residual *Residual, row *row) error {
	values := residual.Values
	name := values.names.data
	if row == nil {
		return broken(shard.CodeBadProfile, "W-RES-2", "a delta_q block has no row")
	}
	if values.DType != I8 {
		return sizeMismatch("W-RES-2", "a delta_q block has another type", I8, values.DType)
	}
	scales, err := r.find(name+scalesSuffix, "W-RES-2")
	if err != nil {
		return err
	}
	step, fits := stepBytes(I8, values.Shape)
	wanted, isCounted := multiply(int64(values.Length), step)
	if !fits || !isCounted || values.data.Size() != wanted {
		return sizeMismatch("W-RES-2", "a delta_q block does not have one value for each of the signal", wanted, values.data.Size())
	}
	windows := windowCount(values.Length, residual.Window)
	residual.Scales = &Channel{DType: F32, Shape: values.Shape, Layout: Dense, Length: windows, data: scales, path: values.path}
	residual.Scales.names.data = name + scalesSuffix
	step, fits = stepBytes(F32, values.Shape)
	wanted, isCounted = multiply(int64(windows), step)
	if !fits || !isCounted || scales.Size() != wanted {
		return sizeMismatch("W-RES-2", "the scales do not fit the windows", wanted, scales.Size())
	}
	if err := r.reader.CheckSize(name); err != nil {
		return err
	}
	return r.reader.CheckSize(name + scalesSuffix)
}
