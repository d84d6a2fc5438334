package strictjson

import (
	"fmt"
	"math"
	"math/big"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Canonical writes a value in the canonical form of spec/registry.md. Integers of all Go types are integers;
// floats must be finite, and strings valid UTF-8.
func Canonical(value any) ([]byte, error) {
	return appendValue(nil, value)
}

func appendValue(out []byte, value any) ([]byte, error) {
	switch v := value.(type) {
	case nil:
		return append(out, "null"...), nil
	case bool:
		return strconv.AppendBool(out, v), nil
	case int:
		return strconv.AppendInt(out, int64(v), 10), nil
	case int64:
		return strconv.AppendInt(out, v, 10), nil
	case uint64:
		return strconv.AppendUint(out, v, 10), nil
	case *big.Int:
		return v.Append(out, 10), nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("%v is not a JSON number", v)
		}
		return append(out, Number(v)...), nil
	case string:
		return appendString(out, v)
	case []any:
		return appendList(out, v)
	case []string:
		list := make([]any, len(v))
		for i, text := range v {
			list[i] = text
		}
		return appendList(out, list)
	case map[string]any:
		return appendObject(out, v)
	}
	return nil, fmt.Errorf("a %T has no JSON form", value)
}

func appendList(out []byte, list []any) ([]byte, error) {
	out = append(out, '[')
	for i, item := range list {
		if i > 0 {
			out = append(out, ',')
		}
		var err error
		if out, err = appendValue(out, item); err != nil {
			return nil, err
		}
	}
	return append(out, ']'), nil
}

func appendObject(out []byte, object map[string]any) ([]byte, error) {
	keys := make([]string, 0, len(object))
	for key := range object {
		keys = append(keys, key)
	}
	sort.Strings(keys) // Go compares strings by their bytes
	out = append(out, '{')
	for i, key := range keys {
		if i > 0 {
			out = append(out, ',')
		}
		var err error
		if out, err = appendString(out, key); err != nil {
			return nil, err
		}
		out = append(out, ':')
		if out, err = appendValue(out, object[key]); err != nil {
			return nil, err
		}
	}
	return append(out, '}'), nil
}

func appendString(out []byte, text string) ([]byte, error) {
	if !utf8.ValidString(text) {
		return nil, fmt.Errorf("the text %.40q is not valid UTF-8", text)
	}
	out = append(out, '"')
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '"', '\\':
			out = append(out, '\\', c)
		case '\b':
			out = append(out, `\b`...)
		case '\f':
			out = append(out, `\f`...)
		case '\n':
			out = append(out, `\n`...)
		case '\r':
			out = append(out, `\r`...)
		case '\t':
			out = append(out, `\t`...)
		default:
			if c < 0x20 {
				out = fmt.Appendf(out, `\u%04x`, c)
			} else {
				out = append(out, c)
			}
		}
	}
	return append(out, '"'), nil
}

// Number writes a float as ECMAScript does.
func Number(value float64) string {
	if value == 0 {
		return "0"
	}
	text := strconv.FormatFloat(math.Abs(value), 'e', -1, 64)
	mantissa, exponent, _ := strings.Cut(text, "e")
	digits := strings.Replace(mantissa, ".", "", 1)
	power, _ := strconv.Atoi(exponent)
	count, point := len(digits), power+1
	sign := ""
	if value < 0 {
		sign = "-"
	}
	switch {
	case count <= point && point <= 21:
		return sign + digits + strings.Repeat("0", point-count)
	case 0 < point && point <= 21:
		return sign + digits[:point] + "." + digits[point:]
	case -6 < point && point <= 0:
		return sign + "0." + strings.Repeat("0", -point) + digits
	}
	fraction := ""
	if count > 1 {
		fraction = "." + digits[1:]
	}
	return fmt.Sprintf("%s%s%se%+d", sign, digits[:1], fraction, point-1)
}
