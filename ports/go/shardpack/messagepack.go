package shardpack

import (
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/shard-format/shard/ports/go/internal/strictjson"
	"github.com/shard-format/shard/ports/go/shard"
)

// Map is a map of MessagePack, in the order in which it is stored. Its keys are values, too.
type Map []Pair

// Pair is a key and a value of a Map.
type Pair struct{ Key, Value any }

// Extension is a value of MessagePack that only its writer understands.
type Extension struct {
	Code int8
	Data []byte
}

// DecodeMessagePack reads the one value that the bytes are, with the rules of P-MTD-3. The types of values are nil,
// bool, int64, uint64 (above the range of int64), float64, string, []byte, Extension, []any and Map.
func DecodeMessagePack(data []byte, options ...Options) (any, error) {
	return decodeMessagePack(data, limitsOf(options))
}

func decodeMessagePack(data []byte, limits Limits) (any, error) {
	u := unpacker{data: data, most: limits.MaxJSONNodes}
	value, err := u.value(1)
	if err == nil && u.at != len(data) {
		err = badMessagePack("bytes follow the value")
	}
	if err != nil {
		return nil, err
	}
	return value, nil
}

func badMessagePack(format string, args ...any) error {
	return broken(shard.CodeBadMetadata, "P-MTD-3", "not valid MessagePack: "+fmt.Sprintf(format, args...))
}

// unpacker reads values one after the other.
type unpacker struct {
	data []byte
	at   int
	// values is how many keys, values and items maps and lists have announced.
	values, most uint64
}

func (u *unpacker) take(size uint64) ([]byte, error) {
	if size > uint64(len(u.data)-u.at) {
		return nil, badMessagePack("it ends too early")
	}
	start := u.at
	u.at += int(size)
	return u.data[start:u.at], nil
}

// number reads a big-endian integer of a width.
func (u *unpacker) number(width uint64) (uint64, error) {
	b, err := u.take(width)
	if err != nil {
		return 0, err
	}
	var value uint64
	for _, c := range b {
		value = value<<8 | uint64(c)
	}
	return value, nil
}

// value reads a value; level counts the maps and lists around it, and itself if it is one.
func (u *unpacker) value(level int) (any, error) {
	b, err := u.take(1)
	if err != nil {
		return nil, err
	}
	switch first := b[0]; {
	case first < 0x80:
		return int64(first), nil
	case first >= 0xE0:
		return int64(int8(first)), nil
	case first < 0x90:
		return u.readMap(uint64(first&0x0F), level)
	case first < 0xA0:
		return u.readList(uint64(first&0x0F), level)
	case first < 0xC0:
		return u.text(uint64(first & 0x1F))
	case first == 0xC0:
		return nil, nil
	case first == 0xC2 || first == 0xC3:
		return first == 0xC3, nil
	case first >= 0xC4 && first <= 0xC6:
		return u.sized(1<<(first-0xC4), u.bytes)
	case first >= 0xC7 && first <= 0xC9:
		return u.sized(1<<(first-0xC7), u.extension)
	case first == 0xCA:
		bits, err := u.number(4)
		return float64(math.Float32frombits(uint32(bits))), err
	case first == 0xCB:
		bits, err := u.number(8)
		return math.Float64frombits(bits), err
	case first >= 0xCC && first <= 0xD3:
		return u.integer(first)
	case first >= 0xD4 && first <= 0xD8:
		return u.extension(1 << (first - 0xD4))
	case first >= 0xD9 && first <= 0xDB:
		return u.sized(1<<(first-0xD9), u.text)
	case first >= 0xDC && first <= 0xDF:
		size, err := u.number(2 << (first & 1))
		if err != nil {
			return nil, err
		}
		if first >= 0xDE {
			return u.readMap(size, level)
		}
		return u.readList(size, level)
	default:
		return nil, badMessagePack("unknown first byte 0x%02x", first)
	}
}

