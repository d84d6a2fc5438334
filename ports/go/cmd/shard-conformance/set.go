package main

import (
	"fmt"

	"github.com/shard-format/shard/ports/go/shardpack"
)

func readSet(file string) (object, error) {
	s, err := shardpack.OpenSet(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }()
	names, keys := []any{}, []any{}
	for _, one := range s.Shards() {
		names = append(names, one.Name)
	}
	for record, err := range s.Records() {
		if err != nil {
			return nil, err
		}
		keys = append(keys, record.Key())
	}
	return object{"fields": s.Fields(), "keys": keys, "shards": names}, nil
}

func stepSet(file, casePath string) (object, error) {
	var c struct {
		When, Shard string
		Limits      lowered
	}
	if err := readCase(casePath, &c); err != nil {
		return nil, err
	}
	s, err := shardpack.OpenSet(file, c.Limits.packOptions())
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }()
	if c.When != "shard" {
		return object{"done": true}, nil
	}
	for i, one := range s.Shards() {
		if one.Name == c.Shard {
			_, err := s.Shard(i)
			if err != nil {
				return nil, err
			}
			return object{"done": true}, nil
		}
	}
	return nil, fmt.Errorf("no shard %s", c.Shard)
}
