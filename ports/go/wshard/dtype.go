package wshard

import (
	"math"
	"math/bits"
	"strings"
)

// DType is the type of the values of a channel. Values are little-endian.
type DType string

// The types of spec/registry.md.
const (
	F64  DType = "f64"
	F32  DType = "f32"
	F16  DType = "f16"
	BF16 DType = "bf16"
	I64  DType = "i64"
	I32  DType = "i32"
	I16  DType = "i16"
	I8   DType = "i8"
	U64  DType = "u64"
	U32  DType = "u32"
	U16  DType = "u16"
	U8   DType = "u8"
	Bool DType = "bool"
)

var dtypeSizes = map[DType]int{
	F64: 8, F32: 4, F16: 2, BF16: 2, I64: 8, I32: 4, I16: 2, I8: 1, U64: 8, U32: 4, U16: 2, U8: 1, Bool: 1,
}

var longNames = map[string]DType{
	"float64": F64, "float32": F32, "float16": F16, "bfloat16": BF16, "int64": I64, "int32": I32, "int16": I16, "int8": I8,
	"uint64": U64, "uint32": U32, "uint16": U16, "uint8": U8,
}

// ParseDType reads a name of a type, short or long, in any letter case; false if there is no such type.
func ParseDType(name string) (DType, bool) {
	name = lowerASCII(name)
	if long, known := longNames[name]; known {
		return long, true
	}
	_, known := dtypeSizes[DType(name)]
	return DType(name), known
}

func lowerASCII(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, text)
}

// Size is the number of bytes of one value; 0 for an unknown type.
func (d DType) Size() int { return dtypeSizes[d] }

func (d DType) isFloat() bool { return d == F64 || d == F32 || d == F16 || d == BF16 }

// stepBytes is the size of one step; false if it does not fit into 63 bits.
func stepBytes(dtype DType, shape []int) (int64, bool) {
	size, fits := int64(dtype.Size()), true
	for _, one := range shape {
		if one == 0 {
			return 0, true
		}
		if size, fits = multiply(size, int64(one)); !fits {
			// A zero may follow.
			size = math.MaxInt64
		}
	}
	return size, fits && size != math.MaxInt64
}

// multiply is the product of two numbers that are not negative; false if it does not fit into 63 bits.
func multiply(a, b int64) (int64, bool) {
	high, low := bits.Mul64(uint64(a), uint64(b))
	if high != 0 || low > math.MaxInt64 {
		return math.MaxInt64, false
	}
	return int64(low), true
}
