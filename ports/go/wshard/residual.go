package wshard

import (
	"encoding/binary"
	"math"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

const largestCode = 127

// Residual is how a channel bends, or how far a prediction was off, in few bits (spec/wshard.md, section 9).
type Residual struct {
	// Channel is what it is about; Model is empty if it is about the signal itself.
	Channel, Model string
	// Type is Sign2ndDiff or DeltaQ.
	Type string
	// Window is the number of steps that share a scale; DeltaQ only.
	Window int
	// Values has the stored values: packed bits of Sign2ndDiff, i8 of DeltaQ.
	Values *Channel
	// Scales has one f32 for each window and dimension; nil unless the type is DeltaQ.
	Scales *Channel
	// steps and edges are those of the episode.
	steps int
	edges string
}

func checkSigns(size int64, steps int) error {
	row := packedBytes(steps)
	if (row == 0 && size != 0) || (row > 0 && size%row != 0) {
		return sizeMismatch("W-RES-1", "the packed signs do not fit the steps", "a multiple of "+number(int(row))+" bytes", size)
	}
	return nil
}

func packedBytes(steps int) int64 { return int64(steps)/8 + int64((steps%8+7)/8) }

func windowCount(steps, window int) int {
	if steps%window == 0 {
		return steps / window
	}
	return steps/window + 1
}

// AddResidual computes a residual of an observation, or of the observation minus a model's prediction if model is not empty.
// kind is Sign2ndDiff or DeltaQ, and window the number of steps that share a scale of DeltaQ; 0 for 256.
func (ep *Episode) AddResidual(channel, model, kind string, window int) error {
	signal, omen := ep.Observations[channel], ep.Omens[channel][model]
	if signal == nil || (model != "" && omen == nil) {
		return invalid("there is no observation %q, or no prediction of it by %q", channel, model)
	}
	key := address{laneResidual, [3]string{channel, model, kind}}.blockName()
	for _, c := range []**Channel{&signal, &omen} {
		if *c == nil || (*c).Length != ep.LengthT+1 {
			continue
		}
		cut, err := (*c).Window(0, ep.LengthT) // the observation after the last step has no residual
		if err != nil {
			return fault.Located(err, "", key)
		}
		*c = cut
	}
	residual, err := newResidual(signal, omen, kind, window, ep.residualEdges())
	if err != nil {
		return fault.Located(err, "", key)
	}
	residual.Channel, residual.Model = channel, model
	if ep.Residuals == nil {
		ep.Residuals = map[string]*Residual{}
	}
	ep.Residuals[addressOf(key, nil).keys[0]] = residual
	return nil
}

func newResidual(signal, omen *Channel, kind string, window int, edges string) (*Residual, error) {
	x, err := difference(signal, omen)
	if err != nil {
		return nil, err
	}
	residual := &Residual{Type: kind, steps: signal.Length, edges: edges}
	columns := 1
	for _, size := range signal.Shape {
		columns *= size
	}
	switch kind {
	case Sign2ndDiff:
		signs := ComputeSign2ndDiffMultiDim(x, columns, edges)
		residual.Values = FromBytes(U8, nil, packSigns(signs, signal.Length, columns))
	case DeltaQ:
		if window == 0 {
			window = defaultWindow
		}
		codes, scales, err := quantize(x, columns, window)
		if err != nil {
			return nil, err
		}
		residual.Window = window
		residual.Values, residual.Scales = FromValues(codes, signal.Shape...), FromValues(scales, signal.Shape...)
		residual.Values.Length, residual.Scales.Length = signal.Length, windowCount(signal.Length, window)
	default:
		return nil, invalid("unknown type of residual %q", kind)
	}
	return residual, nil
}

// difference is the signal, or signal minus omen, as 64-bit floats.
func difference(signal, omen *Channel) ([]float64, error) {
	if signal.layout() != Dense {
		return nil, invalid("only a dense channel has residuals, and this one is %s", signal.layout())
	}
	x, err := signal.Float64()
	if err != nil || omen == nil {
		return x, err
	}
	y, err := omen.Float64()
	if err != nil {
		return nil, err
	}
	if len(x) != len(y) {
		return nil, invalid("the signal has %d values, and the prediction %d", len(x), len(y))
	}
	for i := range x {
		x[i] -= y[i]
	}
	return x, nil
}

// Signs gives +1 and -1 for each step and dimension of a Sign2ndDiff residual, [T, D] in C order; the edges are 0 if the
// episode pads them.
func (r *Residual) Signs() (signs []int8, dimensions int, err error) {
	if r.Type != Sign2ndDiff {
		return nil, 0, invalid("only a sign2nddiff residual has signs, and this one is %s", r.Type)
	}
	packed, err := r.Values.Data()
	if err != nil || r.steps == 0 {
		return nil, 0, err
	}
	dimensions = int(int64(len(packed)) / packedBytes(r.steps))
	signs, err = UnpackMultiDimResidualBits(packed, r.steps, dimensions)
	if err == nil && r.edges != EdgesOverlap {
		clear(signs[:dimensions])
		clear(signs[(r.steps-1)*dimensions:])
	}
	return signs, dimensions, err
}

// Reconstruct gives the signal that a DeltaQ residual was made of, within half a scale: omen + q · scale; omen is nil for a
// residual of the signal itself.
func (r *Residual) Reconstruct(omen *Channel) ([]float64, error) {
	if r.Type != DeltaQ {
		return nil, invalid("only a delta_q residual can be reconstructed, and this one is %s", r.Type)
	}
	codes, err := Values[int8](r.Values)
	if err != nil {
		return nil, err
	}
	scales, err := Values[float32](r.Scales)
	if err != nil {
		return nil, err
	}
	var predicted []float64
	if omen != nil {
		if predicted, err = omen.Float64(); err != nil {
			return nil, err
		}
	}
	return ReconstructFromOmenAndDelta(predicted, codes, scales, r.Values.Length, r.Window)
}

// --- signs of second differences

// signs2nd writes the sign of (2·x[t] - x[t-1]) - x[t+1] of each dimension; each operation is rounded on its own.
func signs2nd(x []float64, columns int, edges string, signs []int8) {
	if columns == 0 {
		return
	}
	steps := len(x) / columns
	for t := 1; t < steps-1; t++ {
		for d := range columns {
			at := t*columns + d
			// The conversions forbid fusing two operations into one.
			bend := float64(float64(float64(2*x[at])-x[at-columns]) - x[at+columns])
			if bend > 0 {
				signs[at] = 1
			} else if bend < 0 {
				signs[at] = -1
			}
		}
	}
	if edges == EdgesOverlap && steps > 2 {
		copy(signs[:columns], signs[columns:2*columns])
		copy(signs[(steps-1)*columns:], signs[(steps-2)*columns:(steps-1)*columns])
	}
}

// packSigns stores one bit for each step that is above 0, dimension after dimension.
func packSigns(signs []int8, steps, columns int) []byte {
	row := int(packedBytes(steps))
	packed := make([]byte, row*columns)
	for at, sign := range signs {
		if sign > 0 {
			t, d := at/columns, at%columns
			packed[d*row+t/8] |= 1 << (t % 8)
		}
	}
	return packed
}

// ComputeSign2ndDiff gives the sign of 2·x[t] - x[t-1] - x[t+1]; edges is EdgesPad or EdgesOverlap.
func ComputeSign2ndDiff(signal []float64, edges string) []int8 {
	return ComputeSign2ndDiffMultiDim(signal, 1, edges)
}

// ComputeSign2ndDiffMultiDim is ComputeSign2ndDiff of values [T, dimensions] in C order.
func ComputeSign2ndDiffMultiDim(signal []float64, dimensions int, edges string) []int8 {
	signs := make([]int8, len(signal))
	if dimensions > 0 {
		signs2nd(signal[:len(signal)/dimensions*dimensions], dimensions, edges, signs)
	}
	return signs
}

// PackResidualBits stores one bit a step, 1 where the sign is above 0, least significant bit first.
func PackResidualBits(signs []int8) []byte { return packSigns(signs, len(signs), 1) }

// PackMultiDimResidualBits packs signs [T, dimensions], one dimension after another.
func PackMultiDimResidualBits(signs []int8, dimensions int) []byte {
	if dimensions <= 0 {
		return nil
	}
	steps := len(signs) / dimensions
	return packSigns(signs[:steps*dimensions], steps, dimensions)
}

// UnpackResidualBits gives +1 and -1 for each of the steps.
func UnpackResidualBits(packed []byte, steps int) ([]int8, error) {
	return UnpackMultiDimResidualBits(packed, steps, 1)
}

// UnpackMultiDimResidualBits gives +1 and -1 for each step and dimension, [T, dimensions] in C order.
func UnpackMultiDimResidualBits(packed []byte, steps, dimensions int) ([]int8, error) {
	if steps < 0 || dimensions < 0 {
		return nil, invalid("the numbers of steps and dimensions are not negative")
	}
	row := packedBytes(steps)
	if wanted, fits := multiply(row, int64(dimensions)); !fits || int64(len(packed)) != wanted {
		return nil, sizeMismatch("W-RES-1", "the packed signs do not fit the steps", wanted, len(packed))
	}
	signs := make([]int8, steps*dimensions)
	for t := range steps {
		for d := range dimensions {
			bit := packed[int64(d)*row+int64(t/8)] >> (t % 8) & 1
			signs[t*dimensions+d] = int8(bit)*2 - 1
		}
	}
	return signs, nil
}

// --- quantised differences

// QuantizeDelta gives signal - omen as 8-bit numbers, and the scale of each window of steps and each dimension. Values are
// [T, dimensions] in C order; omen may be nil.
func QuantizeDelta(signal, omen []float64, dimensions, window int) (codes []int8, scales []float32, err error) {
	if dimensions < 1 || window < 1 || (omen != nil && len(omen) != len(signal)) {
		return nil, nil, invalid("a prediction has as many values as the signal; dimensions and window are above 0")
	}
	d := make([]float64, len(signal))
	copy(d, signal)
	for i := range omen {
		d[i] -= omen[i]
	}
	return quantize(d, dimensions, window)
}

func quantize(d []float64, columns, window int) (codes []int8, scales []float32, err error) {
	codes = make([]int8, len(d))
	if columns == 0 || window < 1 {
		if window < 1 {
			err = invalid("a window has at least one step")
		}
		return codes, nil, err
	}
	steps := len(d) / columns
	scales = make([]float32, 0, windowCount(steps, window)*columns)
	for start := 0; start < steps; start += window {
		end := steps
		if window < steps-start {
			end = start + window
		}
		for column := range columns {
			peak := 0.0
			for t := start; t < end; t++ {
				value := math.Abs(d[t*columns+column])
				if math.IsNaN(value) || math.IsInf(value, 0) {
					return nil, nil, invalid("the difference at step %d is NaN or infinite: it cannot be quantised", t)
				}
				peak = max(peak, value)
			}
			scale := scaleFor(peak)
			if math.IsInf(float64(scale), 0) {
				return nil, nil, invalid("the difference %g is too large for 32-bit scales", peak)
			}
			scales = append(scales, scale)
			for t := start; t < end; t++ {
				codes[t*columns+column] = int8(math.RoundToEven(d[t*columns+column] / float64(scale)))
			}
		}
		if end == steps {
			break // start + window could wrap
		}
	}
	return codes, scales, nil
}

// scaleFor is max|d| / 127, rounded up to a 32-bit float; 1 if all differences are 0.
func scaleFor(peak float64) float32 {
	if peak == 0 {
		return 1
	}
	scale := float32(peak / largestCode)
	if float64(scale)*largestCode < peak {
		scale = math.Nextafter32(scale, float32(math.Inf(1)))
	}
	return scale
}

// DequantizeDelta gives q · scale for steps in windows, [steps, dimensions] in C order.
func DequantizeDelta(codes []int8, scales []float32, steps, window int) ([]float64, error) {
	values := make([]float64, len(codes))
	if steps < 0 || window < 1 {
		return nil, invalid("a window has at least one step")
	}
	if steps == 0 || len(codes) == 0 {
		return values, nil
	}
	columns := len(codes) / steps
	if columns*steps != len(codes) || len(scales) != windowCount(steps, window)*columns {
		return nil, sizeMismatch("W-RES-2", "the scales do not fit the windows", windowCount(steps, window)*columns, len(scales))
	}
	for at, code := range codes {
		scale := scales[at/columns/window*columns+at%columns]
		values[at] = float64(float64(code) * float64(scale))
	}
	return values, nil
}

// ReconstructFromOmenAndDelta gives omen + q · scale; omen may be nil.
func ReconstructFromOmenAndDelta(omen []float64, codes []int8, scales []float32, steps, window int) ([]float64, error) {
	values, err := DequantizeDelta(codes, scales, steps, window)
	if err != nil || omen == nil {
		return values, err
	}
	if len(omen) != len(values) {
		return nil, invalid("the prediction has %d values, and the residual %d", len(omen), len(values))
	}
	for i := range values {
		values[i] += omen[i]
	}
	return values, nil
}

// asF32 rounds 64-bit floats to the bytes of 32-bit floats.
func asF32(values []float64) []byte {
	data := make([]byte, 0, 4*len(values))
	for _, value := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(value)))
	}
	return data
}

var _ = shard.CodeBadValue
