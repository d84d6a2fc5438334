package shard

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"

	"github.com/shard-format/shard/ports/go/internal/strictjson"
)

// Object is a JSON object. Its values are nil, bool, int64, *big.Int, float64, string, []any and map[string]any.
type Object = map[string]any

// CanonicalJSON writes a value in the canonical form of spec/registry.md.
func CanonicalJSON(value any) ([]byte, error) {
	text, err := strictjson.Canonical(value)
	if err != nil {
		e := invalid("the value has no JSON form")
		e.Err = err
		return nil, e
	}
	return text, nil
}

// parseObject reads a JSON object of the strict subset (S-SCH-2, S-SCH-7, S-SCH-8).
func parseObject(text []byte, what, rule string, limits Limits) (Object, error) {
	if uint64(len(text)) > limits.MaxJSONBytes {
		return nil, jsonTooLong(uint64(len(text)), what, limits)
	}
	value, err := strictjson.Parse(text, int(limits.MaxJSONNodes))
	if errors.Is(err, strictjson.ErrTooManyNodes) {
		return nil, broken(CodeLimitExceeded, "S-SCH-8", what+" has too many values").expected("at most %d", limits.MaxJSONNodes)
	}
	if err != nil {
		e := broken(CodeBadMetadata, rule, what+" is not valid JSON")
		e.Err = err
		return nil, e
	}
	object, ok := value.(map[string]any)
	if !ok {
		return nil, broken(CodeBadMetadata, rule, what+" is not a JSON object")
	}
	return object, nil
}

func jsonTooLong(size uint64, what string, limits Limits) error {
	return broken(CodeLimitExceeded, "S-SCH-7", what+" is too long").
		expected("at most %d bytes", limits.MaxJSONBytes).found("%d", size)
}

// ReadJSON gives an entry that must be a JSON object.
func (r *ShardReader) ReadJSON(name string) (Object, error) { return r.readJSON(name, "S-SCH-2") }

func (r *ShardReader) readJSON(name, rule string) (Object, error) {
	i, err := r.row(name)
	if err != nil {
		return nil, err
	}
	if size := r.index.entry(i).OrigSize; size > r.limits.MaxJSONBytes {
		return nil, located(jsonTooLong(size, "the entry", r.limits), r.name, name)
	}
	text, err := r.ReadEntryAt(i)
	if err != nil {
		return nil, err
	}
	object, err := parseObject(text, "the entry", rule, r.limits)
	return object, located(err, r.name, name)
}

// --- the schema section

// Schema gives the schema section; nil if the file has none.
func (r *ShardReader) Schema() (Object, error) {
	schema, err := r.schema()
	return schema, located(err, r.name, "")
}

func (r *ShardReader) schema() (Object, error) {
	h := r.header
	if h.SchemaOffset == 0 {
		return nil, nil
	}
	end := h.DataSectionOffset
	for i := range r.index.count {
		e := r.index.entry(i)
		end = max(end, e.DataOffset+e.DiskSize)
	}
	if h.SchemaOffset < end || h.SchemaOffset > h.TotalFileSize {
		return nil, broken(CodeBadMetadata, "S-SCH-1", "the schema section is not behind the data").
			expected("%d to %d", end, h.TotalFileSize).found("%d", h.SchemaOffset)
	}
	size := h.TotalFileSize - h.SchemaOffset
	if size > r.limits.MaxJSONBytes {
		return nil, jsonTooLong(size, "the schema section", r.limits)
	}
	text, err := r.readAt(h.SchemaOffset, size)
	if err != nil {
		return nil, err
	}
	schema, err := parseObject(text, "the schema section", "S-SCH-2", r.limits)
	if err != nil {
		return nil, err
	}
	return schema, checkSchema(schema)
}

// checkSchema checks S-SCH-4.
func checkSchema(schema Object) error {
	bad := func(field, expected string) error {
		return broken(CodeBadMetadata, "S-SCH-4", "'"+field+"' of the schema section is wrong").expected("%s", expected)
	}
	for _, field := range []string{"tag_dictionary", "tags"} {
		value := schema[field]
		if value == nil {
			continue
		}
		list, ok := value.([]any)
		if !ok || (field == "tag_dictionary" && len(list) > 16) {
			return bad(field, "a list of strings, at most 16 in tag_dictionary")
		}
		for _, item := range list {
			if _, ok := item.(string); !ok {
				return bad(field, "a list of strings")
			}
		}
	}
	if value := schema["entry_metadata"]; value != nil {
		object, ok := value.(map[string]any)
		if !ok {
			return bad("entry_metadata", "an object of objects")
		}
		for _, item := range object {
			if _, ok := item.(map[string]any); !ok {
				return bad("entry_metadata", "an object of objects")
			}
		}
	}
	return nil
}

func isDigest(text string) bool {
	return len(text) == 64 && strings.Trim(text, "0123456789abcdef") == ""
}

func hexDigest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// ParseObject reads a JSON object of the strict subset of spec/registry.md, with the default limits.
func ParseObject(text []byte) (Object, error) {
	return parseObject(text, "the text", "", Limits{}.withDefaults())
}
