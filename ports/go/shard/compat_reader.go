package shard

// Methods of the reader of the package that came before this one.

import (
	"slices"
	"strings"
)

// ReadEntryByName is ReadEntry.
func (r *ShardReader) ReadEntryByName(name string) ([]byte, error) { return r.ReadEntry(name) }

// ReadEntryWithVerify gives all bytes of the entry in a row; without its checksum compared if verify is false.
func (r *ShardReader) ReadEntryWithVerify(i int, verify bool) ([]byte, error) {
	if verify {
		return r.ReadEntryAt(i)
	}
	if err := r.checkRow(i); err != nil {
		return nil, err
	}
	data, err := r.decode(r.index.entry(i))
	if err != nil {
		return nil, located(err, r.name, r.index.name(i))
	}
	return data, nil
}

// ReadEntryPrefix gives the first bytes of the entry in a row, at most so many.
func (r *ShardReader) ReadEntryPrefix(i int, most int64) ([]byte, error) {
	if err := r.checkRow(i); err != nil {
		return nil, err
	}
	if most < 0 {
		return nil, located(invalid("the number of bytes is negative").found("%d", most), r.name, r.index.name(i))
	}
	e := r.index.entry(i)
	data, err := r.readRange(e, 0, min(uint64(most), e.OrigSize))
	if err != nil {
		return nil, located(err, r.name, r.index.name(i))
	}
	return data, nil
}

// GetEntryInfo gives a row of the index; nil if there is no such row.
func (r *ShardReader) GetEntryInfo(i int) *IndexEntry {
	if r.checkRow(i) != nil {
		return nil
	}
	e := r.index.entry(i)
	return &e
}

// ReadMetadata gives the schema section; nil if the file has none. Schema gives it as plain JSON.
func (r *ShardReader) ReadMetadata() (*ShardMetadata, error) {
	schema, err := r.Schema()
	if err != nil || schema == nil {
		return nil, err
	}
	metadata := &ShardMetadata{}
	return metadata, located(metadata.set(schema), r.name, "")
}

// ListChildren gives the parts of names that directly follow a prefix, each once.
func (r *ShardReader) ListChildren(prefix string) []string {
	folder := strings.TrimSuffix(prefix, PathSeparator)
	if folder != "" {
		folder += PathSeparator
	}
	seen := map[string]bool{}
	var children []string
	for i := range r.index.count {
		rest, isBelow := strings.CutPrefix(r.index.name(i), folder)
		child, _, _ := strings.Cut(rest, PathSeparator)
		if isBelow && child != "" && !seen[child] {
			seen[child] = true
			children = append(children, child)
		}
	}
	return children
}

// ListWithTag gives the names, sorted, whose metadata have a tag.
func (r *ShardReader) ListWithTag(tag string) ([]string, error) {
	metadata, err := r.ReadMetadata()
	if err != nil || metadata == nil {
		return nil, err
	}
	var found []string
	for name, one := range metadata.EntryMetadata {
		if one != nil && slices.Contains(one.Tags, tag) {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return found, nil
}

// ListWithTagBit gives the names of entries that have one of the tag bits 0 to 15.
func (r *ShardReader) ListWithTagBit(bit int) []string {
	var found []string
	for i := range r.index.count {
		if e := r.index.entry(i); e.HasTagBit(bit) {
			found = append(found, r.index.name(i))
		}
	}
	return found
}

// ListWithTagFast finds a tag in the dictionary of the schema section, and gives the names of entries that have its bit.
func (r *ShardReader) ListWithTagFast(tag string) ([]string, error) {
	metadata, err := r.ReadMetadata()
	if err != nil || metadata == nil {
		return nil, err
	}
	return r.ListWithTagBit(slices.Index(metadata.TagDictionary, tag)), nil
}
