package wshard

import (
	"math"
	"math/bits"
	"strings"
)

// DType is the type of the values of a channel. Values are little-endian.
type DType string

// ParseDType reads a name of a type, short or long, in any letter case; false if there is no such type.
func ParseDType(name string) (DType, bool) {
	name = lowerASCII(name)
	if long, known := dtypeAliases[name]; known {
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
