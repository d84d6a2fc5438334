// Package strictjson reads and writes the JSON of spec/registry.md: a strict subset of RFC 8259, and its canonical form.
//
// Values are nil, bool, int64, *big.Int (integers outside int64), float64, string, []any and map[string]any.
package strictjson

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"unicode/utf8"
)

// The limits of spec/registry.md.
const (
	MaxDepth  = 128
	maxDigits = 4000
)

// ErrTooManyNodes says that a text has more values than allowed.
var ErrTooManyNodes = errors.New("the JSON text has too many values")

// Parse reads one JSON value. It refuses text with more than maxNodes of the characters [ { , : outside strings with
// ErrTooManyNodes, and before it makes values of the text.
func Parse(text []byte, maxNodes int) (any, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("not valid UTF-8")
	}
	if countNodes(text) > maxNodes {
		return nil, ErrTooManyNodes
	}
	p := parser{text: text}
	p.space()
	value, err := p.value(1)
	if err != nil {
		return nil, err
	}
	p.space()
	if p.at != len(text) {
		return nil, p.errorf("something follows the value")
	}
	return value, nil
}

// IsNatural tells whether a value is an integer that is not negative.
func IsNatural(value any) bool {
	switch v := value.(type) {
	case int64:
		return v >= 0
	case *big.Int:
		return v.Sign() >= 0
	}
	return false
}

func countNodes(text []byte) int {
	count, inString := 0, false
	for at := 0; at < len(text); at++ {
		switch text[at] {
		case '"':
			inString = !inString
		case '\\':
			if inString {
				at++
			}
		case '[', '{', ',', ':':
			if !inString {
				count++
			}
		}
	}
	return count
}

type parser struct {
	text []byte
	at   int
}

func (p *parser) errorf(format string, args ...any) error {
	return fmt.Errorf("%s at byte %d", fmt.Sprintf(format, args...), p.at)
}