// sized reads a size of some bytes, and a value of that size.
func (u *unpacker) sized(width uint64, read func(uint64) (any, error)) (any, error) {
	size, err := u.number(width)
	if err != nil {
		return nil, err
	}
	return read(size)
}

func (u *unpacker) integer(first byte) (any, error) {
	width := uint64(1) << (first & 3) // 0xCC to 0xCF are unsigned, 0xD0 to 0xD3 signed
	value, err := u.number(width)
	if err != nil {
		return nil, err
	}
	if first >= 0xD0 {
		unused := 64 - 8*width
		return int64(value<<unused) >> unused, nil
	}
	if value > math.MaxInt64 {
		return value, nil
	}
	return int64(value), nil
}

func (u *unpacker) text(size uint64) (any, error) {
	b, err := u.take(size)
	if err != nil {
		return nil, err
	}
	if !utf8.Valid(b) {
		return nil, badMessagePack("a string is not UTF-8")
	}
	return string(b), nil
}

func (u *unpacker) bytes(size uint64) (any, error) {
	b, err := u.take(size)
	if err != nil {
		return nil, err
	}
	return append([]byte{}, b...), nil
}

func (u *unpacker) extension(size uint64) (any, error) {
	code, err := u.take(1)
	if err != nil {
		return nil, err
	}
	data, err := u.take(size)
	if err != nil {
		return nil, err
	}
	return Extension{int8(code[0]), append([]byte{}, data...)}, nil
}

// expect refuses what a map or a list claims to hold, before anything is made of it.
func (u *unpacker) expect(values uint64, level int) error {
	if level > strictjson.MaxDepth {
		return badMessagePack("more than %d levels of nesting", strictjson.MaxDepth)
	}
	if values > uint64(len(u.data)-u.at) { // each takes at least one byte
		return badMessagePack("it ends too early")
	}
	if u.values += values; u.values > u.most {
		return mismatch(shard.CodeLimitExceeded, "P-MTD-3", "the MessagePack has too many values", atMost(u.most), atLeast(u.values))
	}
	return nil
}

func (u *unpacker) readList(count uint64, level int) (any, error) {
	if err := u.expect(count, level); err != nil {
		return nil, err
	}
	found := make([]any, 0, count)
	for range count {
		value, err := u.value(level + 1)
		if err != nil {
			return nil, err
		}
		found = append(found, value)
	}
	return found, nil
}

func (u *unpacker) readMap(count uint64, level int) (any, error) {
	if err := u.expect(2*count, level); err != nil {
		return nil, err
	}
	found := make(Map, 0, count)
	seen := make(map[any]struct{}, count)
	for range count {
		key, err := u.value(level + 1)
		if err != nil {
			return nil, err
		}
		comparable, ok := comparableKey(key)
		if !ok {
			return nil, badMessagePack("a key is a list or a map")
		}
		if _, there := seen[comparable]; there {
			return nil, badMessagePack("the key %.40q occurs twice in one map", fmt.Sprint(key))
		}
		seen[comparable] = struct{}{}
		value, err := u.value(level + 1)
		if err != nil {
			return nil, err
		}
		found = append(found, Pair{key, value})
	}
	return found, nil
}

// comparableKey gives a key in a form that Go compares; false for lists and maps.
func comparableKey(key any) (any, bool) {
	type binary string
	type extension struct {
		code int8
		data string
	}
	switch k := key.(type) {
	case []any, Map:
		return nil, false
	case []byte:
		return binary(k), true
	case Extension:
		return extension{k.Code, string(k.Data)}, true
	}
	return key, true
}

// asObjects turns maps whose keys are all strings into objects, as JSON has them.
func asObjects(value any) any {
	switch v := value.(type) {
	case []any:
		for i := range v {
			v[i] = asObjects(v[i])
		}
	case Map:
		object := make(shard.Object, len(v))
		isObject := true
		for i := range v {
			v[i].Value = asObjects(v[i].Value)
			key, isText := v[i].Key.(string)
			isObject = isObject && isText
			object[key] = v[i].Value
		}
		if isObject {
			return object
		}
	}
	return value
}
