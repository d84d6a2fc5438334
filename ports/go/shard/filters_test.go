package shard

import (
	"bytes"
	"testing"
)

// FuzzFilters undoes what was applied, and reads hostile descriptions.
func FuzzFilters(f *testing.F) {
	for _, text := range []string{
		`{"filters":[{"name":"delta","order":1,"row":28,"width":4},{"name":"planes","width":4}]}`,
		`{"filters":[{"name":"delta","order":2,"row":2,"width":1}]}`,
		`{"filters":[{"name":"planes","width":8}]}`,
		`{"filters":[{"name":"delta","order":2,"row":16,"width":8},{"name":"planes","width":8}]}`,
		`{"filters":[{"name":"delta","order":1,"row":2,"width":2}],"other":[]}`,
	} {
		f.Add([]byte(text), bytes.Repeat([]byte("0123456789abcdef"), 21))
	}
	f.Fuzz(func(t *testing.T, text, data []byte) {
		filters, err := parseFilters(text)
		if err != nil {
			return
		}
		again, err := parseFilters(filters.Description())
		if err != nil || *again != *filters {
			t.Fatalf("%s came back as %v, %v", text, again, err)
		}
		data = data[:len(data)/filters.multiple()*filters.multiple()]
		if err := filters.checkFrame(uint64(len(data))); err != nil {
			t.Fatal(err)
		}
		filtered := filters.apply(data)
		filters.undo(filtered)
		if !bytes.Equal(filtered, data) {
			t.Fatalf("%s is not undone", text)
		}
	})
}

func BenchmarkUndo(b *testing.B) {
	data := make([]byte, 1<<20)
	for name, filters := range map[string]*Filters{
		"delta":  {DeltaWidth: 4, DeltaOrder: 1, DeltaRow: 28},
		"planes": {PlanesWidth: 4},
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			size := len(data) / filters.multiple() * filters.multiple()
			for b.Loop() {
				filters.undo(data[:size])
			}
		})
	}
}
