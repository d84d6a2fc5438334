package strictjson

import (
	"encoding/hex"
	"encoding/json"
	"math"
	"math/big"
	"os"
	"strconv"
	"strings"
	"testing"
)

const vectors = "../../../../spec/vectors/"

type primitives struct {
	Numbers []struct{ Bits, Canonical string }
	Strings []struct {
		CanonicalHex string `json:"canonical_hex"`
		Value        string
	} `json:"json_strings"`
	Keys    []string                               `json:"json_keys_in_order"`
	Texts   []struct{ Text, Integer, Bits string } `json:"json_numbers"`
	Refused []string                               `json:"json_numbers_refused"`
}

func load(t *testing.T) primitives {
	t.Helper()
	text, err := os.ReadFile(vectors + "primitives.json")
	if err != nil {
		t.Fatal(err)
	}
	var found primitives
	if err := json.Unmarshal(text, &found); err != nil {
		t.Fatal(err)
	}
	return found
}

func double(t *testing.T, bits string) float64 {
	t.Helper()
	value, err := strconv.ParseUint(bits, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return math.Float64frombits(value)
}

func TestNumbersAreWrittenAsEveryLanguageWritesThem(t *testing.T) {
	for _, one := range load(t).Numbers {
		if got := Number(double(t, one.Bits)); got != one.Canonical {
			t.Errorf("%s: got %s, expected %s", one.Bits, got, one.Canonical)
		}
	}
}

func TestStringsAndKeysAreWrittenAsEveryLanguageWritesThem(t *testing.T) {
	found := load(t)
	for _, one := range found.Strings {
		got, err := Canonical(one.Value)
		if err != nil || hex.EncodeToString(got) != one.CanonicalHex {
			t.Errorf("%q: got %s, %v", one.Value, got, err)
		}
	}
	object := map[string]any{}
	for _, key := range found.Keys {
		object[key] = 0
	}
	text, err := Canonical(object)
	if err != nil {
		t.Fatal(err)
	}
	at := 0
	for _, key := range found.Keys {
		quoted, _ := Canonical(key)
		next := strings.Index(string(text[at:]), string(quoted)+":")
		if next < 0 {
			t.Fatalf("the key %q is not in its place", key)
		}
		at += next + 1
	}
}

func TestNumbersAreReadAsTheirTextSays(t *testing.T) {
	found := load(t)
	for _, one := range found.Texts {
		value, err := Parse([]byte(one.Text), 10)
		if err != nil {
			t.Errorf("%s: %v", one.Text, err)
			continue
		}
		switch v := value.(type) {
		case float64:
			if one.Bits == "" || math.Float64bits(v) != math.Float64bits(double(t, one.Bits)) {
				t.Errorf("%s: read as the float %v", one.Text, v)
			}
		case int64:
			if strconv.FormatInt(v, 10) != one.Integer {
				t.Errorf("%s: read as the integer %d", one.Text, v)
			}
		case *big.Int:
			if v.String() != one.Integer {
				t.Errorf("%s: read as the integer %s", one.Text, v)
			}
		default:
			t.Errorf("%s: read as %T", one.Text, value)
		}
	}
	for _, text := range found.Refused {
		if value, err := Parse([]byte(text), 10); err == nil {
			t.Errorf("%s: read as %v", text, value)
		}
	}
}

func TestWhatIsOutsideTheSubsetIsRefused(t *testing.T) {
	deep := strings.Repeat("[", MaxDepth+1) + strings.Repeat("]", MaxDepth+1)
	for _, text := range []string{
		"", " ", "{", "[1,]", `{"a":1,}`, `{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, `"\ud800"`, `"\udc00\ud800"`, "\"\x01\"",
		"\xef\xbb\xbf1", "\"\xff\"", "1 2", "nul", "'a'", `"\x"`, `"\u12"`, deep, strings.Repeat("9", maxDigits+1),
	} {
		if value, err := Parse([]byte(text), 1000); err == nil {
			t.Errorf("%.40q: read as %v", text, value)
		}
	}
	if _, err := Parse([]byte("[[],[]]"), 3); err != ErrTooManyNodes {
		t.Errorf("four nodes of three: %v", err)
	}
}

func FuzzParseAndWriteAgain(f *testing.F) {
	for _, text := range []string{`{"a":[1,2.5,"\u00e9",null,true]}`, "[]", "1e300", `"\ud83e\udd16"`, "-0"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		value, err := Parse(text, 1000)
		if err != nil {
			return
		}
		first, err := Canonical(value)
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		again, err := Parse(first, 1000)
		if err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
		second, err := Canonical(again)
		if err != nil || string(first) != string(second) {
			t.Fatalf("%q, then %q (%v)", first, second, err)
		}
	})
}