func (p *parser) space() {
	for p.at < len(p.text) {
		switch p.text[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

func (p *parser) peek() byte {
	if p.at < len(p.text) {
		return p.text[p.at]
	}
	return 0
}

func (p *parser) value(depth int) (any, error) {
	switch c := p.peek(); {
	case c == '{' || c == '[':
		if depth > MaxDepth {
			return nil, p.errorf("nested more than %d levels deep", MaxDepth)
		}
		if c == '{' {
			return p.object(depth)
		}
		return p.list(depth)
	case c == '"':
		return p.str()
	case c == '-' || (c >= '0' && c <= '9'):
		return p.number()
	}
	for _, word := range []struct {
		text  string
		value any
	}{{"true", true}, {"false", false}, {"null", nil}} {
		if len(p.text)-p.at >= len(word.text) && string(p.text[p.at:p.at+len(word.text)]) == word.text {
			p.at += len(word.text)
			return word.value, nil
		}
	}
	return nil, p.errorf("a value is missing")
}

func (p *parser) object(depth int) (any, error) {
	p.at++
	found := map[string]any{}
	p.space()
	if p.peek() == '}' {
		p.at++
		return found, nil
	}
	for {
		p.space()
		if p.peek() != '"' {
			return nil, p.errorf("a key is missing")
		}
		key, err := p.str()
		if err != nil {
			return nil, err
		}
		if _, there := found[key]; there {
			return nil, p.errorf("the key %.40q occurs twice in one object", key)
		}
		p.space()
		if p.peek() != ':' {
			return nil, p.errorf("a colon is missing")
		}
		p.at++
		p.space()
		value, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		found[key] = value
		p.space()
		switch p.peek() {
		case ',':
			p.at++
		case '}':
			p.at++
			return found, nil
		default:
			return nil, p.errorf("a comma or a brace is missing")
		}
	}
}

func (p *parser) list(depth int) (any, error) {
	p.at++
	found := []any{}
	p.space()
	if p.peek() == ']' {
		p.at++
		return found, nil
	}
	for {
		p.space()
		value, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		found = append(found, value)
		p.space()
		switch p.peek() {
		case ',':
			p.at++
		case ']':
			p.at++
			return found, nil
		default:
			return nil, p.errorf("a comma or a bracket is missing")
		}
	}
}

func (p *parser) str() (string, error) {
	p.at++
	start := p.at
	for p.at < len(p.text) && p.text[p.at] != '"' && p.text[p.at] != '\\' && p.text[p.at] >= 0x20 {
		p.at++
	}
	if p.peek() == '"' {
		text := string(p.text[start:p.at])
		p.at++
		return text, nil
	}
	out := append([]byte(nil), p.text[start:p.at]...)
	for p.at < len(p.text) {
		c := p.text[p.at]
		switch {
		case c == '"':
			p.at++
			return string(out), nil
		case c < 0x20:
			return "", p.errorf("a control character in a string")
		case c != '\\':
			out = append(out, c)
			p.at++
		default:
			r, err := p.escape()
			if err != nil {
				return "", err
			}
			out = utf8.AppendRune(out, r)
		}
	}
	return "", p.errorf("a string does not end")
}

func (p *parser) escape() (rune, error) {
	p.at++
	c := p.peek()
	p.at++
	switch c {
	case '"', '\\', '/':
		return rune(c), nil
	case 'b':
		return '\b', nil
	case 'f':
		return '\f', nil
	case 'n':
		return '\n', nil
	case 'r':
		return '\r', nil
	case 't':
		return '\t', nil
	case 'u':
	default:
		return 0, p.errorf("an unknown escape")
	}
	first, err := p.hex()
	if err != nil {
		return 0, err
	}
	if first < 0xD800 || first > 0xDFFF {
		return first, nil
	}
	if first <= 0xDBFF && p.peek() == '\\' && p.at+1 < len(p.text) && p.text[p.at+1] == 'u' {
		p.at += 2
		second, err := p.hex()
		if err != nil {
			return 0, err
		}
		if second >= 0xDC00 && second <= 0xDFFF {
			return 0x10000 + (first-0xD800)<<10 + (second - 0xDC00), nil
		}
	}
	return 0, p.errorf("a lone surrogate")
}

func (p *parser) hex() (rune, error) {
	if len(p.text)-p.at < 4 {
		return 0, p.errorf("an escape is cut off")
	}
	var value rune
	for _, c := range p.text[p.at : p.at+4] {
		switch {
		case c >= '0' && c <= '9':
			value = value<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			value = value<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			value = value<<4 | rune(c-'A'+10)
		default:
			return 0, p.errorf("an escape is not hexadecimal")
		}
	}
	p.at += 4
	return value, nil
}

func (p *parser) digits() int {
	start := p.at
	for p.at < len(p.text) && p.text[p.at] >= '0' && p.text[p.at] <= '9' {
		p.at++
	}
	return p.at - start
}

func (p *parser) number() (any, error) {
	start := p.at
	if p.peek() == '-' {
		p.at++
	}
	first := p.peek()
	count := p.digits()
	if count == 0 || (first == '0' && count > 1) {
		return nil, p.errorf("not a number")
	}
	isFloat := false
	if p.peek() == '.' {
		isFloat = true
		p.at++
		if p.digits() == 0 {
			return nil, p.errorf("not a number")
		}
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		isFloat = true
		p.at++
		if c := p.peek(); c == '+' || c == '-' {
			p.at++
		}
		if p.digits() == 0 {
			return nil, p.errorf("not a number")
		}
	}
	text := string(p.text[start:p.at])
	if isFloat {
		value, err := strconv.ParseFloat(text, 64)
		if math.IsInf(value, 0) {
			return nil, p.errorf("a number is too large for a 64-bit float")
		}
		if err != nil && !errors.Is(err, strconv.ErrRange) {
			return nil, p.errorf("not a number")
		}
		return value, nil
	}
	if value, err := strconv.ParseInt(text, 10, 64); err == nil {
		return value, nil
	}
	if count > maxDigits {
		return nil, p.errorf("an integer of more than %d digits", maxDigits)
	}
	value, ok := new(big.Int).SetString(text, 10)
	if !ok {
		return nil, p.errorf("not a number")
	}
	return value, nil
}
